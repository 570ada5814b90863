//! What was observed: engine reports today, bindings and prefixes later.
//!
//! State knows ids and numbers. It knows no policy, no bucket and no HTTP.

mod load_table;

pub use load_table::{EngineLoad, EngineLoadTable, FRESHNESS, LoadSnapshot, NativeLoad};
