//! The last load report of each engine.
//!
//! A report older than [`FRESHNESS`] counts as absent, and absent is `None`, never zero. Nothing is
//! reserved or predicted here. Source: policy-semantics §7.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::ids::WorkerId;

/// Age up to which, inclusive, a report counts. Source: policy-semantics §7.
pub const FRESHNESS: Duration = Duration::from_secs(5);

/// One engine's report, summed over its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineLoad {
    /// Requests in the running batch.
    pub running_requests: u64,
    /// Requests in the waiting queue.
    pub waiting_requests: u64,
    /// KV tokens in use.
    pub used_tokens: u64,
    /// KV capacity, tokens.
    pub max_total_tokens: u64,
    /// The extension, when every rank sends it with valid capacities.
    pub native: Option<NativeLoad>,
    /// Local arrival time of the oldest rank's report.
    pub captured_at: Instant,
}

/// The extension of a report that newer engines send.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeLoad {
    /// Prompt tokens that wait for prefill, cache hits excluded.
    pub waiting_uncached_tokens: u64,
    /// KV tokens used plus those of queued requests.
    pub total_tokens: u64,
    /// The scheduler's limit on running requests.
    pub max_running_requests: u64,
    /// Time the waiting tokens need at the measured prefill rate, milliseconds.
    pub estimated_prefill_queue_ms: Option<f64>,
}

type Reports = HashMap<WorkerId, EngineLoad>;

/// Reports by engine, last value wins. Many readers, rare writers.
#[derive(Debug, Default)]
pub struct EngineLoadTable {
    reports: ArcSwap<Reports>,
}

impl EngineLoadTable {
    /// Stores the newest report of one engine.
    pub fn publish(&self, engine: &WorkerId, load: EngineLoad) {
        self.reports.rcu(|reports| {
            let mut next = Reports::clone(reports);
            next.insert(engine.clone(), load.clone());
            next
        });
    }

    /// Forgets one engine, so that a successor of the same id starts without a report.
    pub fn forget(&self, engine: &WorkerId) {
        if !self.reports.load().contains_key(engine) {
            return;
        }
        self.reports.rcu(|reports| {
            let mut next = Reports::clone(reports);
            next.remove(engine);
            next
        });
    }

    /// The reports as they are now; one pick uses one snapshot throughout.
    #[must_use]
    pub fn capture(&self) -> LoadSnapshot {
        let reports = self.reports.load();
        if reports.is_empty() {
            return LoadSnapshot { reports: None };
        }
        LoadSnapshot {
            reports: Some((Arc::clone(&reports), Instant::now())),
        }
    }
}

/// An immutable view of the table at one moment.
#[derive(Debug, Clone)]
pub struct LoadSnapshot {
    reports: Option<(Arc<Reports>, Instant)>,
}

impl LoadSnapshot {
    /// The engine's report, unless it is missing or stale.
    #[must_use]
    pub fn get(&self, engine: &WorkerId) -> Option<&EngineLoad> {
        let (reports, now) = self.reports.as_ref()?;
        reports
            .get(engine)
            .filter(|load| now.saturating_duration_since(load.captured_at) <= FRESHNESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(captured_at: Instant) -> EngineLoad {
        EngineLoad {
            running_requests: 0,
            waiting_requests: 0,
            used_tokens: 0,
            max_total_tokens: 1000,
            native: None,
            captured_at,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_fresh_at_exactly_five_seconds_and_absent_after() {
        let table = EngineLoadTable::default();
        let engine = WorkerId::from("e1");
        table.publish(&engine, idle(Instant::now()));
        tokio::time::advance(FRESHNESS).await;
        assert!(table.capture().get(&engine).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(table.capture().get(&engine).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_engine_has_no_report() {
        let table = EngineLoadTable::default();
        let engine = WorkerId::from("e1");
        table.publish(&engine, idle(Instant::now()));
        table.forget(&engine);
        assert!(table.capture().get(&engine).is_none());
    }
}
