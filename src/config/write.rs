//! Configuration text from a value, for programs that make a file rather than read one.

use serde::Serialize;

/// YAML of `value`.
///
/// # Panics
/// Never for JSON-like values: strings, numbers, lists and maps with string keys.
#[must_use]
pub fn to_yaml(value: &impl Serialize) -> String {
    serde_yaml::to_string(value).expect("JSON-like values are YAML")
}
