//! The meeting of a prefill and a decode engine (engine-wire §3).
//!
//! Decode finds its prefill only through the three bootstrap fields of the request body, over
//! HTTP on the prefill's bootstrap port. Engines of one process and of several meet in the same
//! way, and a wrong host, port or room fails as it would in a real fleet: by waiting.
//!
//! No KV bytes move. What is kept is the order of things: decode generates only after prefill
//! has computed, prefill replies only after decode has come for the cache.

mod bootstrap;
mod fetch;
mod rooms;

pub(crate) use bootstrap::router;
pub(crate) use fetch::fetch_kv;
pub(crate) use rooms::Rooms;

/// Bootstrap host that stands for "no transfer", used by an engine's own probes.
pub(crate) const FAKE_HOST: &str = "2.2.2.2";
