//! Which requests may carry the router's ids to the engine.
//!
//! An engine takes ids verbatim and renders nothing. So only shapes whose rendering was compared
//! with the engine's own qualify, and whatever the engine reads from a request beside its messages
//! disqualifies. Source: http-and-operations §10, "Parity rule".

use serde_json::{Map, Value};

/// The first reason against forwarding ids, in the order in which they are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The caller sent ids of its own.
    CallerIds,
    /// There is no list of messages.
    NoMessages,
    /// Tools, functions, tool calls or a tool's answer.
    Tools,
    /// Content that is not a plain string.
    ContentParts,
    /// Reasoning of an earlier turn.
    ReasoningContent,
    /// A system turn that is not first, two user turns in a row, or an unusual role.
    MessageOrder,
    /// The request changes the template or its arguments.
    TemplateFields,
    /// The last turn is the assistant's.
    Continuation,
    /// The prompt was not rendered.
    NotRendered,
}

impl Obstacle {
    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::CallerIds => "caller_ids",
            Self::NoMessages => "no_messages",
            Self::Tools => "tools",
            Self::ContentParts => "content_parts",
            Self::ReasoningContent => "reasoning_content",
            Self::MessageOrder => "message_order",
            Self::TemplateFields => "template_fields",
            Self::Continuation => "continuation",
            Self::NotRendered => "not_rendered",
        }
    }
}

/// Fields that change what a template sees.
const TEMPLATE_FIELDS: [&str; 5] = [
    "chat_template",
    "chat_template_kwargs",
    "reasoning",
    "reasoning_effort",
    "task",
];

/// The first obstacle in a body, its rendering aside.
pub(super) fn obstacle(fields: &Map<String, Value>) -> Option<Obstacle> {
    let given =
        |fields: &Map<String, Value>, key: &str| fields.get(key).is_some_and(|v| !v.is_null());
    if given(fields, "input_ids") {
        return Some(Obstacle::CallerIds);
    }
    let Some(messages) = fields.get("messages").and_then(Value::as_array) else {
        return Some(Obstacle::NoMessages);
    };
    let any = |test: &dyn Fn(&Map<String, Value>) -> bool| {
        messages
            .iter()
            .any(|message| message.as_object().is_none_or(test))
    };
    let role = |message: &Map<String, Value>| {
        message
            .get("role")
            .and_then(Value::as_str)
            .map(str::to_lowercase)
    };
    let role_is = |message: &Map<String, Value>, name: &str| role(message).as_deref() == Some(name);
    let rules: [(bool, Obstacle); 6] = [
        (
            given(fields, "tools")
                || given(fields, "functions")
                || any(&|m| {
                    given(m, "tool_calls")
                        || given(m, "tool_call_id")
                        || role_is(m, "tool")
                        || role_is(m, "function")
                }),
            Obstacle::Tools,
        ),
        (
            any(&|m| !m.get("content").is_some_and(Value::is_string)),
            Obstacle::ContentParts,
        ),
        (
            any(&|m| given(m, "reasoning_content")),
            Obstacle::ReasoningContent,
        ),
        (!usual_order(messages), Obstacle::MessageOrder),
        (
            TEMPLATE_FIELDS.iter().any(|key| given(fields, key)),
            Obstacle::TemplateFields,
        ),
        (
            given(fields, "continue_final_message")
                || messages
                    .last()
                    .and_then(Value::as_object)
                    .is_some_and(|m| role_is(m, "assistant")),
            Obstacle::Continuation,
        ),
    ];
    let found = rules.into_iter().find(|(against, _)| *against);
    found.map(|(_, obstacle)| obstacle)
}

/// At most one system turn, which comes first; then users and assistants, no user twice in a row.
fn usual_order(messages: &[Value]) -> bool {
    let roles = messages.iter().map(|message| message["role"].as_str());
    let mut before = None;
    for (at, role) in roles.enumerate() {
        let usual = match role {
            Some("system") => at == 0,
            Some("user") => before != Some("user"),
            Some("assistant") => true,
            Some(_) | None => false,
        };
        if !usual {
            return false;
        }
        before = role;
    }
    true
}
