//! Reference data and how to compare with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value;
use sgl_edge::tokenizer::Tokenizer;

use crate::sha256;

/// The shipped tokenizer, loaded once: 11 MB of JSON.
pub(crate) static DEMO: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::load(&demo_dir()).expect("the shipped tokenizer loads"));

pub(crate) fn demo_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo")
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
