//! A faithful SGLang engine without a model.
//!
//! Speaks the part of the engine's wire that a router sees (engine-wire §3, §4, §7): chat as JSON
//! and as server-sent events with the headers held back until the first token, server info,
//! health, loads, the PD rendezvous, abort; and breaks on request in every way a router has to
//! survive ([`Faults`]). The demo runs it in process, the tests of the proxy assert on what it
//! saw, and the `mock-engine` binary puts it on a network.
//!
//! It refuses to be clever: the answer is the last user message, a token is a word, and nothing
//! is random but request ids. Its prefix cache is real: pages are stored and evicted, announced
//! over ZMQ, and a request pays for what is not there. Load reports go over ZMQ when told to.
//!
//! ```text
//!   engine ---- start, routes, shutdown
//!     |-- listener, conn    sockets that can be refused, closed, reset
//!     |-- chat              one request: request -> job (reply) -> answer (shape)
//!     |     '-- live, load  ids that can be aborted; queue and running requests
//!     |-- kv                prefix cache, KV events, replay
//!     |-- indexer           a remote prefix indexer that engines of this process fill
//!     |-- pd                rooms, bootstrap server, decode's fetch
//!     |-- info, loads       what an engine says of itself
//!     |-- publish           load reports over ZMQ
//!     '-- control           /mock/...: faults, stats, record
//! ```

mod chat;
mod config;
mod conn;
mod control;
mod engine;
mod error;
mod faults;
mod indexer;
mod info;
mod kv;
mod listener;
mod live;
mod load;
mod loads;
mod pd;
mod publish;
mod record;
mod stats;

#[cfg(test)]
mod tests;

pub use config::{EngineConfig, Role, parse_duration};
pub use engine::{Engine, start};
pub use faults::{Faults, FaultsHandle, Replay};
pub use indexer::{Indexer, IndexerHandle};
pub use kv::{Events, MockTokenizer, PageCache};
pub use record::{Framing, RecordedRequest, fnv64};
pub use stats::{Bootstrap, Stats};
