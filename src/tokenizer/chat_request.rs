//! A chat body, from the client's JSON to the variables of its template.
//!
//! Reads only what reaches the template: messages, tools, template arguments, reasoning switches.
//! A request the engine would refuse, or whose treatment there is not known, is a
//! [`FallReason`], never a guess.
//!
//! Source: http-and-operations §9, rows "template context" and "message shaping".

use serde_json::{Map, Value};

use super::message::{self, Message};
use super::outcome::FallReason;
use super::source::ContentFormat;

/// Template arguments that collide with what the engine passes itself; it fails on them.
const RESERVED_KWARGS: [&str; 10] = [
    "messages",
    "conversation",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "return_dict",
    "return_tensors",
    "truncation",
    "max_length",
];

/// The template's view of one request.
#[derive(Debug)]
pub(super) struct ChatRequest<'b> {
    pub(super) messages: Vec<Message<'b>>,
    /// Tool schemas; `None` when the template must see none.
    pub(super) tools: Option<Vec<Value>>,
    /// Extra template variables, reasoning switches included.
    pub(super) kwargs: Map<String, Value>,
    /// Text of a final assistant message that is to be continued.
    pub(super) assistant_prefix: Option<String>,
}

// === impl ChatRequest ===

impl<'b> ChatRequest<'b> {
    /// * `tools` — from [`shaped_tools`]; given because the choice of template, and with it `format`,
    ///   depends on them.
    pub(super) fn try_new(
        fields: &'b Map<String, Value>,
        tools: Option<Vec<Value>>,
        format: ContentFormat,
    ) -> Result<Self, FallReason> {
        let mut messages = require_messages(fields)?
            .iter()
            .map(|message| message::shaped(message, format))
            .collect::<Result<Vec<_>, _>>()?;
        let continued = flag(fields, "continue_final_message")?;
        let assistant_prefix = settle_final_turn(&mut messages, continued)?;
        Ok(Self {
            messages,
            tools,
            kwargs: template_kwargs(fields)?,
            assistant_prefix,
        })
    }
}

/// The fields of a body. It is checked to be text once, and fast, instead of string by string.
pub(super) fn fields_of(body: &[u8]) -> Result<Map<String, Value>, FallReason> {
    let text = simdutf8::basic::from_utf8(body).map_err(|_| FallReason::NotAnObject)?;
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) | Err(_) => Err(FallReason::NotAnObject),
    }
}

/// The messages of a body, at least one.
pub(super) fn require_messages(fields: &Map<String, Value>) -> Result<&[Value], FallReason> {
    let messages = fields.get("messages").and_then(Value::as_array);
    let messages = messages.map(Vec::as_slice);
    messages
        .filter(|messages| !messages.is_empty())
        .ok_or(FallReason::NoMessages)
}

/// A final assistant turn is continued (taken out, to be encoded apart) or becomes a user turn.
fn settle_final_turn(
    messages: &mut Vec<Message<'_>>,
    continued: bool,
) -> Result<Option<String>, FallReason> {
    let Some(last) = messages.pop_if(|last| last.role == "assistant") else {
        return Ok(None);
    };
    if !continued {
        messages.push(Message {
            role: "user".into(),
            ..last
        });
        return Ok(None);
    }
    match last.content.into_owned() {
        Value::String(prefix) => Ok(Some(prefix)),
        _ => Err(FallReason::Shape),
    }
}

/// Tool schemas as the engine dumps them, after `tool_choice`: none for `none`, one for a named one.
pub(super) fn shaped_tools(fields: &Map<String, Value>) -> Result<Option<Vec<Value>>, FallReason> {
    let tools = match fields.get("tools") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(tools)) => tools,
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            return Err(FallReason::Shape);
        }
    };
    let choice = fields.get("tool_choice");
    if tools.is_empty() || choice.and_then(Value::as_str) == Some("none") {
        return Ok(None);
    }
    let mut shaped = tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
    if let Some(Value::Object(choice)) = choice {
        let wanted = choice.get("function").and_then(|f| f.get("name"));
        let wanted = wanted.ok_or(FallReason::Shape)?;
        shaped.retain(|tool| tool["function"].get("name") == Some(wanted));
    }
    Ok(Some(shaped))
}

/// One tool schema; the engine's model adds `defer_loading`.
fn tool(tool: &Value) -> Result<Value, FallReason> {
    let function = tool.get("function").filter(|f| f.is_object());
    let function = function.ok_or(FallReason::Shape)?;
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(FallReason::Shape);
    }
    let given = |key: &str, default: Value| tool.get(key).cloned().unwrap_or(default);
    let mut shaped = Map::new();
    shaped.insert("type".to_owned(), given("type", Value::from("function")));
    shaped.insert("function".to_owned(), function.clone());
    shaped.insert(
        "defer_loading".to_owned(),
        given("defer_loading", Value::Null),
    );
    Ok(Value::Object(shaped))
}

/// `chat_template_kwargs`, completed by the reasoning switches.
fn template_kwargs(fields: &Map<String, Value>) -> Result<Map<String, Value>, FallReason> {
    let mut kwargs = match fields.get("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(kwargs)) => kwargs.clone(),
        Some(_) => return Err(FallReason::Shape),
    };
    let own = |template: Option<&Value>| template.is_some_and(|value| !value.is_null());
    if own(kwargs.get("chat_template")) || own(fields.get("chat_template")) {
        return Err(FallReason::CallerTemplate);
    }
    if RESERVED_KWARGS.iter().any(|key| kwargs.contains_key(*key)) {
        return Err(FallReason::Shape);
    }
    let effort = reasoning_effort(fields)?;
    if let Some(thinking) = thinking(fields, effort) {
        for key in ["thinking", "enable_thinking"] {
            kwargs.entry(key).or_insert(Value::Bool(thinking));
        }
    }
    if let Some(effort) = effort {
        kwargs
            .entry("reasoning_effort")
            .or_insert_with(|| Value::from(effort));
    }
    Ok(kwargs)
}

/// `reasoning_effort`, or the effort inside `reasoning`.
fn reasoning_effort(fields: &Map<String, Value>) -> Result<Option<&str>, FallReason> {
    let inner = fields.get("reasoning");
    let candidates = [
        fields.get("reasoning_effort"),
        inner.and_then(|r| r.get("effort")),
        inner.and_then(|r| r.get("reasoning_effort")),
    ];
    match candidates.into_iter().flatten().find(|v| !v.is_null()) {
        None => Ok(None),
        Some(Value::String(effort)) => Ok(Some(effort)),
        Some(_) => Err(FallReason::Shape),
    }
}

/// Whether the request switches thinking on or off; `None` when it says nothing. That an explicit
/// `enabled: false` switches it off is our reading; the reference data has no such case.
fn thinking(fields: &Map<String, Value>, effort: Option<&str>) -> Option<bool> {
    let inner = fields.get("reasoning");
    let switch = |key| inner.and_then(|r| r.get(key)).filter(|v| !v.is_null());
    let enabled = switch("enabled").or_else(|| switch("enable"));
    match enabled {
        Some(Value::Bool(on)) => Some(*on),
        Some(Value::String(word)) => {
            let word = word.trim().to_lowercase();
            Some(["1", "true", "yes", "y", "on"].contains(&word.as_str()))
        }
        Some(_) | None => effort.map(|effort| effort != "none"),
    }
}

fn flag(fields: &Map<String, Value>, key: &str) -> Result<bool, FallReason> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(_) => Err(FallReason::Shape),
    }
}
