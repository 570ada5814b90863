//! What one flag's text means, in the spelling of a file; ranges are those of the file.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::config::flags::table::{FLAGS, Takes, To};
use crate::config::flags::{Complaints, Flags};
use crate::config::reader::{At, Place, Problems, Read, short};
use crate::config::scalars::{between, name, one_of, positive, socket, time, unsigned};
use crate::config::tree::{self, Node, Value as Tree};
use crate::config::types::{Conflict, LogFormat, LogLevel};
use crate::config::{affinity, labels, policy, sampling, toplevel};
use crate::policies::PolicyKind;
use crate::workers::EngineUrl;

/// The values of all given flags, by name; of flags without a value, null.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<&'static str, Vec<Value>>);

impl Values {
    /// The value of a flag that takes one.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)?.first()
    }

    /// All values of a flag; none when it was not given.
    pub(super) fn all(&self, name: &str) -> &[Value] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The word that a flag takes, or its default.
    pub(super) fn word<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.get(name).and_then(Value::as_str).unwrap_or(default)
    }

    /// The whole number that a flag takes, or its default.
    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name).and_then(Value::as_u64).unwrap_or(default)
    }
}

/// Reads every given flag; what cannot be read is a complaint.
pub(super) fn read(flags: &Flags, complaints: &mut Complaints) -> Values {
    let mut values = BTreeMap::new();
    for flag in FLAGS {
        let Some(texts) = flags.given.get(flag.name) else {
            continue;
        };
        let mut list = Vec::with_capacity(texts.len());
        for text in texts {
            let value = match flag.to {
                To::Tuning(key) => tuning(key, text),
                To::Root(_) | To::Model(_) | To::Other(_) => (flag.read)(text),
            };
            match value {
                Ok(value) if flag.takes != Takes::Nothing && list.contains(&value) => {
                    complaints.add(flag.name, format!("`{}` is given twice", short(text)));
                }
                Ok(value) => list.push(value),
                Err(problem) => complaints.add(flag.name, problem),
            }
        }
        if flag.takes == Takes::Nothing {
            list.push(Value::Null);
        }
        values.insert(flag.name, list);
    }
    Values(values)
}

/// `text` as the reader of a file sees it, `plain` without quotes.
fn node(text: &str, plain: bool) -> Node {
    Node {
        line: 1,
        value: Tree::Scalar {
            text: text.to_owned(),
            plain,
        },
    }
}

fn unquoted(text: &str) -> Node {
    node(text, true)
}

/// A name: anything that is not blank.
pub(super) fn text(text: &str) -> Read<Value> {
    name(&node(text, false)).map(Value::from)
}

/// A whole number from 1 on.
pub(super) fn count(text: &str) -> Read<Value> {
    positive(&unquoted(text)).map(Value::from)
}

/// Seconds of a drain, zero included.
pub(super) fn drain(text: &str) -> Read<Value> {
    let seconds = unsigned(&unquoted(text))?;
    let shown = format!("{seconds}s");
    toplevel::drain(&unquoted(&shown)).map(|_| Value::from(shown))
}

/// Seconds above zero.
pub(super) fn positive_secs(text: &str) -> Read<Value> {
    above_zero(text, "s")
}

/// Milliseconds above zero.
pub(super) fn millis(text: &str) -> Read<Value> {
    above_zero(text, "ms")
}

fn above_zero(text: &str, unit: &str) -> Read<Value> {
    let number = unsigned(&unquoted(text))?;
    let shown = format!("{number}{unit}");
    time(&unquoted(&shown)).map(|_| Value::from(shown))
}

/// An address without its port.
pub(super) fn ip(text: &str) -> Read<Value> {
    let host = if text == "localhost" {
        "127.0.0.1"
    } else {
        text
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: Result<IpAddr, _> = host.parse();
    address.map(|address| json!(address)).map_err(|_| {
        format!(
            "`{}` is not an IP address, such as 127.0.0.1 or 0.0.0.0",
            short(text)
        )
    })
}

/// A port to listen on.
pub(super) fn port(text: &str) -> Read<Value> {
    between(0, u64::from(u16::MAX))(&unquoted(text)).map(Value::from)
}

/// An address with its port.
pub(super) fn address(text: &str) -> Read<Value> {
    socket(&node(text, false)).map(|address| json!(address))
}

/// The address of an engine or an index, without the slash at its end.
pub(super) fn url(text: &str) -> Read<Value> {
    let text = text.trim_end_matches('/');
    match EngineUrl::parse(text) {
        Ok(_) => Ok(Value::from(text)),
        Err(error) => Err(error
            .to_string()
            .chars()
            .flat_map(char::escape_debug)
            .collect()),
    }
}

/// A label selector, or one term of it.
pub(super) fn selector(text: &str) -> Read<Value> {
    labels::selector(text).map(Value::from)
}

/// One label and its value.
pub(super) fn label(text: &str) -> Read<Value> {
    match equality(text) {
        Some(_) => Ok(Value::from(text)),
        None => Err(format!(
            "`{}` is not LABEL=VALUE: slices of a role are told by labels that have values",
            short(text)
        )),
    }
}

/// The label and value of `LABEL=VALUE` or `LABEL==VALUE`.
pub(super) fn equality(term: &str) -> Option<(&str, &str)> {
    let (label, value) = term.split_once('=')?;
    let value = value.strip_prefix('=').unwrap_or(value);
    let sound = labels::is_label(label) && !value.is_empty() && labels::is_value(value);
    sound.then_some((label, value))
}

/// The name of a header.
pub(super) fn header(text: &str) -> Read<Value> {
    affinity::header(&node(text, false)).map(Value::from)
}

/// Any policy of the design.
pub(super) fn policy_kind(text: &str) -> Read<Value> {
    policy::kind(&node(text, false)).map(|kind| Value::from(kind.as_str()))
}

/// The one policy of decode groups.
pub(super) fn decode_kind(text: &str) -> Read<Value> {
    match policy::kind(&node(text, false))? {
        PolicyKind::PowerOfTwo => Ok(Value::from(text)),
        other => Err(format!(
            "{other} is not a decode policy of these flags: expected power_of_two; a file may give decode groups any policy but cache_aware"
        )),
    }
}

pub(super) fn filter(text: &str) -> Read<Value> {
    match text {
        "overloaded" => Ok(Value::from(text)),
        "prefix_cache" => Err("the prefix_cache filter was removed, and the minimum-hit gate of cache_aware (--cache-affinity-min-matched-tokens) is not the same: remove it".to_owned()),
        _ => Err(format!("`{}` is not a filter: expected overloaded", short(text))),
    }
}

pub(super) fn affinity_mode(text: &str) -> Read<Value> {
    match text {
        "strict" => Ok(Value::from(text)),
        "soft" => Err("soft was removed with primary and backup pairs: an admitted binding is always reused; remove the flag or write strict".to_owned()),
        _ => Err(format!("`{}` is not a mode: expected strict", short(text))),
    }
}

pub(super) fn session_mode(text: &str) -> Read<Value> {
    match text {
        "bucket" => Ok(Value::from(text)),
        "global-rebind" | "global-preserve" => Err(format!(
            "{text} has no counterpart: a binding belongs to the bucket and role that admitted it; remove the flag or write bucket"
        )),
        _ => Err(format!("`{}` is not a mode: expected bucket", short(text))),
    }
}

/// A tuning key of a policy, in the range that the file has for it.
fn tuning(key: &str, text: &str) -> Read<Value> {
    policy::tuning_value(key, &unquoted(text))?;
    Ok(number(text).unwrap_or_else(|| Value::from(text)))
}

/// `text` as a number of JSON: whole where it can be.
fn number(text: &str) -> Option<Value> {
    let whole = text.parse::<u64>().ok().map(Value::from);
    whole.or_else(|| text.parse::<f64>().ok().map(Value::from))
}

/// A map of sampling parameters, in the domains that the file has for them.
pub(super) fn sampling(text: &str) -> Read<Value> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    let mut problems = Problems::new("");
    if let Some(node) = tree::build(text, &mut problems) {
        let root = At {
            place: Place::root(1),
            node: &node,
        };
        sampling::overrides(&mut problems, &root, None);
    }
    let found = problems.into_list();
    let lines = found.iter().map(|error| match error.path.as_str() {
        "." => error.problem.clone(),
        path => format!("{path}: {}", error.problem),
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        Ok(value)
    } else {
        Err(lines.join("; "))
    }
}

/// One of the words of a setting.
fn one<T: Copy>(text: &str, words: &[T], label: fn(T) -> &'static str) -> Read<Value> {
    one_of(words, label)(&unquoted(text)).map(|word| Value::from(label(word)))
}

pub(super) fn log_level(text: &str) -> Read<Value> {
    one(text, &LogLevel::ALL, LogLevel::as_str)
}

pub(super) fn log_format(text: &str) -> Read<Value> {
    one(text, &LogFormat::ALL, LogFormat::as_str)
}

pub(super) fn conflict(text: &str) -> Read<Value> {
    one(text, &Conflict::ALL, Conflict::as_str)
}

pub(super) fn provider(text: &str) -> Read<Value> {
    one(text, &["radix_tree", "indexer"], |word| word)
}
