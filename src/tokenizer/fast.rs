//! The fast library (`fastokens`) behind a proof: it encodes for a tokenizer only after it gave the
//! Hugging Face crate's ids on every text of [`probe`](super::probe).
//!
//! **Why that is trusted.** Both libraries are deterministic, their versions are locked, and a
//! `tokenizer.json` is a short pipeline of parts. Each probe text goes through every part, and the
//! probe visits what parts differ in: characters of every kind and their neighbourhoods, the
//! vocabulary, every flag of the added tokens, special tokens at the ends, repetition through the
//! cache. A part that the library does not have is refused by it while loading.
//!
//! Tokenizers of the SentencePiece kind are encoded [word by word](super::words) on top of it.
//!
//! **When it breaks anyway.** A panic retires it for good; the request at hand and all later ones are
//! encoded by the Hugging Face crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::length::{Lengths, TokenRange};
use super::probe;
use super::words::Words;

/// Why the fast library does not encode for a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// The proof has not ended.
    Unproved,
    /// It does not have a part that the tokenizer is made of.
    Unsupported,
    /// It gave other ids than the Hugging Face crate on a probe text.
    Differs,
    /// It panicked while serving.
    Panicked,
}

impl Unfit {
    /// Log field.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unproved => "unproved",
            Self::Unsupported => "unsupported",
            Self::Differs => "differs",
            Self::Panicked => "panicked",
        }
    }
}

pub(super) struct Fast {
    encoder: fastokens::Tokenizer,
    words: Option<Words>,
    lengths: Option<Lengths>,
    retired: AtomicBool,
}

// === impl Fast ===

impl Fast {
    /// Loads and proves; takes seconds.
    ///
    /// * `wanted` — asked now and then; the work ends with [`Unfit::Unproved`] when it is not.
    pub(super) fn try_new(
        json: String,
        plain: &tokenizers::Tokenizer,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Self, Unfit> {
        wanted().then_some(()).ok_or(Unfit::Unproved)?;
        let load = || Self::load(&json);
        let mut fast = catch_unwind(load).unwrap_or(Err(Unfit::Unsupported))?;
        drop(json);
        fast.prove(plain, wanted)?;
        fast.words.iter_mut().for_each(Words::clear);
        Ok(fast)
    }

    fn load(json: &str) -> Result<Self, Unfit> {
        let unsupported = |error: &dyn std::fmt::Display| {
            tracing::info!(%error, "the fast tokenizer library does not take this tokenizer");
            Unfit::Unsupported
        };
        let mut json: Value = serde_json::from_str(json).map_err(|error| unsupported(&error))?;
        name_the_model(&mut json);
        let (lengths, words) = (Lengths::of(&json), Words::of(&json));
        let mut encoder =
            fastokens::Tokenizer::from_json(json).map_err(|error| unsupported(&error))?;
        // Engines encode prompts whole: limits and padding saved with a tokenizer are for training.
        encoder.set_padding(None);
        encoder.set_truncation(None);
        Ok(Self {
            encoder,
            words,
            lengths,
            retired: AtomicBool::new(false),
        })
    }

    /// Every probe text twice, so that answers from memory are compared as well.
    fn prove(&self, plain: &tokenizers::Tokenizer, wanted: &dyn Fn() -> bool) -> Result<(), Unfit> {
        for text in probe::texts(plain) {
            wanted().then_some(()).ok_or(Unfit::Unproved)?;
            for add_special_tokens in [true, false] {
                let right = plain.encode_fast(text.as_str(), add_special_tokens);
                let right = right.as_ref().map(|encoding| encoding.get_ids()).ok();
                let equal = || self.encode(&text, add_special_tokens).as_deref() == right;
                if !(equal() && equal()) {
                    tracing::info!(
                        text = text.as_str(),
                        "the fast tokenizer library differs on a probe text"
                    );
                    return Err(Unfit::Differs);
                }
            }
        }
        Ok(())
    }

    /// The ids, or `None` when the Hugging Face crate has to do it.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        if self.retired() {
            return None;
        }
        let work = || {
            let whole = |text: &str| self.encoder.encode_with_special_tokens(text, false).ok();
            let words = self.words.as_ref().filter(|_| !add_special_tokens);
            words
                .and_then(|words| words.encode(text, whole))
                .or_else(|| {
                    self.encoder
                        .encode_with_special_tokens(text, add_special_tokens)
                        .ok()
                })
        };
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(ids) => ids,
            Err(_) => {
                self.retired.store(true, Ordering::Relaxed);
                tracing::error!("the fast tokenizer library panicked and is not used again");
                None
            }
        }
    }

    /// How many tokens `encode(text, false)` can give for a text of `bytes` bytes.
    pub(super) fn tokens_in(&self, bytes: usize) -> TokenRange {
        let lengths = self.lengths.as_ref().filter(|_| !self.retired());
        lengths.map_or(TokenRange::ANY, |lengths| lengths.tokens_in(bytes))
    }

    pub(super) fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

/// Old files leave the model's type out; the Hugging Face crate tells it by the fields.
fn name_the_model(json: &mut Value) {
    if let Some(model) = json.get_mut("model").and_then(Value::as_object_mut)
        && model.contains_key("merges")
    {
        model.entry("type").or_insert_with(|| Value::from("BPE"));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tokenizer) fn bytes_and_one_pair() -> String {
        json(true)
    }

    /// Knows the 256 bytes and, when asked, the pair `th`.
    fn json(pair: bool) -> String {
        let mut vocabulary = serde_json::Map::new();
        let mut hidden = 256..;
        for byte in 0..=255_u8 {
            let shown = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
            let code = if shown {
                Some(byte.into())
            } else {
                hidden.next()
            };
            let letter = code.and_then(char::from_u32).expect("a character");
            vocabulary.insert(letter.to_string(), Value::from(byte));
        }
        if pair {
            vocabulary.insert("th".to_owned(), Value::from(256));
        }
        let merges: &[[&str; 2]] = if pair { &[["t", "h"]] } else { &[] };
        let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        serde_json::json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": bytes, "decoder": bytes, "post_processor": null,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}})
        .to_string()
    }

    #[test]
    fn one_differing_merge_is_found_by_the_probe() {
        let plain = tokenizers::Tokenizer::from_bytes(json(false)).expect("loads");
        let other = Fast::load(&json(true))
            .map_err(Unfit::label)
            .expect("loads");
        assert_eq!(other.prove(&plain, &|| true), Err(Unfit::Differs));
        assert_eq!(other.prove(&plain, &|| false), Err(Unfit::Unproved));
    }

    #[test]
    fn a_library_that_panicked_is_not_asked_again() {
        let fast = Fast::load(&json(true))
            .map_err(Unfit::label)
            .expect("loads");
        assert_eq!(fast.encode("th", false), Some(vec![256]));
        fast.retired.store(true, Ordering::Relaxed);
        assert_eq!(fast.encode("th", false), None);
    }
}
