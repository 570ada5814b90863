//! Why a tokenizer could not be loaded: always the file and the reason, so that an operator can act.

use std::io;
use std::path::PathBuf;

/// A tokenizer that could not be loaded. Refuses start-up or a reload; nothing is retried.
///
/// Source: L45.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// There is no such file, or the directory holds no `tokenizer.json`.
    #[error("{}: no such file", path.display())]
    Missing {
        /// The file looked for.
        path: PathBuf,
    },
    /// The file exists and cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file ends in the middle of its JSON.
    #[error("{}: truncated: {source}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the JSON ends.
        source: serde_json::Error,
    },
    /// The file is not JSON.
    #[error("{}: not JSON: {source}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where and why parsing stopped.
        source: serde_json::Error,
    },
    /// The file is not what its name promises.
    #[error("{}: wrong kind of file: {reason}", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What was expected or found.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("{}: chat template `{name}` does not compile: {source}", path.display())]
    Template {
        /// The file the template is in.
        path: PathBuf,
        /// The template's name in that file; `default` unless the file names several.
        name: &'static str,
        /// Line and reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
