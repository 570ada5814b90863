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

use aho_corasick::AhoCorasick;
use foldhash::quality::RandomState;
use lru::LruCache;
use parking_lot::Mutex;
use tokenizers::{AddedToken, Tokenizer};

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
    memory: Mutex<Memory>,
}

/// Remembered texts, within [`CACHE_BYTES`]; who was not asked for longest is forgotten first.
struct Memory {
    ids: LruCache<Box<str>, Arc<[u32]>, RandomState>,
    stats: CacheStats,
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
            memory: Mutex::new(Memory::new()),
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
        let mut from = 0;
        let mut ids = Vec::with_capacity(text.len() / 3);
        for to in starts.chain([text.len()]) {
            let piece = &text[from..to];
            if piece.len() == text.len() {
                return whole(text);
            }
            self.encode_piece(piece, &whole, &mut ids)?;
            from = to;
        }
        Some(ids)
    }

    fn encode_piece(
        &self,
        piece: &str,
        whole: &impl Fn(&str) -> Option<Vec<u32>>,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        let known = self.memory.lock().get(piece);
        if let Some(known) = known {
            ids.extend_from_slice(&known);
            return Some(());
        }
        let encoded = whole(piece)?;
        ids.extend_from_slice(&encoded);
        self.memory.lock().keep(piece, &encoded);
        Some(())
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.memory.lock() = Memory::new();
    }

    pub(super) fn stats(&self) -> CacheStats {
        self.memory.lock().stats
    }
}

// === impl Memory ===

impl Memory {
    fn new() -> Self {
        Self {
            ids: LruCache::unbounded_with_hasher(RandomState::default()),
            stats: CacheStats::default(),
        }
    }

    fn get(&mut self, piece: &str) -> Option<Arc<[u32]>> {
        let known = self.ids.get(piece).cloned();
        let bytes = piece.len() as u64;
        if known.is_some() {
            self.stats.hits += 1;
            self.stats.hit_bytes += bytes;
        } else {
            self.stats.misses += 1;
            self.stats.miss_bytes += bytes;
        }
        known
    }

    fn keep(&mut self, piece: &str, ids: &[u32]) {
        let bytes = held(piece, ids);
        if bytes > MOST_BYTES {
            return;
        }
        let before = self.ids.put(piece.into(), ids.into());
        let freed = before.map_or(0, |ids| held(piece, &ids));
        self.stats.held_bytes = self.stats.held_bytes + bytes as u64 - freed as u64;
        while self.stats.held_bytes > CACHE_BYTES as u64
            && let Some((piece, ids)) = self.ids.pop_lru()
        {
            self.stats.held_bytes -= held(&piece, &ids) as u64;
        }
    }
}

/// Bytes that a remembered piece takes, about.
fn held(piece: &str, ids: &[u32]) -> usize {
    piece.len() + size_of_val(ids) + ENTRY_BYTES
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
        let mut memory = Memory::new();
        let ids = vec![7; 100_000];
        for number in 0..1_000 {
            memory.keep(&format!("<s>{number}"), &ids);
            assert!(memory.stats.held_bytes <= CACHE_BYTES as u64);
        }
        assert!(memory.get("<s>999").is_some() && memory.get("<s>0").is_none());
        let held: usize = memory.ids.iter().map(|(piece, ids)| held(piece, ids)).sum();
        assert_eq!(memory.stats.held_bytes, held as u64);
        memory.keep("<s>", &vec![7; MOST_BYTES / 4]);
        assert!(memory.get("<s>").is_none(), "too large");
        memory.keep("<s>999", &[1]);
        assert_eq!(memory.get("<s>999").as_deref(), Some(&[1][..]));
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
