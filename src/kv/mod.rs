//! What an engine and a router both know of the engine's KV cache: how blocks are named and how
//! changes are put on the wire.
//!
//! A leaf: it knows no engine, no index and no socket, so that the index, the event client and the
//! mock engine share one description. It believes nothing it decodes: sizes are bounded, unknown
//! names are kept apart from known ones. Source: engine-wire §1.

pub mod hash;
pub mod indexer;
pub mod wire;

pub use hash::{BlockFormat, BlockUnit, block_count, block_hashes};
pub use wire::{EventBatch, KvEvent, Medium, Tier, WireError};
