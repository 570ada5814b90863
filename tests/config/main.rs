//! The configuration file, through the public API.
//!
//! Fixtures: `bad/NAME.yaml` yields exactly the lines of `bad/NAME.expected`; `good/NAME.yaml` is
//! described exactly as in `good/NAME.expected`. Adding a case is adding two files.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod defaults;
mod examples;
mod fixtures;
mod flags;
mod hostile;
mod lines;
mod manifests;
mod promises;
mod schema;

use std::path::{Path, PathBuf};

use sgl_edge::config::{Config, ConfigErrors, parse};

/// The smallest file that is right.
pub(crate) const MINIMAL: &str = "models:\n  - id: m\n    engines: {static: [{id: E1, url: \"http://127.0.0.1:30001\", role: plain}]}\n";

/// A path inside the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Files of a directory with the extension, sorted; at least one.
pub(crate) fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository(directory)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    assert!(!files.is_empty(), "{directory} has no .{extension}");
    files
}

/// A path for a file that a test writes; `name` is used by that test alone.
pub(crate) fn only_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Parses a file under its bare name, as the `.expected` files name it.
pub(crate) fn parse_file(path: &Path) -> Result<Config, ConfigErrors> {
    let name = path.file_name().unwrap().to_str().unwrap();
    parse(&std::fs::read_to_string(path).unwrap(), name)
}

/// The only problem of a text, as printed.
pub(crate) fn only_problem(text: &str) -> String {
    let errors = parse(text, "t").unwrap_err();
    assert_eq!(errors.iter().count(), 1, "{errors}");
    errors.to_string()
}
