//! The sampling contract of a model: which values a request may ask for.
//!
//! Checked in full, then refused, because nothing enforces a contract yet. Domains:
//! http-and-operations §8.

use crate::config::reader::{At, Fields, Problems, Read};
use crate::config::scalars::{one_of, real};
use crate::config::tree::{Node, Value};

/// Parameter, least, whether the least itself is out, most, whole numbers only.
const SAMPLING: [(&str, f64, bool, f64, bool); 8] = [
    ("temperature", 0.0, false, 2.0, false),
    ("top_p", 0.0, true, 1.0, false),
    ("top_k", 1.0, false, f64::MAX, true),
    ("min_p", 0.0, false, 1.0, false),
    ("repetition_penalty", 0.0, true, 2.0, false),
    ("frequency_penalty", -2.0, false, 2.0, false),
    ("presence_penalty", -2.0, false, 2.0, false),
    ("n", 1.0, false, 128.0, true),
];

/// `sampling` of a model.
pub(super) fn sampling(problems: &mut Problems, model: &Fields<'_>) {
    let before = problems.count();
    let Some(fields) = problems.section(model, "sampling", &["override", "conflict"]) else {
        return;
    };
    let words = one_of(&["reject", "allow"], |word| word);
    let conflict = problems.setting(&fields, "conflict", words, "reject");
    let Some(overrides) = problems.section(&fields, "override", &SAMPLING.map(|row| row.0)) else {
        return;
    };
    for row in SAMPLING {
        if let Some(at) = overrides.get(row.0) {
            sampling_value(problems, &at, row, conflict == Some("allow"));
        }
    }
    if problems.count() > before {
        return;
    }
    if overrides.iter().next().is_some() {
        problems.unsupported(&overrides.place, "overriding sampling parameters");
    } else if conflict == Some("allow") {
        problems.unsupported(&fields.place_of("conflict"), "`conflict: allow`");
    }
}

/// A number, or a band of two.
fn sampling_value(
    problems: &mut Problems,
    at: &At<'_>,
    row: (&str, f64, bool, f64, bool),
    allow: bool,
) {
    if !matches!(at.node.value, Value::Map(_)) {
        problems.value(at, |node| sampling_number(node, row, true));
        return;
    }
    let Some(band) = problems.map(at, &["min", "max"]) else {
        return;
    };
    if allow {
        problems.add(
            &at.place,
            "a band needs `conflict: reject`: `allow` would make it meaningless",
        );
    }
    let mut bound = |key| {
        let read = |node: &Node| sampling_number(node, row, false);
        problems.required(&band, key, read, "both min and max of a band")
    };
    if let (Some(min), Some(max)) = (bound("min"), bound("max"))
        && min > max
    {
        problems.add(&at.place, format_args!("min {min} is above max {max}"));
    }
}

fn sampling_number(node: &Node, row: (&str, f64, bool, f64, bool), alone: bool) -> Read<f64> {
    let (key, least, open, most, whole) = row;
    let wanted = match key {
        "top_k" => "it must be a whole number from 1 on, or -1 alone".to_owned(),
        "n" => "it must be a whole number from 1 to 128".to_owned(),
        _ if open => format!("it must be above {least} and at most {most}"),
        _ => format!("it must be from {least} to {most}"),
    };
    #[expect(clippy::float_cmp, reason = "-1 is written exactly, as a marker")]
    let rule = |number: f64| {
        let whole_vocabulary = key == "top_k" && alone && number == -1.0;
        let above = if open {
            number > least
        } else {
            number >= least
        };
        whole_vocabulary || (above && number <= most && (!whole || number.fract() == 0.0))
    };
    real(&wanted, rule)(node)
}
