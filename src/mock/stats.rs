//! What an engine counts, and the guard that books every chat request exactly once.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Entries kept of each list in [`Stats`].
const KEPT: usize = 1000;

/// Counters of one engine since its start or the last reset. Chat requests only, where nothing
/// else is said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests whose head arrived.
    pub requests: u64,
    /// Requests for a stream.
    pub streams: u64,
    /// Answered to the end, an answer with `finish_reason: "abort"` included.
    pub completed: u64,
    /// Ended because the client went away, in whatever phase.
    pub aborted: u64,
    /// Refused, failed, or broken off by a fault.
    pub errors: u64,
    /// Requests held now.
    pub inflight: u64,
    /// Most requests held at once.
    pub max_inflight: u64,
    /// Connections accepted, for any route.
    pub connections_total: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Tokens produced, all choices.
    pub tokens_out: u64,
    /// How many tokens each aborted request had produced, oldest first, last 1000.
    pub aborted_after_tokens: Vec<u64>,
    /// `rid` of each `/abort_request` (`*` for `abort_all`), oldest first, last 1000.
    pub aborts_received: Vec<String>,
    /// Bootstrap fields as received, oldest first, last 1000.
    pub bootstrap: Vec<Bootstrap>,
    /// Rooms that arrived while the same room was live on this engine.
    pub room_collisions: u64,
    /// Requests with room 0.
    pub room_zero: u64,
    /// KV caches handed over (prefill) or received (decode).
    pub kv_transfers: u64,
}

/// The rendezvous fields of a request body (engine-wire §3.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Host of the prefill engine, as written.
    pub host: Option<String>,
    /// Port of its bootstrap server.
    pub port: Option<u16>,
    /// The room.
    pub room: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Aborted,
    Failed,
}

/// The live counters.
#[derive(Debug, Default)]
pub(crate) struct StatsTable(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    numbers: Stats,
    aborted_after_tokens: VecDeque<u64>,
    aborts_received: VecDeque<String>,
    bootstrap: VecDeque<Bootstrap>,
}

impl StatsTable {
    /// A chat request arrived. It counts as aborted unless the guard is told otherwise.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        let mut counters = self.0.lock();
        let numbers = &mut counters.numbers;
        numbers.requests += 1;
        numbers.inflight += 1;
        numbers.max_inflight = numbers.max_inflight.max(numbers.inflight);
        RequestGuard {
            stats: self.clone(),
            outcome: Outcome::Aborted,
            tokens: 0,
        }
    }

    /// Changes plain numbers.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.0.lock().numbers);
    }

    pub(crate) fn abort_received(&self, rid: String) {
        push(&mut self.0.lock().aborts_received, rid);
    }

    pub(crate) fn bootstrap_received(&self, bootstrap: Bootstrap) {
        let mut counters = self.0.lock();
        counters.numbers.room_zero += u64::from(bootstrap.room == 0);
        push(&mut counters.bootstrap, bootstrap);
    }

    /// A copy; the connection counts are filled in by the engine.
    pub(crate) fn snapshot(&self) -> Stats {
        let counters = self.0.lock();
        let mut stats = counters.numbers.clone();
        stats.aborted_after_tokens = counters.aborted_after_tokens.iter().copied().collect();
        stats.aborts_received = counters.aborts_received.iter().cloned().collect();
        stats.bootstrap = counters.bootstrap.iter().cloned().collect();
        stats
    }

    /// Back to zero, save for what is in flight.
    pub(crate) fn reset(&self) {
        let mut counters = self.0.lock();
        let inflight = counters.numbers.inflight;
        *counters = Counters::default();
        counters.numbers.inflight = inflight;
        counters.numbers.max_inflight = inflight;
    }
}

fn push<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() == KEPT {
        list.pop_front();
    }
    list.push_back(entry);
}

/// Books one chat request when dropped, wherever that happens.
#[derive(Debug)]
#[must_use = "the request is booked when this is dropped"]
pub(crate) struct RequestGuard {
    stats: Arc<StatsTable>,
    outcome: Outcome,
    tokens: u64,
}

impl RequestGuard {
    /// The outcome to be booked from now on.
    pub(crate) fn set(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Tokens were produced.
    pub(crate) fn add_tokens(&mut self, tokens: u64) {
        self.tokens += tokens;
        self.stats.count(|stats| stats.tokens_out += tokens);
    }

    /// Tokens produced so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut counters = self.stats.0.lock();
        let numbers = &mut counters.numbers;
        numbers.inflight -= 1;
        match self.outcome {
            Outcome::Completed => numbers.completed += 1,
            Outcome::Failed => numbers.errors += 1,
            Outcome::Aborted => {
                numbers.aborted += 1;
                push(&mut counters.aborted_after_tokens, self.tokens);
            }
        }
    }
}
