//! Selection through the public API, without sockets: design §2 to §6, policy-semantics §3 to §15 and §19.
//!
//! One file per section. A test is named after the rule it holds; random loops print their seed,
//! and `SGL_EDGE_SEED=N` repeats one.

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod admission_placement;
mod affinity_routing;
mod affinity_store;
mod answers;
mod bucket_loop;
mod bucket_loop_worked;
mod buckets;
mod cache_aware;
mod counting;
mod dispatch;
mod explain;
mod explain_model;
mod forwarding;
mod groups;
mod groups_follow;
mod groups_health;
mod least_load;
mod power_of_two;
mod preparation;
mod pressure;
mod pressure_extremes;
mod pressure_sets;
mod queueing;
mod resolver;
mod resolver_model;
mod rotation;
mod sessions;
mod slo;
mod snapshots;
