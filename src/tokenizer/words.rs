//! Word by word, for tokenizers of the SentencePiece kind: byte-pair merging over a whole text in which
//! spaces are a visible mark (`▁`), without a pre-tokenizer.
//!
//! Merging joins neighbours into entries of the vocabulary, so where no entry holds a character followed
//! by the mark, no merge ever crosses from that character to a space after it: a text may be cut there,
//! and what a word becomes can be remembered. Nearly all spaces are such places.
//!
//! **What it refuses to do.** It cuts before the first of several spaces only, never after a mark written
//! by the user or a character that some entry holds before a mark (`>▁</` in Gemma 3), and it serves no
//! tokenizer with another normalizer, a pre-tokenizer that does anything, or added tokens that are looked
//! for in normalized text or have wishes about their neighbours. Like everything fast it is proved on the
//! texts of [`probe`](super::probe) before it serves.

use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, Anchored, Input, Match, MatchKind, StartKind};
use compact_str::CompactString;
use parking_lot::Mutex;
use serde_json::Value;

const MARK: char = '\u{2581}';

/// Tables of words, so that as many threads encode at once; one more does without.
const TABLES: usize = 4;

/// Bytes of words and ids that one table holds before it begins anew.
const TABLE_BYTES: usize = 4 << 20;

/// The words of one tokenizer.
pub(super) struct Words {
    added: Added,
    /// Characters after which a mark may belong to the same token.
    joined: HashSet<char>,
    /// Whether the normalizer begins every text between added tokens with a mark.
    prepends: bool,
    tables: [Mutex<Table>; TABLES],
}

/// The added tokens of a tokenizer. There may be thousands, whose automaton is slow to walk through, but
/// they begin with few bytes: a text is searched for those.
struct Added {
    /// Whether some token begins with this byte.
    begins: [bool; 256],
    tokens: AhoCorasick,
    /// By the number of the token.
    ids: Vec<u32>,
}

/// Ids of words. The bound holds for what is in it, its own slots aside. A prompt asks for thousands of
/// words, so short ones, and the id of a word that is one token, lie in the slot.
#[derive(Default)]
struct Table {
    words: HashMap<CompactString, Known, foldhash::fast::RandomState>,
    ids: Vec<u32>,
    bytes: usize,
}

/// What a word becomes.
#[derive(Clone, Copy)]
enum Known {
    /// This token.
    Token(u32),
    /// Those at these places of the table.
    At(u32, u32),
}

// === impl Words ===

impl Words {
    /// For a whole `tokenizer.json`; `None` where a text may not be cut at spaces.
    pub(super) fn of(json: &Value) -> Option<Self> {
        let prepends = prepends(&json["normalizer"])?;
        does_nothing(&json["pre_tokenizer"]).then_some(())?;
        let joined = joined(&json["model"])?;
        Some(Self {
            added: Added::of(json)?,
            joined,
            prepends,
            tables: Default::default(),
        })
    }

    /// The ids of a text, without special tokens at its ends; `None` when it has to be encoded otherwise.
    ///
    /// * `whole` — the ids of a text that has no added tokens in it.
    pub(super) fn encode(
        &self,
        text: &str,
        whole: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> Option<Vec<u32>> {
        let mut table = self.tables.iter().find_map(Mutex::try_lock)?;
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut from = 0;
        while let Some(found) = self.added.find(text, from) {
            self.between(&text[from..found.start()], &mut table, &whole, &mut ids)?;
            ids.push(self.added.ids[found.pattern().as_usize()]);
            from = found.end();
        }
        self.between(&text[from..], &mut table, &whole, &mut ids)?;
        Some(ids)
    }

    /// A text without added tokens.
    fn between(
        &self,
        text: &str,
        table: &mut Table,
        whole: &impl Fn(&str) -> Option<Vec<u32>>,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        for word in self.words(text) {
            table.encode(word, whole, ids)?;
        }
        Some(())
    }

    /// The pieces of a text that give its ids one by one. Where the normalizer puts a mark before each,
    /// it stands for the first space of all but the first.
    fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let skipped = usize::from(self.prepends);
        // What stands for a space needs something to stand before.
        let filled = move |at: usize| at + skipped < text.len();
        let cuts = memchr::memchr_iter(b' ', text.as_bytes());
        let cuts = cuts.filter(move |at| filled(*at) && self.may_cut(&text[..*at]));
        let mut from = 0;
        cuts.map(move |at| (at, at + skipped))
            .chain([(text.len(), text.len())])
            .map(move |(to, next)| &text[std::mem::replace(&mut from, next)..to])
            .filter(|word| !word.is_empty())
    }

    /// Whether a text may be cut between these characters and a space.
    fn may_cut(&self, before: &str) -> bool {
        let last = before.chars().next_back();
        last.is_some_and(|c| c != ' ' && c != MARK && !self.joined.contains(&c))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.tables = Default::default();
    }
}

// === impl Added ===

impl Added {
    /// `None` where a token has wishes about its neighbours or is looked for in normalized text.
    fn of(json: &Value) -> Option<Self> {
        let tokens: &[Value] = json["added_tokens"].as_array().map_or(&[], Vec::as_slice);
        let (mut begins, mut contents, mut ids) = ([false; 256], Vec::new(), Vec::new());
        for token in tokens {
            let wishes = ["single_word", "lstrip", "rstrip", "normalized"];
            wishes
                .iter()
                .all(|wish| token[wish] == false)
                .then_some(())?;
            let content = token["content"].as_str()?;
            begins[usize::from(*content.as_bytes().first()?)] = true;
            contents.push(content);
            ids.push(u32::try_from(token["id"].as_u64()?).ok()?);
        }
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(contents);
        Some(Self {
            begins,
            tokens: tokens.ok()?,
            ids,
        })
    }

    /// The first token at or after a place, the longest where several begin.
    fn find(&self, text: &str, from: usize) -> Option<Match> {
        let bytes = &text.as_bytes()[from..];
        let places = bytes.iter().zip(from..);
        let mut places = places.filter(|(byte, _)| self.begins[usize::from(**byte)]);
        places.find_map(|(_, at)| {
            let here = Input::new(text).range(at..).anchored(Anchored::Yes);
            self.tokens.find(here)
        })
    }
}

// === impl Table ===

impl Table {
    fn encode(
        &mut self,
        word: &str,
        whole: &impl Fn(&str) -> Option<Vec<u32>>,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        match self.words.get(word) {
            Some(Known::Token(id)) => {
                ids.push(*id);
                return Some(());
            }
            Some(Known::At(from, to)) => {
                ids.extend_from_slice(&self.ids[*from as usize..*to as usize]);
                return Some(());
            }
            None => {}
        }
        let encoded = whole(word)?;
        ids.extend_from_slice(&encoded);
        self.keep(word, &encoded);
        Some(())
    }

    fn keep(&mut self, word: &str, ids: &[u32]) {
        /// Of the slot and its share of free ones, about.
        const SLOT_BYTES: usize = 64;
        let bytes = word.len() + size_of_val(ids) + SLOT_BYTES;
        if bytes > TABLE_BYTES / 64 {
            return;
        }
        if self.bytes + bytes > TABLE_BYTES {
            self.words.clear();
            self.ids.clear();
            self.bytes = 0;
        }
        let known = if let [id] = ids {
            Known::Token(*id)
        } else {
            // Within the bound on bytes, which is far below the range.
            let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let from = place(self.ids.len());
            self.ids.extend_from_slice(ids);
            Known::At(from, place(self.ids.len()))
        };
        self.words.insert(word.into(), known);
        self.bytes += bytes;
    }
}

/// Whether a normalizer that makes marks of spaces also begins with one; `None` for any other.
fn prepends(normalizer: &Value) -> Option<bool> {
    let mark = |value: &Value| value.as_str() == Some("\u{2581}");
    let replaces = |part: &Value| {
        part["type"] == "Replace" && part["pattern"]["String"] == " " && mark(&part["content"])
    };
    let prepends = |part: &Value| part["type"] == "Prepend" && mark(&part["prepend"]);
    match normalizer["normalizers"].as_array().map(Vec::as_slice) {
        None => replaces(normalizer).then_some(false),
        Some([only]) => replaces(only).then_some(false),
        Some([first, second]) => (prepends(first) && replaces(second)).then_some(true),
        Some(_) => None,
    }
}

/// Whether a pre-tokenizer leaves a text without spaces as it is.
fn does_nothing(pre_tokenizer: &Value) -> bool {
    let at_spaces = pre_tokenizer["type"] == "Split" && pre_tokenizer["pattern"]["String"] == " ";
    pre_tokenizer.is_null() || at_spaces
}

/// The characters that some entry of a plain vocabulary holds before a mark; `None` for other models.
fn joined(model: &Value) -> Option<HashSet<char>> {
    let plain = |key: &str| model[key].is_null() || model[key] == "" || model[key] == false;
    let whole = [
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "ignore_merges",
    ];
    let bpe = model["type"] == "BPE" && whole.iter().all(|key| plain(key));
    let vocabulary = model["vocab"].as_object().filter(|_| bpe)?;
    // Else a mark is unknown, and unknown neighbours may be fused.
    vocabulary.contains_key("\u{2581}").then_some(())?;
    let mut joined = HashSet::new();
    for token in vocabulary.keys() {
        let chars = token.chars().zip(token.chars().skip(1));
        joined.extend(
            chars
                .filter(|(c, next)| *next == MARK && *c != MARK)
                .map(|(c, _)| c),
        );
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Joins within words, marks with words, marks with each other, and one word with a mark after it.
    fn tokenizer(prepends: bool) -> Value {
        let merges = [
            ["a", "b"],
            ["\u{2581}", "a"],
            ["\u{2581}", "ab"],
            ["\u{2581}", "\u{2581}"],
            ["\u{2581}\u{2581}", "\u{2581}"],
            ["\u{2581}", "c"],
            ["x", "\u{2581}c"],
            ["b", "b"],
        ];
        let letters = ["<unk>", "\u{2581}", "a", "b", "c", "x", "<", "s", ">"];
        let mut tokens: Vec<String> = letters.iter().map(ToString::to_string).collect();
        tokens.extend(merges.iter().map(|merge| merge.concat()));
        let vocabulary: serde_json::Map<String, Value> = tokens
            .into_iter()
            .zip(0..)
            .map(|(token, id)| (token, json!(id)))
            .collect();
        let added = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        };
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let prepend = json!({"type": "Prepend", "prepend": "\u{2581}"});
        let normalizers = if prepends {
            vec![prepend, replace]
        } else {
            vec![replace]
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
            "decoder": null, "pre_tokenizer": null,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "added_tokens": [added(17, "<s>"), added(18, "<s> x"), added(12, "\u{2581}\u{2581}")],
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true,
                "byte_fallback": false, "vocab": vocabulary, "merges": merges},
        })
    }

    #[test]
    fn words_give_the_ids_of_the_whole_on_random_texts() {
        let parts = [
            "a",
            "b",
            "ab",
            "x",
            "c",
            " ",
            "  ",
            " c",
            "x c",
            "\u{2581}",
            "<s>",
            "<s",
            "> x",
            "q",
            "\n",
            " a",
            " ab",
            "a",
            "ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab",
        ];
        for prepends in [false, true] {
            let json = tokenizer(prepends);
            let plain = tokenizers::Tokenizer::from_bytes(json.to_string()).expect("loads");
            let whole = |text: &str| Some(plain.encode_fast(text, false).ok()?.get_ids().to_vec());
            let words = Words::of(&json).expect("it may be cut");
            let mut state = 11_u64;
            let mut draw = |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as usize % below
            };
            for _ in 0..20_000 {
                let text: String = (0..draw(14)).map(|_| parts[draw(parts.len())]).collect();
                assert_eq!(words.encode(&text, whole), whole(&text), "{text:?}");
            }
            let known: usize = words
                .tables
                .iter()
                .map(|table| table.lock().words.len())
                .sum();
            assert!(known > 50, "{known}");
        }
    }

    #[test]
    fn a_table_of_words_stays_within_its_bound() {
        let mut table = Table::default();
        for number in 0..200_000 {
            table.keep(&format!("word {number}"), &[number, 1]);
            assert!(table.bytes <= TABLE_BYTES);
        }
        let mut ids = Vec::new();
        table
            .encode("word 199999", &|_| None, &mut ids)
            .expect("the latest");
        assert_eq!(ids, [199_999, 1]);
    }

    #[test]
    fn other_tokenizers_are_not_cut_at_spaces() {
        let table = [
            ("/normalizer", json!({"type": "NFC"})),
            ("/normalizer", Value::Null),
            ("/normalizer/normalizers/0/content", json!("_")),
            ("/pre_tokenizer", json!({"type": "ByteLevel"})),
            ("/added_tokens/0/lstrip", json!(true)),
            ("/added_tokens/0/normalized", json!(true)),
            ("/model/type", json!("Unigram")),
            ("/model/dropout", json!(0.1)),
            ("/model/vocab", json!({"a": 0})),
        ];
        for (place, value) in table {
            let mut json = tokenizer(false);
            *json.pointer_mut(place).expect("there") = value;
            assert!(Words::of(&json).is_none(), "{place}");
        }
        let mut json = tokenizer(false);
        json["model"]["ignore_merges"] = json!(true);
        assert!(Words::of(&json).is_none());
    }
}
