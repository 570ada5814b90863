//! The second rung: the texts of a body, without roles or template. Good for a length, not for lookups.

use serde_json::{Map, Value};

/// The first of: `prompt` string, `prompt` list joined by newline, message strings and `text` parts
/// joined by newline, `text`. `None` when there is no text at all.
///
/// Source: http-and-operations §9, row "ladder".
pub(super) fn of(fields: &Map<String, Value>) -> Option<String> {
    let candidates = [
        fields.get("prompt").map(strings),
        fields.get("messages").map(message_texts),
        fields.get("text").map(strings),
    ];
    candidates
        .into_iter()
        .flatten()
        .map(|texts| texts.join("\n"))
        .find(|text| !text.is_empty())
}

/// A string, or the strings of a list. A list of token ids has none.
fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn message_texts(messages: &Value) -> Vec<&str> {
    let contents = messages
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|message| message.get("content"));
    let mut texts = Vec::new();
    for content in contents {
        match content {
            Value::String(text) => texts.push(text.as_str()),
            Value::Array(parts) => texts.extend(parts.iter().filter_map(part_text)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
        }
    }
    texts
}

fn part_text(part: &Value) -> Option<&str> {
    part.get("text").and_then(Value::as_str)
}
