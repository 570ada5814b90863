//! Prompt → token ids: one model's Hugging Face tokenizer with its chat template.
//!
//! The router needs the length of a prompt (buckets, load) and its token ids (cache lookups). This
//! module produces both from the body the client sent, the way the engine will produce them from the
//! body it receives: parse the request like the engine's protocol models, shape the messages like its
//! chat handler, render the model's Jinja template, encode.
//!
//! **The seam.** Everything the rest of the crate knows is [`Tokenizer::encode_chat`] (ids, or nothing)
//! and [`estimate_tokens`] (the size estimate for "nothing"). Which library encodes ([`Backend`]) and
//! what it remembers stay behind it.
//!
//! **What it refuses to do.** It never fails a request: whatever goes wrong leads to the next rung of
//! the ladder with a [`FallReason`]. It never executes a template that came with a request, never
//! writes prompt text to a log, does no network access, and imports nothing from the rest of the crate.
//! Caller-given `input_ids` are the caller's business.
//!
//! **Invariants.** A [`Prompt`] is never empty. Its ids equal the engine's only where
//! [`Prompt::source`] is [`TokenSource::Chat`]; ids of any other rung are good for counting and must
//! not be forwarded. Work is bounded by the size of the body: template instructions, recursion and
//! output have limits. All of it is plain CPU work and belongs on a blocking pool.
//!
//! Source: http-and-operations §9, engine-wire §6, field lessons L44, L45, L54, L71.

mod chat_request;
mod encoder;
mod environment;
mod error;
mod fast;
mod length;
mod load;
mod message;
mod outcome;
mod parity;
mod pieces;
mod probe;
mod python;
mod raw_text;
mod source;
mod template;
mod words;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use chat_request::fields_of;
use template::Effort;

pub use encoder::Backend;
pub use error::TokenizerError;
pub use fast::Unfit;
pub use length::TokenRange;
pub use outcome::{Encoded, FallReason, Prompt, TokenSource};
pub use parity::Obstacle;
pub use pieces::CacheStats;
pub use source::ContentFormat;
pub use template::{ChatTemplate, RenderedChat, TemplateSyntaxError};

/// Prompt length guessed from the size of the whole body, tokens; at least 1.
///
/// * `body_bytes` — size of the request body as sent, images included, bytes.
///
/// Source: http-and-operations §9, row "estimate".
#[must_use]
pub fn estimate_tokens(body_bytes: u64) -> u64 {
    (body_bytes / 4).max(1)
}

/// Size up to which a body is encoded on an event loop, bytes, by backend. Chosen so that the worst body
/// of that size (nothing but messages, tool calls, special tokens, marks) stays below a millisecond;
/// `benches/event_loop` and `benches/tokenize.rs`, group `worst`.
const BRIEF_BYTES_FAST: usize = 16 << 10;
const BRIEF_BYTES_PLAIN: usize = 512;

/// How many times as long the Hugging Face crate takes: 23 to 78 times for 64 KiB never seen
/// (`benches/README.md`).
const PLAIN_TIMES: usize = 32;

/// One model's tokenizer with its chat template. Immutable; share it behind an `Arc`.
pub struct Tokenizer {
    path: PathBuf,
    encoder: encoder::Encoder,
    template: Option<ChatTemplate>,
    bos_id: Option<u32>,
}

// === impl Tokenizer ===

impl Tokenizer {
    /// Loads a tokenizer and, if there is one, its chat template.
    ///
    /// * `path` — a `tokenizer.json`, or a directory that holds one. `tokenizer_config.json` and
    ///   `chat_template.jinja` are looked for beside it and may be missing; without a template every
    ///   chat falls to raw text with [`FallReason::NoTemplate`].
    ///
    /// Reads files and parses megabytes: call it at start-up or reload, not on the request path. What it
    /// returns encodes at once, and faster once a thread of its own has decided that it may
    /// ([`settle`](Self::settle)).
    ///
    /// # Errors
    /// [`TokenizerError`] names the file and the reason: it is missing, cannot be read, is not
    /// complete JSON, is JSON of another kind, or holds a template that does not compile.
    ///
    /// Source: http-and-operations §9, rows "artefact" and "template"; L45.
    pub fn load(path: &Path) -> Result<Self, TokenizerError> {
        load::load(path)
    }

    /// Token ids of a chat-completions body, or `None` when only the estimate is left.
    ///
    /// * `body` — the whole JSON body as sent by the client.
    ///
    /// The ladder: rendered chat, then raw text. The reason for `None` is lost here;
    /// [`try_encode_chat`](Self::try_encode_chat) keeps it.
    ///
    /// Source: http-and-operations §9, row "ladder".
    #[must_use]
    pub fn encode_chat(&self, body: &[u8]) -> Option<Prompt> {
        self.try_encode_chat(body).ok()
    }

    /// Like [`encode_chat`](Self::encode_chat), but says why nothing could be encoded.
    ///
    /// # Errors
    /// The [`FallReason`] that ruled out the rendered chat, when raw text gave no ids either.
    pub fn try_encode_chat(&self, body: &[u8]) -> Result<Prompt, FallReason> {
        match self.encode_unless(body, |_| false)? {
            Encoded::Prompt(prompt) => Ok(prompt),
            Encoded::Range(_) => Err(FallReason::Encode),
        }
    }

    /// [`try_encode_chat`](Self::try_encode_chat), unless the rendered prompt's bytes say enough.
    ///
    /// * `enough` — whether it suffices to know that the number of tokens lies in a range. Asked once,
    ///   about a rendered chat.
    ///
    /// # Errors
    /// As above.
    pub fn encode_unless(
        &self,
        body: &[u8],
        enough: impl Fn(TokenRange) -> bool,
    ) -> Result<Encoded, FallReason> {
        self.climb_down(body, Effort::Full, &enough)
    }

    /// [`encode_unless`](Self::encode_unless) for an event loop: `None`, after a fraction of a
    /// millisecond, when it would take long.
    #[must_use]
    pub fn encode_briefly(
        &self,
        body: &[u8],
        enough: impl Fn(TokenRange) -> bool,
    ) -> Option<Result<Encoded, FallReason>> {
        if body.len() > self.brief_bytes() {
            return None;
        }
        match self.climb_down(body, Effort::Brief, &enough) {
            Err(FallReason::TemplateLimit) => None,
            encoded => Some(encoded),
        }
    }

    /// Size up to which a body may take little time, bytes.
    fn brief_bytes(&self) -> usize {
        match self.backend() {
            Backend::Fast => BRIEF_BYTES_FAST,
            Backend::Plain(_) => BRIEF_BYTES_PLAIN,
        }
    }

    /// How long a text or body of `bytes` bytes takes, as the size, bytes, that takes as long where the
    /// fast library encodes.
    #[must_use]
    pub fn work(&self, bytes: usize) -> usize {
        match self.backend() {
            Backend::Fast => bytes,
            Backend::Plain(_) => bytes.saturating_mul(PLAIN_TIMES),
        }
    }

    /// The ladder: rendered chat, raw text.
    fn climb_down(
        &self,
        body: &[u8],
        effort: Effort,
        enough: &dyn Fn(TokenRange) -> bool,
    ) -> Result<Encoded, FallReason> {
        let fields = fields_of(body).map_err(|reason| self.fell(reason))?;
        let reason = match guarded(|| self.encode_rendered(&fields, body.len(), effort, enough)) {
            Ok(encoded) => return Ok(encoded),
            // Not the end of the ladder: it is climbed again with time to spare.
            Err(FallReason::TemplateLimit) if effort == Effort::Brief => {
                return Err(FallReason::TemplateLimit);
            }
            Err(reason) => self.fell(reason),
        };
        let ids = guarded(|| self.encode_raw(&fields)).map_err(|_| reason)?;
        Ok(Encoded::Prompt(Prompt {
            ids,
            source: TokenSource::Text,
            fell: Some(reason),
            obstacle: Some(parity::obstacle(&fields).unwrap_or(Obstacle::NotRendered)),
        }))
    }

    /// Ids of a bare text, without a template.
    ///
    /// * `add_special_tokens` — whether the tokenizer adds its own start and end tokens. The engine
    ///   does for a completion's `prompt`, and does not for a rendered chat.
    ///
    /// # Errors
    /// [`FallReason::Encode`] when the tokenizer fails, [`FallReason::Panicked`] when a library under
    /// it gives up (a regular expression over its retry limit).
    pub fn encode_text(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, FallReason> {
        guarded(|| self.encoder.encode(text, add_special_tokens))
    }

    /// The text whose tokens [`try_encode_chat`](Self::try_encode_chat) counted for `body`, for an
    /// operator who asks for it; `None` where `source` stands for no text.
    #[must_use]
    pub fn prompt_text(&self, body: &[u8], source: TokenSource) -> Option<String> {
        let fields = fields_of(body).ok()?;
        match source {
            TokenSource::Chat => {
                let template = self.template.as_ref()?;
                let render = || template.render_fields(&fields, body.len(), Effort::Full);
                let chat = guarded(render).ok()?;
                Some(chat.text + chat.assistant_prefix.as_deref().unwrap_or_default())
            }
            TokenSource::Text => raw_text::of(&fields),
            TokenSource::InputIds | TokenSource::Estimate => None,
        }
    }

    /// Text of token ids; unknown ids are left out.
    ///
    /// # Errors
    /// [`FallReason::Encode`] when the tokenizer's decoder fails, [`FallReason::Panicked`] as above.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, FallReason> {
        guarded(|| self.encoder.decode(ids, skip_special_tokens))
    }

    /// Replaces the clock that a template may read, which is local time unless set.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> chrono::NaiveDateTime) -> Self {
        self.template = self.template.map(|template| template.with_clock(clock));
        self
    }

    /// Waits until it is decided which library encodes: seconds at most. The ids do not depend on it.
    pub fn settle(&self) {
        self.encoder.settle();
    }

    /// Which library encodes now.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.encoder.backend()
    }

    /// What the memory of encoded pieces has done so far; zeros where the backend has none.
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.encoder.cache_stats()
    }

    /// The file the tokenizer was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's chat template, if it has one.
    #[must_use]
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    fn encode_rendered(
        &self,
        fields: &Map<String, Value>,
        body_bytes: usize,
        effort: Effort,
        enough: &dyn Fn(TokenRange) -> bool,
    ) -> Result<Encoded, FallReason> {
        chat_request::require_messages(fields)?;
        let template = self.template.as_ref().ok_or(FallReason::NoTemplate)?;
        let chat = template.render_fields(fields, body_bytes, effort)?;
        let range = match &chat.assistant_prefix {
            None if !chat.text.is_empty() => self.encoder.tokens_in(chat.text.len()),
            _ => TokenRange::ANY,
        };
        if enough(range) {
            return Ok(Encoded::Range(range));
        }
        let mut ids = self.encoder.encode(&chat.text, false)?;
        if let Some(prefix) = &chat.assistant_prefix {
            ids.extend(self.encode_continuation(prefix)?);
        }
        Ok(Encoded::Prompt(Prompt {
            ids: not_empty(ids)?,
            source: TokenSource::Chat,
            fell: None,
            obstacle: parity::obstacle(fields),
        }))
    }

    /// The engine encodes the message to be continued apart, with the tokenizer's special tokens, and
    /// drops a leading start token.
    fn encode_continuation(&self, prefix: &str) -> Result<Vec<u32>, FallReason> {
        let mut ids = self.encoder.encode(prefix, true)?;
        if self.bos_id.is_some() && ids.first().copied() == self.bos_id {
            ids.remove(0);
        }
        Ok(ids)
    }

    fn encode_raw(&self, fields: &Map<String, Value>) -> Result<Vec<u32>, FallReason> {
        let text = raw_text::of(fields).ok_or(FallReason::Empty)?;
        not_empty(self.encoder.encode(&text, true)?)
    }

    fn fell(&self, reason: FallReason) -> FallReason {
        tracing::debug!(reason = reason.label(), "chat prompt not rendered");
        reason
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

fn not_empty(ids: Vec<u32>) -> Result<Vec<u32>, FallReason> {
    if ids.is_empty() {
        Err(FallReason::Empty)
    } else {
        Ok(ids)
    }
}

/// Turns a panic of a library into a fall. The regular-expression library under the tokenizer panics
/// when a search exceeds its retry limit, and that text comes from strangers. Safe to resume after:
/// the only mutable state is the encoder's merge cache, which is switched off when it is poisoned.
fn guarded<T>(work: impl FnOnce() -> Result<T, FallReason>) -> Result<T, FallReason> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(FallReason::Panicked))
}
