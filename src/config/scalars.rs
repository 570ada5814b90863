//! Reading one value: each function accepts exactly one kind of scalar and says what it wanted.
//!
//! Types follow the core schema of YAML 1.2: `yes`, `on` and `off` are words, not booleans; a
//! quoted number is a word. Numbers are decimal; other bases are refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::reader::{Read, found, is_number, short};
use crate::config::tree::{Node, Value};
use crate::config::units;

/// Text, `plain` if unquoted; `None` for lists and maps.
fn scalar(node: &Node) -> Option<(&str, bool)> {
    match &node.value {
        Value::Scalar { text, plain } => Some((text, *plain)),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// A word; may be empty if it is quoted.
pub(super) fn string(node: &Node) -> Read<String> {
    match scalar(node) {
        Some((text, true)) if is_bool(text).is_some() || is_number(text) => Err(format!(
            "expected a word, found {}: put it in quotes",
            found(node)
        )),
        Some((text, _)) if !node.is_null() => Ok(text.to_owned()),
        Some(_) | None => Err(format!("expected a word, found {}", found(node))),
    }
}

/// A name: not blank, nothing around it that cannot be seen, no control characters.
pub(super) fn name(node: &Node) -> Read<String> {
    let text = string(node)?;
    if text.trim().is_empty() {
        return Err("must not be blank".to_owned());
    }
    if text.trim().len() != text.len() {
        return Err(format!(
            "`{}` starts or ends with a blank: remove it",
            short(&text)
        ));
    }
    if text.contains(char::is_control) {
        return Err(format!("`{}` contains a control character", short(&text)));
    }
    Ok(text)
}

/// A file or directory, kept as written.
pub(super) fn path(node: &Node) -> Read<PathBuf> {
    name(node).map(PathBuf::from)
}

fn is_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// `true` or `false`.
pub(super) fn boolean(node: &Node) -> Read<bool> {
    scalar(node)
        .filter(|(_, plain)| *plain)
        .and_then(|(text, _)| is_bool(text))
        .ok_or_else(|| format!("expected true or false, found {}", found(node)))
}

/// A whole number of at least 0.
pub(super) fn unsigned(node: &Node) -> Read<u64> {
    let wrong = || format!("expected a whole number, found {}", found(node));
    let (text, plain) = scalar(node).ok_or_else(wrong)?;
    if !plain || text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse().map_err(|_| {
        format!(
            "{} is above {}, the largest number allowed",
            short(text),
            u64::MAX
        )
    })
}

/// A whole number from 1 on.
pub(super) fn positive(node: &Node) -> Read<u64> {
    between(1, u64::MAX)(node)
}

/// A whole number within bounds, both inclusive.
pub(super) fn between(least: u64, most: u64) -> impl Fn(&Node) -> Read<u64> {
    move |node| match unsigned(node)? {
        number if number < least => Err(format!("{number} is too small: at least {least}")),
        number if number > most => Err(format!("{number} is too large: at most {most}")),
        number => Ok(number),
    }
}

/// A whole number from `least` on that fits 32 bits.
pub(super) fn small(least: u32) -> impl Fn(&Node) -> Read<u32> {
    move |node| {
        let number = between(u64::from(least), u64::from(u32::MAX))(node)?;
        u32::try_from(number).map_err(|error| error.to_string())
    }
}

/// A finite number for which `rule` holds; `wanted` says the rule.
pub(super) fn real(wanted: &str, rule: impl Fn(f64) -> bool) -> impl Fn(&Node) -> Read<f64> {
    move |node| {
        let number = scalar(node)
            .filter(|(text, plain)| *plain && text.bytes().any(|b| b.is_ascii_digit()))
            .and_then(|(text, _)| Some((text, text.parse::<f64>().ok()?)))
            .filter(|(_, number)| number.is_finite());
        match number {
            Some((_, number)) if rule(number) => Ok(number),
            Some((text, _)) => Err(format!("{} is out of range: {wanted}", short(text))),
            None => Err(format!("expected a number, found {}", found(node))),
        }
    }
}

/// A duration, zero included.
pub(super) fn duration(node: &Node) -> Read<Duration> {
    match scalar(node) {
        Some((text, _)) if !node.is_null() => units::duration(&short(text)),
        Some(_) | None => Err(format!(
            "expected a duration such as 300s or 150ms, found {}",
            found(node)
        )),
    }
}

/// A duration above zero.
pub(super) fn time(node: &Node) -> Read<Duration> {
    match duration(node)? {
        Duration::ZERO => Err("must be above zero".to_owned()),
        duration => Ok(duration),
    }
}

/// A size in bytes.
pub(super) fn size(node: &Node) -> Read<u64> {
    match scalar(node) {
        Some((text, _)) if !node.is_null() => units::size(&short(text)),
        Some(_) | None => Err(format!(
            "expected a size such as 32MiB or bytes, found {}",
            found(node)
        )),
    }
}

/// `IP:PORT`; port 0 lets the system choose one.
pub(super) fn socket(node: &Node) -> Read<SocketAddr> {
    let text = string(node)?;
    text.parse().map_err(|_| {
        format!(
            "`{}` is not IP:PORT: write an address such as 127.0.0.1:8080 or [::1]:8080",
            short(&text)
        )
    })
}

/// One of a closed set of words.
pub(super) fn one_of<T: Copy>(
    values: &[T],
    label: impl Fn(T) -> &'static str,
) -> impl Fn(&Node) -> Read<T> {
    move |node| {
        let text = scalar(node).map(|(text, _)| text);
        let value = values
            .iter()
            .copied()
            .find(|value| Some(label(*value)) == text);
        value.ok_or_else(|| {
            let labels: Vec<&str> = values.iter().map(|value| label(*value)).collect();
            format!("expected {}, found {}", alternatives(&labels), found(node))
        })
    }
}

/// `a`, `a or b`, `a, b or c`.
pub(super) fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
