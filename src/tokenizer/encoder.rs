//! Text to ids and back: a fast library where it is exact, the Hugging Face crate everywhere else.
//!
//! The Hugging Face crate defines what is right. It stays loaded, decodes, and takes every tokenizer
//! that the fast library cannot.

use std::fmt;

use super::fast::{CacheStats, Fast, Unfit};
use super::length::TokenRange;
use super::outcome::FallReason;

/// Which library encodes for a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The fast one, proved equal at load.
    Fast,
    /// The Hugging Face crate, because of this.
    Plain(Unfit),
}

impl Backend {
    /// The labels that there are.
    pub const LABELS: [&str; 2] = ["fastokens", "tokenizers"];

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fast => Self::LABELS[0],
            Self::Plain(_) => Self::LABELS[1],
        }
    }
}

/// One tokenizer's encoder and decoder.
pub(super) struct Encoder {
    plain: tokenizers::Tokenizer,
    fast: Result<Fast, Unfit>,
}

// === impl Encoder ===

impl Encoder {
    /// * `json` — the text of the `tokenizer.json` that `plain` was made from.
    pub(super) fn new(json: &str, plain: tokenizers::Tokenizer) -> Self {
        let fast = Fast::try_new(json, &plain);
        Self { plain, fast }
    }

    pub(super) fn backend(&self) -> Backend {
        match &self.fast {
            Ok(fast) if fast.retired() => Backend::Plain(Unfit::Panicked),
            Ok(_) => Backend::Fast,
            Err(reason) => Backend::Plain(*reason),
        }
    }

    pub(super) fn cache_stats(&self) -> CacheStats {
        let fast = self.fast.as_ref().ok();
        fast.map(Fast::cache_stats).unwrap_or_default()
    }

    /// How many tokens a text of `bytes` bytes can have, without special tokens at its ends.
    pub(super) fn tokens_in(&self, bytes: usize) -> TokenRange {
        let fast = self.fast.as_ref().ok();
        fast.map_or(TokenRange::ANY, |fast| fast.tokens_in(bytes))
    }

    pub(super) fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, FallReason> {
        let fast = self.fast.as_ref().ok();
        if let Some(ids) = fast.and_then(|fast| fast.encode(text, add_special_tokens)) {
            return Ok(ids);
        }
        self.plain
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|_| FallReason::Encode)
    }

    pub(super) fn decode(
        &self,
        ids: &[u32],
        skip_special_tokens: bool,
    ) -> Result<String, FallReason> {
        self.plain
            .decode(ids, skip_special_tokens)
            .map_err(|_| FallReason::Encode)
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.plain.token_to_id(token)
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}
