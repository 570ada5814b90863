//! What encoding gives back: ids and their rung, or why a rung was left. Labels are closed sets of
//! static strings, because they become metric labels.

use super::length::TokenRange;
use super::parity::Obstacle;

/// The token ids of one prompt. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids in prompt order; their number is the prompt's length.
    pub ids: Vec<u32>,
    /// The rung of the ladder that gave them.
    pub source: TokenSource,
    /// Why the rendered chat was not used; `None` when it was.
    pub fell: Option<FallReason>,
    /// The first reason against handing the ids to an engine in place of the messages.
    pub obstacle: Option<Obstacle>,
}

/// What became of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// It was encoded.
    Prompt(Prompt),
    /// Its length was said to suffice: these bounds hold for the number of its tokens.
    Range(TokenRange),
}

/// Where a prompt length comes from, best first.
///
/// Source: http-and-operations §9, row "ladder".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenSource {
    /// The caller's own `input_ids`. Never produced by this module.
    InputIds,
    /// The rendered chat template: the engine's prompt.
    Chat,
    /// The texts of the body, joined: near in length, useless for cache lookups.
    Text,
    /// The size of the body. Never produced by [`Tokenizer`](super::Tokenizer).
    Estimate,
}

impl TokenSource {
    /// Every source, for registering counters.
    pub const ALL: [Self; 4] = [Self::InputIds, Self::Chat, Self::Text, Self::Estimate];

    /// Metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::InputIds => "input_ids",
            Self::Chat => "chat",
            Self::Text => "text",
            Self::Estimate => "estimate",
        }
    }
}

/// Why a body was not encoded as a rendered chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FallReason {
    /// The body is not one JSON object, or is nested deeper than the parser allows (128).
    NotAnObject,
    /// `messages` is missing, empty or not an array.
    NoMessages,
    /// The tokenizer has no chat template for such a request.
    NoTemplate,
    /// The request carries a template of its own; those are never executed.
    CallerTemplate,
    /// The engine would refuse the request, or its shape is not covered here.
    Shape,
    /// The template refused the conversation (`raise_exception`), as it will in the engine.
    TemplateRefused,
    /// The template failed.
    TemplateError,
    /// The template used up its instructions or its output allowance.
    TemplateLimit,
    /// The tokenizer failed.
    Encode,
    /// The prompt has no tokens; zero would look like no load.
    Empty,
    /// A library panicked.
    Panicked,
}

impl FallReason {
    /// Every reason, for registering counters.
    pub const ALL: [Self; 11] = [
        Self::NotAnObject,
        Self::NoMessages,
        Self::NoTemplate,
        Self::CallerTemplate,
        Self::Shape,
        Self::TemplateRefused,
        Self::TemplateError,
        Self::TemplateLimit,
        Self::Encode,
        Self::Empty,
        Self::Panicked,
    ];

    /// Metric label and log field.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::NotAnObject => "not_an_object",
            Self::NoMessages => "no_messages",
            Self::NoTemplate => "no_template",
            Self::CallerTemplate => "caller_template",
            Self::Shape => "shape",
            Self::TemplateRefused => "template_refused",
            Self::TemplateError => "template_error",
            Self::TemplateLimit => "template_limit",
            Self::Encode => "encode",
            Self::Empty => "empty",
            Self::Panicked => "panicked",
        }
    }
}
