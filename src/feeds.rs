//! What engines publish over ZMQ, received: load reports and KV events.
//!
//! ```text
//!   zmtp ---- bytes to messages and back, bounded; no sockets
//!   zmq  ---- a subscription that reconnects for ever; a request with many replies
//! ```
//!
//! The router only ever connects, and only to addresses that an engine or the file named. Nothing
//! here decides anything: a feed turns bytes into state and says how well it is doing.

pub mod zmq;
mod zmtp;
