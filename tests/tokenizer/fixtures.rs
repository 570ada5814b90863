//! Reference data and how to compare with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use chrono::NaiveDateTime;
use serde_json::Value;
use sgl_edge::tokenizer::{Tokenizer, TokenizerError};

use crate::sha256;

/// The shipped tokenizer, loaded once: 11 MB of JSON. As it is seconds after its start.
pub(crate) static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
    let tokenizer = Tokenizer::load(&demo_dir()).expect("the shipped tokenizer loads");
    tokenizer.settle();
    tokenizer
});

pub(crate) fn demo_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo")
}

/// The golden headers' `now`.
pub(crate) fn golden_now() -> NaiveDateTime {
    NaiveDateTime::parse_from_str("2025-07-26T12:34:56", "%Y-%m-%dT%H:%M:%S").expect("a date")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizer")
        .join(name)
}

pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(fixture(name)).expect("fixture is readable")
}

/// The lines of a JSONL fixture, header included.
pub(crate) fn lines(name: &str) -> Vec<Value> {
    text(name)
        .lines()
        .map(|line| serde_json::from_str(line).expect("fixture line is JSON"))
        .collect()
}

/// Request bodies by case name.
pub(crate) fn cases() -> BTreeMap<String, Vec<u8>> {
    lines("cases.jsonl")
        .iter()
        .map(|case| (name(case, "id"), case["request"].to_string().into_bytes()))
        .collect()
}

pub(crate) fn name(line: &Value, key: &str) -> String {
    line[key].as_str().expect("name").to_owned()
}

/// Whether ids equal a golden `{count, sha256, ids?}`.
pub(crate) fn same_ids(ids: &[u32], golden: &Value) -> bool {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let listed = golden["ids"].as_array();
    golden["count"] == ids.len()
        && golden["sha256"] == sha256::hex(&bytes)
        && listed.is_none_or(|listed| listed.iter().eq(ids.iter()))
}

/// Whether text equals a golden `{text}` or `{chars, text_sha256}`.
pub(crate) fn same_text(text: &str, golden: &Value) -> bool {
    match golden["text"].as_str() {
        Some(golden) => golden == text,
        None => {
            golden["chars"] == text.chars().count()
                && golden["text_sha256"] == sha256::hex(text.as_bytes())
        }
    }
}

/// Compares what fails with what is known to fail; names what is new and what is mended.
pub(crate) fn assert_exactly(failing: &[String], known: &[&str], what: &str) {
    let new: Vec<_> = failing
        .iter()
        .filter(|f| !known.contains(&f.as_str()))
        .collect();
    let mended: Vec<_> = known
        .iter()
        .filter(|k| !failing.iter().any(|f| f == *k))
        .collect();
    assert!(
        new.is_empty() && mended.is_empty(),
        "{what}\n  newly failing: {new:#?}\n  listed but passing: {mended:#?}"
    );
}

/// A directory of its own for one test, removed afterwards.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn with(test: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("sgl-edge-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary directory");
        for (name, content) in files {
            fs::write(path.join(name), content).expect("temporary file");
        }
        Self(path)
    }

    pub(crate) fn load(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::load(&self.0)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
