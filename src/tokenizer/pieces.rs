//! What was encoded before is not encoded again: ids by the piece of text.
//!
//! The Hugging Face crate takes added tokens out of a text before it does anything else, each search going
//! on where the token before ended, and what is left between two of them goes through normalizer,
//! pre-tokenizer and model on its own. So a text may be cut before an added token and the ids of its pieces
//! joined, when
//! * the token is looked for in the text as it came (`normalized: false`), lest the normalizer join it
//!   with its neighbours,
//! * it is found wherever it is written: no other such token can begin before it and reach into it, and
//!   none is a longer form of it,
//! * it has no wish about its neighbours (`single_word`, `lstrip`, `rstrip`), and
//! * it begins with a mark that no token before it can have wishes about: neither white space nor part
//!   of a word.
//!
//! Each piece but the first begins with its token, so that a pre-tokenizer sees what follows the token
//! away from the beginning of the text, as it does in the whole.
//!
//! **What it refuses to do.** It adds no special tokens at the ends, and cuts nowhere else. It serves a
//! tokenizer only after pieces gave the whole's ids on every text of [`probe`](super::probe).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aho_corasick::AhoCorasick;
use tokenizers::{AddedToken, Tokenizer};

use crate::recent::Recent;

/// Bytes of text and ids that one tokenizer remembers: room for about a hundred conversations of
/// 60,000 tokens.
const CACHE_BYTES: usize = 64 << 20;

/// Bytes of bookkeeping per remembered piece, about.
const ENTRY_BYTES: usize = 128;

/// A piece above this, bytes with its ids, is not remembered: about 120,000 tokens.
const MOST_BYTES: usize = CACHE_BYTES / 64;

/// What became of the pieces looked up since the tokenizer was loaded. Bytes are bytes of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Pieces whose ids were remembered.
    pub hits: u64,
    /// Pieces that had to be encoded.
    pub misses: u64,
    /// Bytes of the remembered pieces.
    pub hit_bytes: u64,
    /// Bytes of the encoded pieces.
    pub miss_bytes: u64,
    /// Bytes held now, ids included.
    pub held_bytes: u64,
}

/// Remembered pieces of one tokenizer's texts.
pub(super) struct Pieces {
    /// The added tokens before which a text may be cut.
    cuts: AhoCorasick,
    memory: Recent<Arc<Piece>>,
    passed: Passed,
}

struct Piece {
    text: Box<str>,
    ids: Box<[u32]>,
}

/// See [`CacheStats`].
#[derive(Default)]
struct Passed {
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    miss_bytes: AtomicU64,
}

// === impl Pieces ===

impl Pieces {
    /// `None` where there is nothing to cut at.
    pub(super) fn of(plain: &Tokenizer) -> Option<Self> {
        let added = plain.get_added_tokens_decoder();
        let raw: Vec<&AddedToken> = added.values().filter(|token| !token.normalized).collect();
        let cuts = may_be_cut_before(&raw)?;
        (!cuts.is_empty()).then_some(())?;
        Some(Self {
            cuts: AhoCorasick::new(cuts).ok()?,
            memory: Recent::new(CACHE_BYTES),
            passed: Passed::default(),
        })
    }

    /// The ids of a text, without special tokens at its ends; `None` when `whole` gives none.
    ///
    /// * `whole` — the ids of a text.
    pub(super) fn encode(
        &self,
        text: &str,
        whole: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> Option<Vec<u32>> {
        let starts = self.cuts.find_iter(text).map(|found| found.start());
        let starts = starts.filter(|start| *start > 0);
        let (mut from, mut stats) = (0, CacheStats::default());
        let mut ids = Vec::with_capacity(text.len() / 3);
        for to in starts.chain([text.len()]) {
            let piece = &text[from..to];
            if piece.len() == text.len() {
                return whole(text);
            }
            self.encode_piece(piece, &whole, &mut ids, &mut stats)?;
            from = to;
        }
        self.passed.add(&stats);
        Some(ids)
    }

    fn encode_piece(
        &self,
        text: &str,
        whole: &impl Fn(&str) -> Option<Vec<u32>>,
        ids: &mut Vec<u32>,
        stats: &mut CacheStats,
    ) -> Option<()> {
        let key = self.memory.key(text);
        let bytes = text.len() as u64;
        let known = self.memory.get(key);
        if let Some(known) = known.filter(|known| *known.text == *text) {
            ids.extend_from_slice(&known.ids);
            stats.hits += 1;
            stats.hit_bytes += bytes;
            return Some(());
        }
        let encoded = whole(text)?;
        ids.extend_from_slice(&encoded);
        stats.misses += 1;
        stats.miss_bytes += bytes;
        let held = held(text, &encoded);
        if held <= MOST_BYTES {
            let (text, ids) = (text.into(), encoded.into());
            self.memory.keep(key, Arc::new(Piece { text, ids }), held);
        }
        Some(())
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.memory = Recent::new(CACHE_BYTES);
        self.passed = Passed::default();
    }

    pub(super) fn stats(&self) -> CacheStats {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheStats {
            hits: now(&self.passed.hits),
            misses: now(&self.passed.misses),
            hit_bytes: now(&self.passed.hit_bytes),
            miss_bytes: now(&self.passed.miss_bytes),
            held_bytes: self.memory.held() as u64,
        }
    }
}

// === impl Passed ===

impl Passed {
    fn add(&self, stats: &CacheStats) {
        let add = |count: &AtomicU64, more| count.fetch_add(more, Ordering::Relaxed);
        add(&self.hits, stats.hits);
        add(&self.hit_bytes, stats.hit_bytes);
        if stats.misses > 0 {
            add(&self.misses, stats.misses);
            add(&self.miss_bytes, stats.miss_bytes);
        }
    }
}

/// Bytes that a remembered piece takes, about.
fn held(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids) + ENTRY_BYTES
}

/// The tokens, of those looked for in a text as it came, before which it may be cut.
fn may_be_cut_before<'t>(raw: &[&'t AddedToken]) -> Option<Vec<&'t str>> {
    let contents = raw.iter().map(|token| token.content.as_str());
    let ends: HashSet<&str> = contents.clone().flat_map(proper_ends).collect();
    let all = AhoCorasick::new(contents.clone()).ok()?;
    let mut inside = vec![false; raw.len()];
    for (number, content) in contents.enumerate() {
        for found in all.find_overlapping_iter(content) {
            inside[found.pattern().as_usize()] |= found.pattern().as_usize() != number;
        }
    }
    let mark = |c: char| c.is_ascii_punctuation() && c != '_';
    let cuts = raw.iter().zip(inside).filter(|(token, inside)| {
        let wishes = token.single_word || token.lstrip || token.rstrip;
        let content = token.content.as_str();
        let begun = content
            .char_indices()
            .skip(1)
            .any(|(at, _)| ends.contains(&content[..at]));
        !inside && !begun && !wishes && content.starts_with(mark)
    });
    Some(cuts.map(|(token, _)| token.content.as_str()).collect())
}

/// The ends of a text, itself aside.
fn proper_ends(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().skip(1).map(|(at, _)| &text[at..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer whose pre-tokenizer treats the beginning of a text differently, and with added tokens
    /// of every kind.
    fn tokenizer() -> Tokenizer {
        let token = |id: u32, content: &str, wish: &str, normalized: bool| {
            let mut token = json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": normalized, "special": true});
            if !wish.is_empty() {
                token[wish] = json!(true);
            }
            token
        };
        let mut vocabulary = vec![json!(["<unk>", 0.0]), json!(["\u{2581}", -3.0])];
        let words = [
            "a",
            "b",
            "ab",
            "\u{2581}a",
            "\u{2581}ab",
            "x",
            "<",
            ">",
            "c",
            "m",
        ];
        vocabulary.extend(
            words
                .iter()
                .map(|word| json!([word, -1.0 - word.len() as f64])),
        );
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
            "normalizer": {"type": "NFKC"},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}",
                "prepend_scheme": "first", "split": true},
            "decoder": null,
            "added_tokens": [
                token(12, "<s>", "", false), token(13, "</s>", "", false),
                token(14, "<m>", "lstrip", false), token(15, "<r>", "rstrip", false),
                token(16, "cc", "single_word", false), token(17, "<n>", "", true),
                token(18, " <w>", "", false), token(19, "<s><s>", "", false),
            ],
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false},
        });
        Tokenizer::from_bytes(json.to_string()).expect("loads")
    }

    #[test]
    fn pieces_give_the_ids_of_the_whole_on_random_texts() {
        let plain = tokenizer();
        let pieces = Pieces::of(&plain).expect("there are tokens to cut at");
        let whole = |text: &str| Some(plain.encode_fast(text, false).ok()?.get_ids().to_vec());
        let parts = [
            "<s>", "</s>", "<m>", "<r>", "cc", "<n>", " <w>", "<s", ">", " ", "  ", "a", "ab",
            "b ", "x", "\u{301}", "\u{ff21}", "c", "<s><s>",
        ];
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let text: String = (0..draw(12)).map(|_| parts[draw(parts.len())]).collect();
            assert_eq!(pieces.encode(&text, whole), whole(&text), "{text:?}");
        }
        let stats = pieces.stats();
        assert!(stats.hits > 1_000 && stats.misses > 1_000, "{stats:?}");
    }

    #[test]
    fn what_is_remembered_stays_within_its_bound_and_the_latest_stays() {
        let pieces = Pieces::of(&tokenizer()).expect("there are tokens to cut at");
        let encode = |number: u32, ids: usize| {
            let text = format!("<s>{number}</s>");
            pieces.encode(&text, |piece| Some(vec![number; ids / piece.len()]));
            pieces.stats()
        };
        for number in 0..1_000 {
            let held = encode(number, 400_000).held_bytes;
            assert!(held <= CACHE_BYTES as u64);
        }
        let full = encode(999, 400_000);
        assert!(full.held_bytes > CACHE_BYTES as u64 / 2);
        assert_eq!(encode(999, 1).hits, full.hits + 2, "the latest stays");
        assert_eq!(
            encode(0, 400_000).misses,
            full.misses + 1,
            "the first is gone"
        );
        let before = pieces.stats();
        for _ in 0..2 {
            encode(5_000, 20 * MOST_BYTES);
        }
        let after = pieces.stats();
        assert_eq!(
            (after.misses, after.hits),
            (before.misses + 2, before.hits + 2)
        );
        assert_eq!(after.held_bytes, before.held_bytes, "too large");
    }

    #[test]
    fn a_text_is_cut_only_before_tokens_that_are_found_wherever_they_are_written() {
        let token = |content: &str| AddedToken::from(content, true).normalized(false);
        let mut tokens: Vec<AddedToken> = ["<a>", "<b>", "<b>>", "x<c", "<c>", "<d<", "<e>", "f"]
            .map(token)
            .into();
        tokens.push(token("<g>").lstrip(true));
        tokens.push(token("<h>").single_word(true));
        let raw: Vec<&AddedToken> = tokens.iter().collect();
        let cuts = may_be_cut_before(&raw).expect("few tokens");
        // The end of `<d<` begins all of them.
        assert_eq!(cuts, [""; 0]);
        let raw: Vec<&AddedToken> = raw
            .into_iter()
            .filter(|token| token.content != "<d<")
            .collect();
        let cuts = may_be_cut_before(&raw).expect("few tokens");
        assert_eq!(cuts, ["<a>", "<b>>", "<e>"]);
    }

    #[test]
    fn where_there_is_nothing_to_cut_at_nothing_is_remembered() {
        let json = json!({"version": "1.0", "added_tokens": [], "model":
            {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}});
        let plain = Tokenizer::from_bytes(json.to_string()).expect("loads");
        assert!(Pieces::of(&plain).is_none());
    }
}
