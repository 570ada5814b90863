//! Where engines are looked for in Kubernetes: namespace and selectors.
//!
//! Contacts no cluster. Whether this program can is not asked here either: a file means the same
//! whatever the program was built with.

use crate::config::labels::{is_label, is_namespace, is_value, selector};
use crate::config::reader::{At, Problems, Read, found, short};
use crate::config::scalars::name;
use crate::config::tree::{Node, Value};
use crate::config::types::kubernetes::terms;
use crate::config::types::{Kubernetes, Labels, Select};

const KEYS: [&str; 4] = [
    "namespace",
    "selector",
    "prefill_selector",
    "decode_selector",
];

/// The section at `at`.
pub(super) fn kubernetes(problems: &mut Problems, at: &At<'_>) -> Option<Kubernetes> {
    let before = problems.count();
    let fields = problems.map(at, &KEYS)?;
    let namespace = problems.optional(&fields, "namespace", namespace);
    let plain = fields.get("selector");
    let plain = plain.map(|at| plain_selector(problems, &at).unwrap_or_default());
    let mut labels = |key| {
        let at = fields.get(key)?;
        Some(labels(problems, &at).unwrap_or_default())
    };
    let (prefill, decode) = (labels("prefill_selector"), labels("decode_selector"));
    if problems.count() > before {
        return None;
    }
    let select = match (plain, prefill, decode) {
        (Some(selector), None, None) => Ok(Select::Plain(selector)),
        (None, Some(prefill), Some(decode)) if prefill == decode => {
            Err("prefill_selector and decode_selector must differ")
        }
        (None, Some(prefill), Some(decode)) => Ok(Select::Pd { prefill, decode }),
        (None, None, None) => Err("write selector, or prefill_selector and decode_selector"),
        (Some(_), _, _) => Err("selector excludes prefill_selector and decode_selector"),
        (None, _, _) => Err("prefill_selector and decode_selector belong together"),
    };
    match select {
        Ok(select) => Some(Kubernetes {
            namespace: namespace?,
            select,
        }),
        Err(rule) => {
            problems.add(&at.place, rule);
            None
        }
    }
}

fn namespace(node: &Node) -> Read<String> {
    let text = name(node)?;
    if is_namespace(&text) {
        return Ok(text);
    }
    Err(format!(
        "`{}` is no namespace: lower-case letters, digits and dashes; leave it out for all",
        short(&text)
    ))
}

/// A map of labels, or a selector in Kubernetes' own words.
fn plain_selector(problems: &mut Problems, at: &At<'_>) -> Option<String> {
    match &at.node.value {
        Value::Map(_) => labels(problems, at).map(|labels| terms(&labels)),
        Value::Scalar { .. } => {
            let text = problems.value(at, name)?;
            problems.value(at, |_| selector(&text))
        }
        Value::List(_) => labels(problems, at).map(|labels| terms(&labels)),
    }
}

fn labels(problems: &mut Problems, at: &At<'_>) -> Option<Labels> {
    let Value::Map(entries) = &at.node.value else {
        let problem = format!(
            "expected a map of labels, such as {{app: engines}}, found {}",
            found(at.node)
        );
        problems.add(&at.place, problem);
        return None;
    };
    if entries.is_empty() {
        problems.add(&at.place, "is empty: at least one label is needed");
    }
    let mut labels = Labels::new();
    for (label, node) in entries {
        let place = at.place.key(label, node.line);
        if !is_label(label) {
            problems.add(
                &place,
                "is no label: NAME or PREFIX/NAME of letters, digits, `-`, `_` and `.`",
            );
        }
        let value = problems.value(&At { place, node }, |node| {
            let value = name(node)?;
            match is_value(&value) {
                true => Ok(value),
                false => Err(format!("`{}` is no value of a label", short(&value))),
            }
        })?;
        labels.insert(label.clone(), value);
    }
    Some(labels)
}
