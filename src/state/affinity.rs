//! Which engine a key was last given: scoped bindings with idle expiry and a memory bound.
//!
//! A store is a map from scope to (engine, last use). It knows ids and no engine: whether a bound
//! engine is still a candidate is the caller's closure, asked under the lock of one shard, so that
//! keeping or replacing a binding is one step. It never decides that a binding is worth keeping or
//! replacing (policies do), never counts as a dispatch, and is never shared with another replica
//! or kept over a restart. Expiry is by sweep only: until a sweep comes, a lookup revives.
//! Source: design §6 "Affinity state", policy-semantics §13.

mod store;
mod stores;

pub use store::{AffinityScope, AffinityStore, Binding, MAX_BYTES};
pub use stores::{AffinityKind, AffinityStores, AffinityTimes};
