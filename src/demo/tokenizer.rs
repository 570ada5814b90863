//! The router's tokenizer as a mock engine's: both must count the same tokens, as a router and its
//! engines do.

use std::path::Path;
use std::sync::Arc;

use crate::mock::MockTokenizer;
use crate::tokenizer::Tokenizer;

#[derive(Debug)]
struct Shared(Tokenizer);

impl MockTokenizer for Shared {
    fn chat(&self, body: &[u8]) -> Option<Vec<u32>> {
        self.0.encode_chat(body).map(|prompt| prompt.ids)
    }

    fn text(&self, text: &str) -> Vec<u32> {
        self.0.encode_text(text, false).unwrap_or_default()
    }
}

/// Loads the tokenizer at `path`, a directory or a tokenizer.json.
///
/// # Errors
/// What is wrong with it, for people.
pub fn load(path: &Path) -> Result<Arc<dyn MockTokenizer>, String> {
    let tokenizer = Tokenizer::load(path).map_err(|error| error.to_string())?;
    Ok(Arc::new(Shared(tokenizer)))
}
