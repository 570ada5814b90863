//! The first pass over a chat body: the few fields that routing needs, everything else skipped.
//!
//! Refuses what two readers of one body could understand differently (a routing key twice, a
//! wrong type). Does not validate messages, tools or sampling: the engine owns that schema. Sampling
//! values are only located; `server::sampling` judges them where a contract exists.
//! Parser details never reach the client. Source: http-and-operations §3.

use std::ops::Range;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::config::SamplingParam;
use crate::server::ApiError;

/// What routing reads of a chat body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatFields {
    /// The model as sent.
    pub model: String,
    /// Where the model's JSON string stands in the body, quotes included.
    pub model_span: Range<usize>,
    /// Whether the client asked for an event stream.
    pub stream: bool,
    /// Requested output, tokens: `max_completion_tokens`, else `max_tokens`; `None` when unknown.
    pub output_tokens: Option<u64>,
    /// The caller's own token ids: a non-empty flat list of u32.
    pub input_ids: Option<Vec<u32>>,
    /// Whether the caller set a bootstrap field, which belongs to the router.
    pub has_bootstrap: bool,
    /// Whether the caller set a request id; any value but null.
    pub has_rid: bool,
    /// The caller's cache namespace, when it is a string that is not empty.
    pub cache_salt: Option<String>,
    /// Whether the request names a LoRA adapter in a field of its own; any value but null.
    pub has_adapter: bool,
    /// Where the values of the sampling parameters stand in the body; the last one of each.
    sampling: [Option<Range<usize>>; SamplingParam::COUNT],
}

impl ChatFields {
    /// The JSON text of `param` in `body`, the body that these fields were read from; any value.
    /// The last one where the key is repeated, as in the engine; `None` without the key.
    #[must_use]
    pub fn sampling<'b>(&self, body: &'b [u8], param: SamplingParam) -> Option<&'b [u8]> {
        let span = self.sampling[param as usize].clone()?;
        body.get(span)
    }
}

const NOT_AN_OBJECT: &str = "invalid request: body must be a JSON object";

/// Reads the routing fields of `body`.
///
/// # Errors
/// [`ApiError::BadRequest`]: not one JSON object in valid UTF-8 with nothing after it, no model, a
/// routing key twice, or a routing key of the wrong type.
pub fn parse(body: &[u8]) -> Result<ChatFields, ApiError> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::bad_request(NOT_AN_OBJECT))?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let raw = parser
        .deserialize_map(TopLevel)
        .and_then(|raw| parser.end().map(|()| raw))
        .map_err(|_| ApiError::bad_request(NOT_AN_OBJECT))?;
    raw.check(text)
}

/// The routing keys as written, not yet interpreted.
#[derive(Default)]
struct RawFields<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    input_ids: Option<&'a RawValue>,
    has_bootstrap: bool,
    rid: Option<&'a RawValue>,
    cache_salt: Option<&'a RawValue>,
    adapter: Option<&'a RawValue>,
    sampling: [Option<&'a RawValue>; SamplingParam::COUNT],
    repeated: Option<&'static str>,
}

impl RawFields<'_> {
    fn check(self, text: &str) -> Result<ChatFields, ApiError> {
        if let Some(key) = self.repeated {
            return Err(ApiError::bad_request(format!(
                "invalid request: `{key}` is given more than once"
            )));
        }
        let model = present(self.model)
            .ok_or_else(|| ApiError::bad_request("invalid request: `model` is missing"))?;
        let max_tokens = unsigned("max_tokens", self.max_tokens)?;
        // The engine takes 0 as "not given" here. Source: http-and-operations §3.
        let max_completion_tokens =
            unsigned("max_completion_tokens", self.max_completion_tokens)?.filter(|n| *n > 0);
        let span = |value: &RawValue| {
            let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
            start..start + value.get().len()
        };
        Ok(ChatFields {
            model: typed("model", "a string", model)?,
            model_span: span(model),
            stream: match present(self.stream) {
                Some(stream) => typed("stream", "true or false", stream)?,
                None => false,
            },
            output_tokens: max_completion_tokens.or(max_tokens),
            input_ids: present(self.input_ids)
                .and_then(|ids| serde_json::from_str::<Vec<u32>>(ids.get()).ok())
                .filter(|ids| !ids.is_empty()),
            has_bootstrap: self.has_bootstrap,
            has_rid: present(self.rid).is_some(),
            cache_salt: present(self.cache_salt)
                .and_then(|salt| serde_json::from_str::<String>(salt.get()).ok())
                .filter(|salt| !salt.is_empty()),
            has_adapter: present(self.adapter).is_some(),
            sampling: self.sampling.map(|value| value.map(span)),
        })
    }
}

fn present(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|value| value.get() != "null")
}

fn typed<T: serde::de::DeserializeOwned>(
    key: &str,
    wanted: &str,
    value: &RawValue,
) -> Result<T, ApiError> {
    serde_json::from_str(value.get())
        .map_err(|_| ApiError::bad_request(format!("invalid request: `{key}` must be {wanted}")))
}

fn unsigned(key: &str, value: Option<&RawValue>) -> Result<Option<u64>, ApiError> {
    present(value)
        .map(|value| typed(key, "a non-negative integer", value))
        .transpose()
}

struct TopLevel;

impl<'de> Visitor<'de> for TopLevel {
    type Value = RawFields<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = RawFields::default();
        while let Some(key) = map.next_key::<Key>()? {
            let slot = match key {
                Key::Model => (&mut fields.model, "model"),
                Key::Stream => (&mut fields.stream, "stream"),
                Key::MaxTokens => (&mut fields.max_tokens, "max_tokens"),
                Key::MaxCompletionTokens => {
                    (&mut fields.max_completion_tokens, "max_completion_tokens")
                }
                Key::InputIds => {
                    // Not a routing key: the last value wins, as in the engine.
                    fields.input_ids = Some(map.next_value()?);
                    continue;
                }
                Key::Sampling(param) => {
                    fields.sampling[param as usize] = Some(map.next_value()?);
                    continue;
                }
                Key::Rid => {
                    fields.rid = Some(map.next_value()?);
                    continue;
                }
                Key::CacheSalt => {
                    fields.cache_salt = Some(map.next_value()?);
                    continue;
                }
                Key::Adapter => {
                    fields.adapter = Some(map.next_value()?);
                    continue;
                }
                Key::Bootstrap => {
                    fields.has_bootstrap = true;
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if slot.0.replace(map.next_value()?).is_some() {
                fields.repeated = Some(slot.1);
            }
        }
        Ok(fields)
    }
}

/// A top-level key, compared after unescaping, so that no spelling slips past.
enum Key {
    Model,
    Stream,
    MaxTokens,
    MaxCompletionTokens,
    InputIds,
    Rid,
    CacheSalt,
    Adapter,
    Bootstrap,
    Sampling(SamplingParam),
    Other,
}

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(match key {
                    "model" => Key::Model,
                    "stream" => Key::Stream,
                    "max_tokens" => Key::MaxTokens,
                    "max_completion_tokens" => Key::MaxCompletionTokens,
                    "input_ids" => Key::InputIds,
                    "rid" => Key::Rid,
                    "cache_salt" => Key::CacheSalt,
                    "lora_path" => Key::Adapter,
                    "bootstrap_host" | "bootstrap_port" | "bootstrap_room" => Key::Bootstrap,
                    _ => SamplingParam::named(key).map_or(Key::Other, Key::Sampling),
                })
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

#[cfg(test)]
mod tests;
