//! The shape of a configuration file as JSON Schema, for editors that complete and check.
//!
//! Says names, types and ranges of single values; what must hold between values is said by the
//! parser alone. A test holds its keys against the parser's, map by map.

/// The JSON Schema (draft 2020-12) of the configuration file.
#[must_use]
pub const fn schema() -> &'static str {
    include_str!("schema.json")
}
