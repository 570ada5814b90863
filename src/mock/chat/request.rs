//! The fields of a chat body that an engine acts on, checked as an engine checks them.
//!
//! Parsed by way of a JSON value and not straight into the structure: a key written twice is no
//! error to an engine, the last one counts.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::mock::error::EngineError;
use crate::mock::kv::{MockTokenizer, prompt_ids};
use crate::mock::stats::Bootstrap;

/// Most choices of one request; chosen, so that one number cannot fill the memory.
const MAX_CHOICES: u32 = 4096;

#[derive(Debug, Deserialize)]
struct RawChat {
    model: Option<String>,
    messages: Vec<RawMessage>,
    stream: Option<bool>,
    stream_options: Option<RawStreamOptions>,
    n: Option<u32>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    input_ids: Option<Vec<u32>>,
    cache_salt: Option<String>,
    routed_dp_rank: Option<usize>,
    rid: Option<String>,
    tools: Option<Vec<RawTool>>,
    tool_choice: Option<Value>,
    bootstrap_host: Option<String>,
    bootstrap_port: Option<u16>,
    bootstrap_room: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct RawMessage {
    role: String,
    content: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct RawStreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct RawTool {
    function: RawFunction,
}

#[derive(Debug, Deserialize)]
struct RawFunction {
    name: String,
}

/// A chat request an engine accepts.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) rid: Option<String>,
    pub(crate) model: Option<String>,
    /// Choices wanted, at least 1.
    pub(crate) n: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// `max_completion_tokens`, else `max_tokens`.
    pub(crate) max_tokens: Option<u32>,
    /// Text of the last user message, parts joined.
    pub(crate) text: String,
    /// `input_ids`, else by the tokenizer, else one for four bytes of text; at least one.
    pub(crate) ids: Vec<u32>,
    /// Length of `ids`.
    pub(crate) prompt_tokens: u64,
    pub(crate) cache_salt: Option<String>,
    /// The rank that the caller asked for.
    pub(crate) rank: Option<usize>,
    /// The function to call, if the answer is to be a tool call.
    pub(crate) tool: Option<String>,
    pub(crate) bootstrap: Option<Bootstrap>,
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// `context_length` is the longest prompt, tokens.
    pub(crate) fn parse(
        body: &Bytes,
        context_length: u32,
        tokenizer: Option<&dyn MockTokenizer>,
    ) -> Result<Self, EngineError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| EngineError::schema(format!("JSON decode error: {error}")))?;
        let raw: RawChat = serde_json::from_value(value)
            .map_err(|error| EngineError::schema(format!("1 validation error: {error}")))?;
        if raw.messages.is_empty() {
            return Err(EngineError::bad_request("Messages cannot be empty."));
        }
        let n = raw.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            return Err(EngineError::schema(format!(
                "n must be between 1 and {MAX_CHOICES}, got {n}"
            )));
        }
        let texts: String = raw.messages.iter().map(RawMessage::text).collect();
        let sent = raw.input_ids.clone().filter(|ids| !ids.is_empty());
        let ids = prompt_ids(sent, &texts, body, tokenizer);
        let prompt_tokens = ids.len() as u64;
        if prompt_tokens > u64::from(context_length) {
            return Err(EngineError::bad_request(format!(
                "The input ({prompt_tokens} tokens) is longer than the model's context length \
                 ({context_length} tokens)."
            )));
        }
        let last_user = raw.messages.iter().rfind(|message| message.role == "user");
        let text = last_user.map(RawMessage::text).unwrap_or_default();
        let options = raw.stream_options.as_ref();
        Ok(Self {
            n,
            stream: raw.stream.unwrap_or(false),
            include_usage: options.and_then(|o| o.include_usage).unwrap_or(false),
            continuous_usage: options
                .and_then(|o| o.continuous_usage_stats)
                .unwrap_or(false),
            max_tokens: max_tokens(&raw)?,
            ids,
            prompt_tokens,
            cache_salt: raw.cache_salt.clone().filter(|salt| !salt.is_empty()),
            rank: raw.routed_dp_rank,
            tool: tool(&raw, &text)?,
            text,
            bootstrap: raw.bootstrap_room.map(|room| Bootstrap {
                host: raw.bootstrap_host,
                port: raw.bootstrap_port,
                room,
            }),
            rid: raw.rid.filter(|rid| !rid.is_empty()),
            model: raw.model,
        })
    }
}

impl RawMessage {
    fn text(&self) -> String {
        match &self.content {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => parts
                .iter()
                .filter_map(|part| part.get("text").and_then(Value::as_str))
                .collect(),
            _ => String::new(),
        }
    }
}

fn max_tokens(raw: &RawChat) -> Result<Option<u32>, EngineError> {
    raw.max_completion_tokens
        .or(raw.max_tokens)
        .map(|wanted| match u32::try_from(wanted) {
            Ok(wanted) if wanted > 0 => Ok(wanted),
            _ => Err(EngineError::bad_request(format!(
                "max_new_tokens must be at least 1, got {wanted}."
            ))),
        })
        .transpose()
}

/// The function to call: the one named by `tool_choice`, or the first when a call is required or
/// the user's text asks for a "tool".
fn tool(raw: &RawChat, text: &str) -> Result<Option<String>, EngineError> {
    let names = || raw.tools.iter().flatten().map(|tool| &tool.function.name);
    let choice = raw.tool_choice.as_ref();
    let named = choice
        .and_then(|choice| choice.pointer("/function/name"))
        .and_then(Value::as_str);
    if let Some(wanted) = named {
        return match names().find(|name| *name == wanted) {
            Some(name) => Ok(Some(name.clone())),
            None => Err(EngineError::bad_request(format!(
                "Tool choice '{wanted}' not found in tools list."
            ))),
        };
    }
    let first = names().next();
    match choice.and_then(Value::as_str) {
        Some("required") if first.is_none() => Err(EngineError::bad_request(
            "Tools cannot be empty if tool choice is set to required.",
        )),
        Some("required") => Ok(first.cloned()),
        Some("none") => Ok(None),
        _ => Ok(first.filter(|_| text.contains("tool")).cloned()),
    }
}
