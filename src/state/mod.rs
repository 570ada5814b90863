//! What was observed: engine reports and affinity bindings, prefixes later.
//!
//! State knows ids and numbers. It knows no policy, no bucket and no HTTP.

mod affinity;
mod load_table;

pub use affinity::{
    AffinityKind, AffinityScope, AffinityStore, AffinityStores, AffinityTimes, Binding, MAX_BYTES,
};
pub use load_table::{EngineLoad, EngineLoadTable, FRESHNESS, LoadSnapshot, NativeLoad};
