//! A chat template and its Jinja environment, set up to behave like transformers' renderer.
//!
//! Templates come from the operator, their input from strangers. So templates may use the whole
//! language, and rendering is bounded: instructions and output grow at most linearly with the body,
//! recursion is limited. What a template raises stays inside: its message may quote the prompt.
//!
//! Source: http-and-operations §9; data/chat_templates/README for the environment's features.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use chrono::NaiveDateTime;
use minijinja::{Environment, Error, Value};
use serde_json::Map;

use super::chat_request::{ChatRequest, fields_of, shaped_tools};
use super::environment::{add_strftime_now, environment, fall_reason};
use super::outcome::FallReason;
use super::source::{ContentFormat, without_generation_tags};

/// Name of the only or normal template of a model.
pub(super) const DEFAULT: &str = "default";
/// Name of the template some models have for requests with tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// Special tokens a template may name. Missing ones are not defined, which prints as nothing.
///
/// Differs from http-and-operations §9 ("missing ones as `""`"): the engine leaves them undefined, and
/// templates that ask `is defined` (ERNIE 4.5 does) render another prompt when they are.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];
const ADDITIONAL_SPECIAL_TOKENS: &str = "additional_special_tokens";

/// The largest body there is, bytes: `limits.max_body` goes no further.
const LARGEST_BODY: u64 = 1 << 30;
/// Template instructions for any body, and per byte of the largest body of its class. Chosen: about 0.3 s for the base on the
/// development machine (release build). All 35 reference templates render 200 short turns within it;
/// one (gpt-oss) looks ahead from every turn and stops somewhere below 1,000.
const FUEL_BASE: u64 = 10_000_000;
const FUEL_PER_BODY_BYTE: u64 = 64;
/// Output bytes for any body, and per byte of it. Chosen: room for long built-in system prompts.
const OUTPUT_BASE: usize = 1 << 20;
const OUTPUT_PER_BODY_BYTE: usize = 8;

/// Instructions for a rendering that must not take long: about a third of a millisecond.
const FUEL_BRIEF: u64 = 10_000;
/// Bytes up to which a body belongs to a class; the last class takes the rest.
const CLASS_BYTES: [u64; 3] = [64 << 10, 1 << 20, 32 << 20];

/// How much work a rendering may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Little enough for an event loop.
    Brief,
    /// In proportion to the body.
    Full,
}

/// A model's compiled chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    /// `env` with an allowance of instructions: the brief one, then one per class of bodies. Made when
    /// first used, because copying an environment costs more than many a rendering.
    limited: [OnceLock<Environment<'static>>; CLASS_BYTES.len() + 2],
    default: Option<ContentFormat>,
    tool_use: Option<ContentFormat>,
    special_tokens: Vec<(&'static str, Value)>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    /// The prompt, up to and including the generation prompt.
    pub text: String,
    /// Assistant text to be continued: encoded apart and appended.
    pub assistant_prefix: Option<String>,
}

// === impl ChatTemplate ===

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// * `source` — Jinja source, as published with the model.
    /// * `config` — the fields of `tokenizer_config.json`; only the special tokens are read.
    ///
    /// # Errors
    /// The compiler's complaint with its line.
    pub fn try_new(
        source: &str,
        config: &Map<String, serde_json::Value>,
    ) -> Result<Self, TemplateSyntaxError> {
        let mut template = Self::empty(config);
        template.add(DEFAULT, source)?;
        Ok(template)
    }

    /// No template yet; see [`add`](Self::add).
    pub(super) fn empty(config: &Map<String, serde_json::Value>) -> Self {
        Self {
            env: environment(),
            limited: Default::default(),
            default: None,
            tool_use: None,
            special_tokens: special_tokens(config),
        }
    }

    /// Adds [`DEFAULT`] or [`TOOL_USE`]; other names are never rendered and are left out.
    pub(super) fn add(&mut self, name: &str, source: &str) -> Result<(), TemplateSyntaxError> {
        let (slot, name) = match name {
            DEFAULT => (&mut self.default, DEFAULT),
            TOOL_USE => (&mut self.tool_use, TOOL_USE),
            _ => return Ok(()),
        };
        self.env
            .add_template_owned(name, without_generation_tags(source))
            .map_err(TemplateSyntaxError)?;
        *slot = Some(ContentFormat::detect(source));
        Ok(())
    }

    /// Replaces the clock behind `strftime_now`, which is local time unless set.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> NaiveDateTime) -> Self {
        add_strftime_now(&mut self.env, clock);
        self.limited = Default::default();
        self
    }

    /// What the default template wants message content to look like.
    #[must_use]
    pub fn content_format(&self) -> Option<ContentFormat> {
        self.default
    }

    /// Renders a chat-completions body into the prompt the engine would build from it.
    ///
    /// # Errors
    /// The [`FallReason`]; nothing about the prompt leaves with it.
    pub fn render(&self, body: &[u8]) -> Result<RenderedChat, FallReason> {
        let fields = fields_of(body)?;
        self.render_fields(&fields, body.len(), Effort::Full)
    }

    /// [`render`](Self::render) for a parsed body of `body_bytes` bytes.
    pub(super) fn render_fields(
        &self,
        fields: &Map<String, serde_json::Value>,
        body_bytes: usize,
        effort: Effort,
    ) -> Result<RenderedChat, FallReason> {
        let tools = shaped_tools(fields)?;
        let (name, format) = match (&tools, self.tool_use, self.default) {
            (Some(_), Some(format), _) => (TOOL_USE, format),
            (_, _, Some(format)) => (DEFAULT, format),
            (_, _, None) => return Err(FallReason::NoTemplate),
        };
        let request = ChatRequest::try_new(fields, tools, format)?;
        let context = self.context(&request);
        let env = self.limited(effort, body_bytes);
        let text = bounded_render(env, name, context, body_bytes)?;
        Ok(RenderedChat {
            text,
            assistant_prefix: request.assistant_prefix,
        })
    }

    /// Template variables, later ones winning: the conversation, special tokens, template arguments.
    fn context(&self, request: &ChatRequest<'_>) -> Value {
        let own = [
            ("messages", Value::from_serialize(&request.messages)),
            ("tools", Value::from_serialize(&request.tools)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(true)),
        ];
        let own = own.into_iter().chain(self.special_tokens.iter().cloned());
        let given = request.kwargs.iter();
        own.map(|(name, value)| (name.to_owned(), value))
            .chain(given.map(|(name, value)| (name.clone(), Value::from_serialize(value))))
            .collect()
    }

    /// The environment with the allowance for a body.
    fn limited(&self, effort: Effort, body_bytes: usize) -> &Environment<'static> {
        let bytes = body_bytes as u64;
        let (slot, fuel) = match effort {
            Effort::Brief => (0, FUEL_BRIEF),
            Effort::Full => {
                let class = CLASS_BYTES.iter().position(|most| bytes <= *most);
                let class = class.unwrap_or(CLASS_BYTES.len());
                let most = CLASS_BYTES.get(class).copied().unwrap_or(LARGEST_BODY);
                let per_byte = FUEL_PER_BODY_BYTE.saturating_mul(most);
                (class + 1, FUEL_BASE.saturating_add(per_byte))
            }
        };
        self.limited[slot].get_or_init(|| {
            let mut env = self.env.clone();
            env.set_fuel(Some(fuel));
            env
        })
    }
}

fn bounded_render(
    env: &Environment<'_>,
    name: &str,
    context: Value,
    body_bytes: usize,
) -> Result<String, FallReason> {
    let template = env.get_template(name).map_err(|_| FallReason::NoTemplate)?;
    let per_byte = OUTPUT_PER_BODY_BYTE.saturating_mul(body_bytes);
    let mut out = BoundedOutput {
        text: String::with_capacity(body_bytes + body_bytes / 4),
        limit: OUTPUT_BASE.saturating_add(per_byte),
    };
    template
        .render_captured_to(context, &mut out)
        .map_err(|error| fall_reason(&error))?;
    Ok(out.text)
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("default", &self.default)
            .field("tool_use", &self.tool_use)
            .finish_non_exhaustive()
    }
}

/// A template that does not compile: line and reason.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TemplateSyntaxError(Error);

fn special_tokens(config: &Map<String, serde_json::Value>) -> Vec<(&'static str, Value)> {
    let single = SPECIAL_TOKENS.iter().filter_map(|name| {
        let text = config.get(*name).and_then(token_text)?;
        Some((*name, Value::from(text)))
    });
    let additional = config.get(ADDITIONAL_SPECIAL_TOKENS);
    let additional = additional.and_then(serde_json::Value::as_array);
    let additional = additional.map(|tokens| {
        let texts = tokens.iter().filter_map(token_text).map(Value::from);
        (ADDITIONAL_SPECIAL_TOKENS, texts.collect::<Vec<_>>().into())
    });
    single.chain(additional).collect()
}

/// The text of a special token: a string, or the `content` of an added-token object.
pub(super) fn token_text(token: &serde_json::Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Collects output up to a limit; the write that would pass it fails. Parts are whole texts, each
/// checked when it comes: that is cheaper than going through the whole once more.
struct BoundedOutput {
    text: String,
    limit: usize,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if self.text.len().saturating_add(part.len()) > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let part = simdutf8::basic::from_utf8(part).map_err(|_| io::ErrorKind::InvalidData)?;
        self.text.push_str(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
