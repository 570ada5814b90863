//! What was observed: engine reports, affinity bindings, and which engine holds which prefix.
//!
//! State knows ids and numbers. It knows no policy, no bucket and no HTTP.

mod affinity;
mod engine_load;
mod load_table;
pub mod prefix;

pub use affinity::{
    AffinityKind, AffinityScope, AffinityStore, AffinityStores, AffinityTimes, Binding, MAX_BYTES,
};
pub use engine_load::{EngineLoad, NativeLoad, NativeReport, RankLoad, Report};
pub use load_table::{EngineLoadTable, FRESHNESS, LoadSnapshot, LoadWriter};
