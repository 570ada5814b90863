//! What a mock engine says: the last user message, in pieces.
//!
//! Deterministic, so that two engines give the same answer and a test can compute it.

use std::collections::VecDeque;

use super::request::ChatRequest;
use super::shape::Finish;

/// Longest token, characters; a longer word is cut.
const MAX_TOKEN_CHARS: usize = 32;
/// What is said to an empty message.
const NOTHING: &str = "ok";

/// The tokens of every choice, and why it ends after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) tokens: VecDeque<String>,
    pub(crate) finish: Finish,
}

impl Reply {
    /// The reply to `chat`.
    ///
    /// * `reply_tokens` — most tokens when the request sets no limit.
    /// * `exactly` — this many tokens whatever the request says; the text is repeated as needed.
    pub(crate) fn to(chat: &ChatRequest, reply_tokens: u32, exactly: Option<u32>) -> Self {
        let mut words = words(&chat.text);
        if let Some(count) = exactly {
            return Self {
                tokens: repeat(&words, count as usize),
                finish: Finish::Stop,
            };
        }
        if chat.tool.is_some() {
            return Self {
                tokens: VecDeque::from(["{".to_owned(), "}".to_owned()]),
                finish: Finish::ToolCalls,
            };
        }
        let limit = chat.max_tokens.unwrap_or(reply_tokens) as usize;
        let finish = if words.len() > limit {
            Finish::Length
        } else {
            Finish::Stop
        };
        words.truncate(limit);
        Self {
            tokens: words.into(),
            finish,
        }
    }

    /// What a prefill engine says of it.
    pub(crate) fn first_token_only(mut self) -> Self {
        self.tokens.truncate(1);
        self.finish = Finish::Length;
        self
    }
}

/// Cuts a text into words with the space before them; together they are the text.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_letter = false;
    let mut length = 0;
    for letter in text.chars() {
        if (after_letter && letter.is_whitespace()) || length == MAX_TOKEN_CHARS {
            words.push(String::new());
            length = 0;
        }
        words.last_mut().expect("never empty").push(letter);
        after_letter = !letter.is_whitespace();
        length += 1;
    }
    if text.is_empty() {
        words[0].push_str(NOTHING);
    }
    words
}

/// `count` tokens from `words`, over and over.
fn repeat(words: &[String], count: usize) -> VecDeque<String> {
    let again = words.iter().map(|word| {
        if word.starts_with(char::is_whitespace) {
            word.clone()
        } else {
            format!(" {word}")
        }
    });
    let rounds = again.collect::<Vec<_>>();
    let endless = rounds.iter().cycle().skip(words.len());
    words.iter().chain(endless).take(count).cloned().collect()
}
