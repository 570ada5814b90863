//! The section `sampling` of a model.
//!
//! Refuses what would mean nothing or something else to an engine: values outside a parameter's
//! domain, empty bands, bands under `conflict: allow`, and a `conflict` that has nothing to
//! conflict with. Domains: http-and-operations §8.

use std::collections::BTreeMap;

use crate::config::reader::{At, Fields, Problems, Read};
use crate::config::scalars::{one_of, real};
use crate::config::tree::{Node, Value};
use crate::config::types::{Allowed, Conflict, Number, Sampling, SamplingParam};

/// Largest `top_k`. The reference names none; beyond this the doubles that requests are compared
/// in could not tell two integers apart.
const MOST_EXACT: f64 = 9_007_199_254_740_991.0;

/// Which numbers a parameter takes.
struct Domain {
    least: f64,
    /// Whether `least` itself is out.
    above: bool,
    most: f64,
    whole: bool,
}

const fn domain(param: SamplingParam) -> Domain {
    let (least, above, most, whole) = match param {
        SamplingParam::Temperature => (0.0, false, 2.0, false),
        SamplingParam::TopP => (0.0, true, 1.0, false),
        SamplingParam::TopK => (1.0, false, MOST_EXACT, true),
        SamplingParam::MinP => (0.0, false, 1.0, false),
        SamplingParam::RepetitionPenalty => (0.0, true, 2.0, false),
        SamplingParam::FrequencyPenalty | SamplingParam::PresencePenalty => {
            (-2.0, false, 2.0, false)
        }
        SamplingParam::N => (1.0, false, 128.0, true),
    };
    Domain {
        least,
        above,
        most,
        whole,
    }
}

/// What `override` says; `None` when it is no map.
pub(super) fn overrides(
    problems: &mut Problems,
    at: &At<'_>,
    conflict: Option<Conflict>,
) -> Option<BTreeMap<SamplingParam, Allowed>> {
    let known = SamplingParam::ALL.map(SamplingParam::as_str);
    let section = problems.map(at, &known)?;
    let mut overrides = BTreeMap::new();
    for param in SamplingParam::ALL {
        if let Some(at) = section.get(param.as_str()) {
            let allowed = allowed(problems, &at, param, conflict);
            overrides.extend(allowed.map(|allowed| (param, allowed)));
        }
    }
    Some(overrides)
}

/// The contract of `model`; `None` if something in it was refused.
pub(super) fn sampling(problems: &mut Problems, model: &Fields<'_>) -> Option<Sampling> {
    let before = problems.count();
    let fields = problems.section(model, "sampling", &["override", "conflict"])?;
    let words = one_of(&Conflict::ALL, Conflict::as_str);
    let conflict = problems.setting(&fields, "conflict", words, Conflict::default());
    let overrides = match fields.get("override") {
        Some(at) => overrides(problems, &at, conflict)?,
        None => BTreeMap::new(),
    };
    if problems.count() > before {
        return None;
    }
    let conflict = conflict?;
    // `{override: {}, conflict: reject}` is the default in full, as contract §2 writes it.
    let written = fields.get("conflict").is_some();
    let spelled_out = conflict == Conflict::Reject && fields.get("override").is_some();
    if overrides.is_empty() && written && !spelled_out {
        problems.add(
            &fields.place_of("conflict"),
            "decides nothing without `override: {PARAMETER: VALUE}`",
        );
        return None;
    }
    Some(Sampling {
        overrides,
        conflict,
    })
}

/// A number, or a band of two.
fn allowed(
    problems: &mut Problems,
    at: &At<'_>,
    param: SamplingParam,
    conflict: Option<Conflict>,
) -> Option<Allowed> {
    if !matches!(at.node.value, Value::Map(_)) {
        let number = problems.value(at, |node| number(node, param, true))?;
        return Some(Allowed::Exactly(number));
    }
    let band = problems.map(at, &["min", "max"])?;
    if conflict == Some(Conflict::Allow) {
        problems.add(
            &at.place,
            "a band needs `conflict: reject`: `allow` would make it meaningless",
        );
    }
    let mut bound = |key| {
        let read = |node: &Node| number(node, param, false);
        problems.required(&band, key, read, "both min and max of a band")
    };
    let (min, max) = (bound("min"), bound("max"));
    let (min, max) = (min?, max?);
    if min.value() > max.value() {
        problems.add(&at.place, format_args!("min {min} is above max {max}"));
        return None;
    }
    Some(Allowed::Between { min, max })
}

/// One number of `param`'s domain; `alone` if it is not an end of a band.
fn number(node: &Node, param: SamplingParam, alone: bool) -> Read<Number> {
    let Domain {
        least,
        above,
        most,
        whole,
    } = domain(param);
    let wanted = match param {
        SamplingParam::TopK => {
            format!("it must be a whole number from {least} to {most}, or -1 alone")
        }
        SamplingParam::N => format!("it must be a whole number from {least} to {most}"),
        _ if above => format!("it must be above {least} and at most {most}"),
        _ => format!("it must be from {least} to {most}"),
    };
    let rule = |number: f64| {
        let whole_vocabulary = param == SamplingParam::TopK && alone && number == -1.0;
        let enough = if above {
            number > least
        } else {
            number >= least
        };
        whole_vocabulary || (enough && number <= most && (!whole || number.fract() == 0.0))
    };
    let number = real(&wanted, rule)(node)?;
    let integer = match &node.value {
        Value::Scalar { text, .. } => text.parse().ok(),
        Value::List(_) | Value::Map(_) => None,
    };
    Ok(match integer {
        Some(integer) => Number::Whole(integer),
        // Exact: `rule` has seen that it is whole and within 2^53.
        None if whole => Number::Whole(number as i64),
        // Adding zero makes -0.0 positive.
        None => Number::Real(number + 0.0),
    })
}
