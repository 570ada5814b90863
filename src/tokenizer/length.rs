//! How many tokens a text can have, told from its bytes alone.
//!
//! Where every byte of the normalized text is a token of its own at worst, and no token but the
//! listed ones covers more than the longest of the vocabulary: byte-level BPE. Everything else is
//! [`TokenRange::ANY`]. Nothing here is a guess; a guess would send a request to another bucket.

use serde_json::Value;

/// Fewest and most tokens that a prompt can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRange {
    /// At least this many; never 0.
    pub least: u64,
    /// At most this many.
    pub most: u64,
}

// === impl TokenRange ===

impl TokenRange {
    /// Of any prompt: one token to more than any body can be rendered to. A body has 2^30 bytes at
    /// most, rendering writes 8 for each and a mebibyte, and no normalizer makes 18 of one.
    pub const ANY: Self = Self {
        least: 1,
        most: 1 << 40,
    };

    /// The number of the range that is closest to `tokens`.
    #[must_use]
    pub fn closest(&self, tokens: u64) -> u64 {
        tokens.clamp(self.least, self.most)
    }
}

/// What a byte-level tokenizer can make of a text's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lengths {
    /// Bytes that the longest token stands for.
    longest: u64,
    /// How many times longer or shorter, in bytes, the normalizer may make a text.
    stretch: u64,
}

/// NFC makes at most three bytes of one (U+1D160), and one of three (U+212A).
/// Source: Unicode Standard Annex 15, table of expansion factors.
const NFC_STRETCH: u64 = 3;

// === impl Lengths ===

impl Lengths {
    /// For a whole `tokenizer.json`; `None` where bytes prove nothing.
    pub(super) fn of(json: &Value) -> Option<Self> {
        let stretch = stretch(&json["normalizer"])?;
        splits_bytes(&json["pre_tokenizer"]).then_some(())?;
        let vocabulary = bytewise_vocabulary(&json["model"])?;
        let mut longest = vocabulary.keys().map(|token| token.chars().count()).max()?;
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            if token["lstrip"] == true || token["rstrip"] == true {
                return None;
            }
            longest = longest.max(token["content"].as_str()?.len());
        }
        Some(Self {
            longest: longest as u64,
            stretch,
        })
    }

    /// For a text of `bytes` bytes, encoded without special tokens at its ends.
    pub(super) fn tokens_in(&self, bytes: usize) -> TokenRange {
        let bytes = bytes as u64;
        TokenRange {
            least: bytes.div_ceil(self.longest * self.stretch).max(1),
            most: (bytes * self.stretch).max(1),
        }
    }
}

fn stretch(normalizer: &Value) -> Option<u64> {
    match normalizer["type"].as_str() {
        None => normalizer.is_null().then_some(1),
        Some("NFC") => Some(NFC_STRETCH),
        Some("Sequence") => match normalizer["normalizers"].as_array()?.as_slice() {
            [] => Some(1),
            [only] => stretch(only),
            _ => None,
        },
        Some(_) => None,
    }
}

/// Whether a pre-tokenizer hands every byte on, and nothing else.
fn splits_bytes(pre_tokenizer: &Value) -> bool {
    let byte_level =
        |part: &Value| part["type"] == "ByteLevel" && part["add_prefix_space"] == false;
    let split = |part: &Value| {
        part["type"] == "Digits" || (part["type"] == "Split" && part["behavior"] != "Removed")
    };
    match pre_tokenizer["pretokenizers"].as_array() {
        None => byte_level(pre_tokenizer),
        Some(parts) => parts
            .split_last()
            .is_some_and(|(last, others)| byte_level(last) && others.iter().all(split)),
    }
}

/// The vocabulary of a model that knows every byte and leaves none out.
fn bytewise_vocabulary(model: &Value) -> Option<&serde_json::Map<String, Value>> {
    let plain = |key: &str| model[key].is_null() || model[key] == "";
    let bpe = model["type"] == "BPE" && model["byte_fallback"] != true;
    let whole = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"];
    if !bpe || !whole.iter().all(|key| plain(key)) {
        return None;
    }
    let vocabulary = model["vocab"].as_object()?;
    let printable = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff);
    let mut bytes = printable.chain(0x100..0x144).filter_map(char::from_u32);
    let all = bytes.all(|byte| vocabulary.contains_key(byte.encode_utf8(&mut [0; 4]) as &str));
    all.then_some(vocabulary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer() -> Value {
        let printable = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff);
        let bytes = printable.chain(0x100..0x144).filter_map(char::from_u32);
        let mut vocabulary: serde_json::Map<String, Value> = bytes
            .enumerate()
            .map(|(id, byte)| (byte.to_string(), Value::from(id)))
            .collect();
        vocabulary.insert("abcd".to_owned(), Value::from(256));
        json!({
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": false}]},
            "added_tokens": [{"content": "<|x|>", "lstrip": false, "rstrip": false}],
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        })
    }

    #[test]
    fn a_byte_is_a_token_at_worst_and_the_longest_token_at_best() {
        let lengths = Lengths::of(&tokenizer()).expect("byte-level");
        let table = [
            (0, 1, 1),
            (1, 1, 1),
            (5, 1, 5),
            (6, 2, 6),
            (1_000, 200, 1_000),
        ];
        for (bytes, least, most) in table {
            assert_eq!(
                lengths.tokens_in(bytes),
                TokenRange { least, most },
                "{bytes}"
            );
        }
        let mut normalized = tokenizer();
        normalized["normalizer"] = json!({"type": "NFC"});
        let lengths = Lengths::of(&normalized).expect("byte-level");
        let (least, most) = (67, 3_000);
        assert_eq!(lengths.tokens_in(1_000), TokenRange { least, most });
    }

    #[test]
    fn where_bytes_prove_nothing_nothing_is_said() {
        let table = [
            ("/normalizer", json!({"type": "NFKC"})),
            ("/normalizer", json!({"type": "Replace"})),
            ("/pre_tokenizer", json!({"type": "Metaspace"})),
            ("/pre_tokenizer", Value::Null),
            (
                "/pre_tokenizer/pretokenizers/1/add_prefix_space",
                json!(true),
            ),
            ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")),
            ("/added_tokens/0/rstrip", json!(true)),
            ("/model/type", json!("Unigram")),
            ("/model/vocab", json!({"a": 0})),
        ];
        for (place, value) in table {
            let mut json = tokenizer();
            *json.pointer_mut(place).expect("there") = value;
            assert_eq!(Lengths::of(&json), None, "{place}");
        }
        for key in ["dropout", "end_of_word_suffix"] {
            let mut json = tokenizer();
            json["model"][key] = json!("x");
            assert_eq!(Lengths::of(&json), None, "{key}");
        }
    }
}
