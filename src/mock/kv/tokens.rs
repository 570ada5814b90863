//! Token ids of prompts and answers: a real tokenizer's where one is given, else made up from the
//! text so that equal beginnings have equal ids.

use std::fmt;

/// The tokenizer of the model that the engine pretends to run.
pub trait MockTokenizer: Send + Sync + fmt::Debug {
    /// The ids of a chat body's prompt, by the model's template.
    fn chat(&self, body: &[u8]) -> Option<Vec<u32>>;

    /// The ids of a text without special tokens.
    fn text(&self, text: &str) -> Vec<u32>;
}

/// Bytes of one made-up token.
const WIDTH: usize = 4;

/// The ids of a prompt: as sent, by the tokenizer, or four bytes of text to a token.
pub(crate) fn prompt_ids(
    sent: Option<Vec<u32>>,
    texts: &str,
    body: &[u8],
    tokenizer: Option<&dyn MockTokenizer>,
) -> Vec<u32> {
    sent.or_else(|| tokenizer?.chat(body))
        .unwrap_or_else(|| made_up(texts))
}

/// The ids of an answer whose tokens are these words: one each where there is no tokenizer.
pub(crate) fn answer_ids(words: &[String], tokenizer: Option<&dyn MockTokenizer>) -> Vec<u32> {
    match tokenizer {
        Some(tokenizer) => tokenizer.text(&words.concat()),
        None => words.iter().map(|word| fold(word.as_bytes())).collect(),
    }
}

fn made_up(text: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = text.as_bytes().chunks_exact(WIDTH).map(fold).collect();
    if ids.is_empty() {
        ids.push(fold(text.as_bytes()));
    }
    ids
}

/// FNV-1a, cut to the range of a usual vocabulary.
fn fold(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    bytes.iter().fold(2_166_136_261, step) % 150_000
}
