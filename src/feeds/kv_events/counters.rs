//! What happened on event streams: counters of the process, and the state of each rank.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts};
use tokio::time::Instant;

use crate::state::prefix::Applied;

/// Counters over all streams.
#[derive(Debug, Clone)]
pub struct KvEventCounters {
    events: IntCounterVec,
    lost: IntCounter,
}

/// Values of the label `kind`. Blocks: `stored` to `no_room`. Events: `cleared` to
/// `unknown_medium`. Messages: `batch` to `malformed`. Streams: `restart`, `format_refused`.
const KINDS: [&str; 15] = [
    "stored",
    "removed",
    "unknown_removal",
    "no_room",
    "cleared",
    "wrong_block_size",
    "unknown_event",
    "unknown_medium",
    "batch",
    "replayed",
    "repeated",
    "malformed",
    "restart",
    "replay_failed",
    "format_refused",
];

impl Default for KvEventCounters {
    fn default() -> Self {
        let options = Opts::new(
            "kv_events_total",
            "what came over the engines' event sockets",
        );
        let counters = Self {
            events: IntCounterVec::new(options, &["kind"]).expect("a valid name"),
            lost: IntCounter::new("kv_events_lost_total", "event messages lost for good")
                .expect("a valid name"),
        };
        for kind in KINDS {
            counters.add(kind, 0);
        }
        counters
    }
}

impl KvEventCounters {
    /// Everything, to be registered.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![Box::new(self.events.clone()), Box::new(self.lost.clone())]
    }

    pub(super) fn add(&self, kind: &'static str, count: u64) {
        self.events.with_label_values(&[kind]).inc_by(count);
    }

    pub(super) fn lost(&self, messages: u64) {
        self.lost.inc_by(messages);
    }

    pub(super) fn applied(&self, applied: &Applied) {
        let rows = [
            ("stored", applied.stored),
            ("removed", applied.removed),
            ("unknown_removal", applied.unknown_removals),
            ("no_room", applied.no_room),
            ("cleared", applied.clears),
            ("wrong_block_size", applied.wrong_sizes),
            ("unknown_event", applied.unknown_events),
            ("unknown_medium", applied.unknown_mediums),
        ];
        for (kind, count) in rows.into_iter().filter(|(_, count)| *count > 0) {
            self.add(kind, count);
        }
    }
}

/// How one rank's stream is doing; written by its task, read by `/admin/state`.
#[derive(Debug, Default)]
pub struct RankStatus {
    pub(super) connected: AtomicBool,
    pub(super) batches: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) restarts: AtomicU64,
    last: Mutex<Option<(Instant, u64)>>,
}

impl RankStatus {
    pub(super) fn heard(&self, sequence: u64) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        *self.last.lock() = Some((Instant::now(), sequence));
    }

    /// Whether the subscription is connected now.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Messages applied, gaps met, messages lost for good, restarts of the publisher seen.
    #[must_use]
    pub fn counts(&self) -> [u64; 4] {
        [&self.batches, &self.gaps, &self.lost, &self.restarts]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// When the last message was applied, and its number.
    #[must_use]
    pub fn last(&self) -> Option<(Instant, u64)> {
        *self.last.lock()
    }
}
