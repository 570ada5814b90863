//! What this router has dispatched to one engine and not seen the end of.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The counters of one engine. Shared by every handle of the engine at one address.
#[derive(Debug, Default)]
pub(super) struct Inflight {
    requests: AtomicU64,
    tokens: AtomicU64,
    /// Tells guards of one moment apart.
    next: AtomicU64,
    /// When each held guard was taken. A lock per engine, held for one insertion or removal.
    held: Mutex<BTreeSet<(Instant, u64)>>,
    /// Assumed to have been dispatched since any report; nothing but an explanation assumes.
    assumed: AtomicU64,
}

impl Inflight {
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// How many of the held guards were taken at `since` or later.
    pub(super) fn since(&self, since: Instant) -> u64 {
        // Most engines hold nothing of ours, or nothing new.
        if self.requests() == 0 {
            return 0;
        }
        let held = self.held.lock().range((since, 0)..).count() as u64;
        held.saturating_add(self.assumed.load(Ordering::Relaxed))
    }

    pub(super) fn assume(&self, requests: u64, recent: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.assumed.fetch_add(recent, Ordering::Relaxed);
    }

    pub(super) fn acquire(self: &Arc<Self>, input_tokens: u64, at: Instant) -> InflightGuard {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.held.lock().insert((at, number));
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(input_tokens, Ordering::Relaxed);
        InflightGuard {
            counter: Arc::clone(self),
            input_tokens,
            taken: (at, number),
        }
    }
}

/// One request's place in an engine's in-flight count. Holds the counter, not the engine, so a
/// guard outlives a reload harmlessly.
#[derive(Debug)]
#[must_use = "dropping the guard ends the count"]
pub struct InflightGuard {
    counter: Arc<Inflight>,
    input_tokens: u64,
    taken: (Instant, u64),
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.counter.held.lock().remove(&self.taken);
        self.counter.requests.fetch_sub(1, Ordering::Relaxed);
        self.counter
            .tokens
            .fetch_sub(self.input_tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn held_guards_count_from_their_moment_on_inclusive() {
        let counter = Arc::new(Inflight::default());
        let captured = Instant::now();
        let milli = Duration::from_millis(1);
        let before = counter.acquire(1, captured - milli);
        let exactly = counter.acquire(1, captured);
        let same_moment = counter.acquire(1, captured);
        let after = counter.acquire(1, captured + milli);
        assert_eq!((counter.requests(), counter.since(captured)), (4, 3));
        drop(same_moment);
        assert_eq!((counter.requests(), counter.since(captured)), (3, 2));
        assert_eq!(counter.since(captured + milli), 1);
        drop((before, exactly, after));
        assert_eq!((counter.requests(), counter.tokens()), (0, 0));
        assert_eq!(counter.since(captured - milli), 0);
    }
}
