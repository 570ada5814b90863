//! The tokenizer module from outside: real tokenizer, real templates, the engine's own prompts.
//!
//! Reference data: `tests/fixtures/tokenizer` (see its README) and the shipped `conf/tokenizers/demo`.

mod backend;
mod fixtures;
mod hostile;
mod ladder;
mod load;
mod models;
mod prompts;
mod sha256;
mod shapes;
mod strings;
mod templates;
