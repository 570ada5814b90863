//! What engines publish over ZMQ, received: load reports and KV events.
//!
//! ```text
//!   zmtp ---------- bytes to messages and back, bounded; no sockets
//!   zmq ----------- a subscription that reconnects for ever; a request with many replies
//!   load_stat ----- a load report, over ZMQ or HTTP
//!   loads --------- the load feeds of a fleet, and the thread that reads them
//!   thread -------- keeps them in step with the fleet, off the threads that serve requests
//!   kv_events ----- who stores and evicts which blocks, into the prefix index
//! ```
//!
//! The router only ever connects, and only to addresses that an engine or the file named. Nothing
//! here decides anything: a feed turns bytes into state and says how well it is doing.

pub mod kv_events;
pub mod load_stat;
mod loads;
mod stats;
mod thread;
pub mod zmq;
mod zmtp;

pub use loads::{LoadFeeds, Member};
pub use stats::{FeedStats, Outcome};
pub use thread::FeedThread;
