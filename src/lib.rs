//! sgl-edge: an edge proxy that picks the inference engine for every chat request.
//!
//! ```text
//!   ids                       names of things; knows nothing
//!   kv                        how engines name and announce cached blocks; knows nothing
//!   series                    counters by labels; knows nothing
//!   recent                    a memory of bounded size; knows nothing
//!    |---- workers            who exists, and who is well
//!    |---- state              what was observed: loads (bindings and prefixes to come)
//!    |        |---- feeds   what engines publish, turned into state
//!    |        |
//!    '---- policies           which engine of these
//!             |---- buckets   which group of engines
//!             |---- config    what the operator wrote, checked
//!             |
//!   tokenizer + all above --- server      one request: prepare, try buckets, map errors
//!                               |
//!                             proxy       the only code that speaks Pingora
//!                               |
//!                             main
//!
//!   mock                      engines without a model, for demo and tests; knows none of the above
//! ```

pub mod buckets;
pub mod config;
pub mod demo;
pub mod feeds;
pub mod ids;
pub mod indexer;
pub mod kv;
pub mod logging;
pub mod mock;
pub mod policies;
pub mod proxy;
pub mod recent;
pub mod series;
pub mod server;
pub mod state;
pub mod tokenizer;
pub mod workers;
