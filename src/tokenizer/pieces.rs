//! What the Hugging Face crate encoded before is not encoded again: ids by the piece of text.
//!
//! For tokenizers that the fast library does not take. The crate takes added tokens out of a text before
//! it does anything else, each search going on where the token before ended, and what is left between
//! two of them goes through normalizer, pre-tokenizer and model on its own. So a text may be cut before
//! an added token and the ids of its pieces joined, when
//! * the token is looked for in the text as it came (`normalized: false`), lest the normalizer join it
//!   with its neighbours,
//! * it has no wish about its neighbours (`single_word`, `lstrip`, `rstrip`), and
//! * it begins with a mark that no token before it can have wishes about: neither white space nor part
//!   of a word.
//!
//! Each piece but the first begins with its token, so that a pre-tokenizer sees what follows the token
//! away from the beginning of the text, as it does in the whole.
//!
//! **What it refuses to do.** It adds no special tokens at the ends, and cuts nowhere else. It serves a
//! tokenizer only after pieces gave the whole's ids on every text of [`probe`](super::probe).

use std::hash::RandomState;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use lru::LruCache;
use parking_lot::Mutex;
use tokenizers::{AddedToken, Tokenizer};

use super::fast::{CACHE_BYTES, CacheStats};
use super::probe;

/// Bytes of bookkeeping per remembered piece, about.
const ENTRY_BYTES: usize = 128;

/// A piece above this is not remembered, bytes with its ids.
const MOST_BYTES: usize = CACHE_BYTES / 64;

/// Remembered pieces of one tokenizer's texts.
pub(super) struct Pieces {
    /// Every added token that is looked for in the text as it came.
    tokens: AhoCorasick,
    /// Whether a text may be cut before a token, by its number in `tokens`.
    cuts: Vec<bool>,
    memory: Mutex<Memory>,
}

/// The bound is the caller's to keep.
struct Memory {
    ids: LruCache<Box<str>, Arc<[u32]>, RandomState>,
    stats: CacheStats,
}

// === impl Pieces ===

impl Pieces {
    /// `None` where there is nothing to cut at, or pieces differ from the whole.
    ///
    /// * `wanted` — asked now and then; the work ends when it is not.
    pub(super) fn proved(plain: &Tokenizer, wanted: &dyn Fn() -> bool) -> Option<Self> {
        let pieces = Self::of(plain)?;
        for text in probe::texts(plain) {
            let whole = plain.encode_fast(text.as_str(), false).ok()?;
            let equal = || pieces.encode(plain, &text).as_deref() == Some(whole.get_ids());
            if !(wanted() && equal() && equal()) {
                return None;
            }
        }
        *pieces.memory.lock() = Memory::new();
        Some(pieces)
    }

    fn of(plain: &Tokenizer) -> Option<Self> {
        let added = plain.get_added_tokens_decoder();
        let raw: Vec<&AddedToken> = added.values().filter(|token| !token.normalized).collect();
        let cuts: Vec<bool> = raw.iter().map(|token| may_cut_before(token)).collect();
        cuts.contains(&true).then_some(())?;
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(raw.iter().map(|token| token.content.as_str()));
        Some(Self {
            tokens: tokens.ok()?,
            cuts,
            memory: Mutex::new(Memory::new()),
        })
    }

    /// The ids of a text, without special tokens at its ends; `None` when the crate fails.
    pub(super) fn encode(&self, plain: &Tokenizer, text: &str) -> Option<Vec<u32>> {
        let cuts = self.tokens.find_iter(text);
        let cuts = cuts.filter(|found| self.cuts[found.pattern().as_usize()]);
        let starts = cuts.map(|found| found.start()).filter(|start| *start > 0);
        let mut from = 0;
        let mut ids = Vec::with_capacity(text.len() / 3);
        for to in starts.chain([text.len()]) {
            let piece = &text[from..to];
            if piece.len() == text.len() {
                return Some(plain.encode_fast(text, false).ok()?.get_ids().to_vec());
            }
            self.encode_piece(plain, piece, &mut ids)?;
            from = to;
        }
        Some(ids)
    }

    fn encode_piece(&self, plain: &Tokenizer, piece: &str, ids: &mut Vec<u32>) -> Option<()> {
        let known = self.memory.lock().get(piece);
        if let Some(known) = known {
            ids.extend_from_slice(&known);
            return Some(());
        }
        let encoded = plain.encode_fast(piece, false).ok()?;
        ids.extend_from_slice(encoded.get_ids());
        self.memory.lock().keep(piece, encoded.get_ids());
        Some(())
    }

    pub(super) fn stats(&self) -> CacheStats {
        self.memory.lock().stats
    }
}

// === impl Memory ===

impl Memory {
    fn new() -> Self {
        Self {
            ids: LruCache::unbounded_with_hasher(RandomState::new()),
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

fn may_cut_before(token: &AddedToken) -> bool {
    let wishes = token.single_word || token.lstrip || token.rstrip;
    let mark = |c: char| c.is_ascii_punctuation() && c != '_';
    !wishes && token.content.starts_with(mark)
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
            let whole = plain.encode_fast(text.as_str(), false).expect("encoded");
            let joined = pieces.encode(&plain, &text).expect("encoded");
            assert_eq!(joined, whole.get_ids(), "{text:?}");
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
    fn where_there_is_nothing_to_cut_at_nothing_is_remembered() {
        let json = json!({"version": "1.0", "added_tokens": [], "model":
            {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}});
        let plain = Tokenizer::from_bytes(json.to_string()).expect("loads");
        assert!(Pieces::proved(&plain, &|| true).is_none());
    }
}
