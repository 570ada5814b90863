//! One message, from the client's JSON to what the engine hands to its template.
//!
//! The engine parses messages into typed models and dumps them again before rendering. That drops
//! unknown keys and nulls, fixes the order of keys, and turns tool-call arguments into objects. A
//! template that prints or counts keys shows the difference, so all of it is repeated here.
//!
//! Source: data/tokenizers/README, column `engine`.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::outcome::FallReason;
use super::source::ContentFormat;

/// Keys the engine's model of a user message knows, in its order, `role` and `content` first.
const USER_KEYS: &[&str] = &[];
/// The same for every other role.
const OTHER_KEYS: &[&str] = &["tool_call_id", "name", "reasoning_content", "tool_calls"];

/// A message as the template sees it, its texts the client's own.
#[derive(Debug)]
pub(super) struct Message<'b> {
    pub(super) role: Cow<'b, str>,
    pub(super) content: Cow<'b, Value>,
    pub(super) others: Vec<(&'static str, Cow<'b, Value>)>,
}

impl Serialize for Message<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2 + self.others.len()))?;
        map.serialize_entry("role", &self.role)?;
        map.serialize_entry("content", &self.content)?;
        for (key, value) in &self.others {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Shapes one message. Fails with [`FallReason::Shape`] where the engine refuses the request.
pub(super) fn shaped(message: &Value, format: ContentFormat) -> Result<Message<'_>, FallReason> {
    let fields = message.as_object().ok_or(FallReason::Shape)?;
    let role = role_of(fields)?;
    let content = content_of(fields, &role, format)?;
    let keys = if role == "user" {
        USER_KEYS
    } else {
        OTHER_KEYS
    };
    let mut others = Vec::new();
    for key in keys {
        let value = match fields.get(*key) {
            None | Some(Value::Null) => continue,
            Some(calls) if *key == "tool_calls" => Cow::Owned(tool_calls(calls)?),
            Some(text @ Value::String(_)) => Cow::Borrowed(text),
            Some(_) => return Err(FallReason::Shape),
        };
        others.push((*key, value));
    }
    Ok(Message {
        role,
        content,
        others,
    })
}

/// The engine compares roles other than `user` without regard to case and knows no others.
fn role_of(fields: &Map<String, Value>) -> Result<Cow<'_, str>, FallReason> {
    let role = fields
        .get("role")
        .and_then(Value::as_str)
        .ok_or(FallReason::Shape)?;
    if role == "user" {
        return Ok(role.into());
    }
    let role = role.to_lowercase();
    match role.as_str() {
        "system" | "assistant" | "tool" | "function" | "developer" => Ok(role.into()),
        _ => Err(FallReason::Shape),
    }
}

/// Content as the template wants it; null becomes the empty string. Tool results are flattened for
/// every template.
fn content_of<'b>(
    fields: &'b Map<String, Value>,
    role: &str,
    format: ContentFormat,
) -> Result<Cow<'b, Value>, FallReason> {
    let parts = match fields.get("content") {
        None | Some(Value::Null) => return Ok(Cow::Owned(Value::String(String::new()))),
        Some(text @ Value::String(_)) => return Ok(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => parts,
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(FallReason::Shape);
        }
    };
    let parts = parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let only_text = parts.iter().all(|part| part.get("text").is_some());
    if format == ContentFormat::String || (role == "tool" && only_text) {
        return Ok(Cow::Owned(Value::String(flattened(&parts))));
    }
    Ok(Cow::Owned(Value::Array(parts)))
}

/// One content part. Media lose their payload: templates only place a marker, which the engine
/// expands later.
fn part(part: &Value) -> Result<Value, FallReason> {
    let kind = part.get("type").and_then(Value::as_str);
    let mut shaped = Map::new();
    let name = match kind.ok_or(FallReason::Shape)? {
        "text" => {
            let text = part.get("text").filter(|text| text.is_string());
            let text = text.ok_or(FallReason::Shape)?;
            shaped.insert("type".to_owned(), Value::from("text"));
            shaped.insert("text".to_owned(), text.clone());
            return Ok(Value::Object(shaped));
        }
        "image_url" => "image",
        "video_url" => "video",
        "audio_url" => "audio",
        _ => return Err(FallReason::Shape),
    };
    shaped.insert("type".to_owned(), Value::from(name));
    Ok(Value::Object(shaped))
}

/// The texts of content parts, joined by a space.
fn flattened(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part.get("text"));
    texts
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Tool calls with their arguments as JSON values instead of JSON texts.
fn tool_calls(calls: &Value) -> Result<Value, FallReason> {
    let calls = calls.as_array().ok_or(FallReason::Shape)?;
    let shaped = calls.iter().map(tool_call).collect::<Result<Vec<_>, _>>()?;
    Ok(Value::Array(shaped))
}

fn tool_call(call: &Value) -> Result<Value, FallReason> {
    let fields = call.as_object().ok_or(FallReason::Shape)?;
    let function = fields.get("function").and_then(Value::as_object);
    let function = function.ok_or(FallReason::Shape)?;
    let mut shaped = Map::new();
    for key in ["id", "index"] {
        if let Some(value) = fields.get(key).filter(|value| !value.is_null()) {
            shaped.insert(key.to_owned(), value.clone());
        }
    }
    let kind = fields.get("type").cloned();
    shaped.insert(
        "type".to_owned(),
        kind.unwrap_or_else(|| Value::from("function")),
    );
    shaped.insert("function".to_owned(), Value::Object(called(function)?));
    Ok(Value::Object(shaped))
}

fn called(function: &Map<String, Value>) -> Result<Map<String, Value>, FallReason> {
    let mut shaped = Map::new();
    if let Some(name) = function.get("name") {
        shaped.insert("name".to_owned(), name.clone());
    }
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => return Ok(shaped),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| FallReason::Shape)?,
        Some(object @ Value::Object(_)) => object.clone(),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            return Err(FallReason::Shape);
        }
    };
    shaped.insert("arguments".to_owned(), arguments);
    Ok(shaped)
}
