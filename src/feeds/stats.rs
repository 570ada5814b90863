//! What came over the feeds, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::feeds::load_stat::Malformed;

/// Counters of one process; read at scrape time.
#[derive(Debug, Default)]
pub struct FeedStats {
    reports: AtomicU64,
    malformed: AtomicU64,
    unexpected: AtomicU64,
    lost: AtomicU64,
}

/// What became of a load report; the closed set of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Taken in.
    Accepted,
    /// Not a report.
    Malformed,
    /// Of a rank that the engine does not advertise.
    UnexpectedRank,
}

impl FeedStats {
    /// Books one load report.
    pub fn report(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Accepted => &self.reports,
            Outcome::Malformed => &self.malformed,
            Outcome::UnexpectedRank => &self.unexpected,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Books what was read of a frame or an answer.
    pub(crate) fn refused(&self, engine: &crate::ids::WorkerId, reason: Malformed) {
        self.report(Outcome::Malformed);
        tracing::debug!(%engine, %reason, "load report dropped");
    }

    /// Books a connection that ended, or could not be made.
    pub fn connection_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Load reports by label.
    #[must_use]
    pub fn reports(&self) -> [(&'static str, u64); 3] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("accepted", read(&self.reports)),
            ("malformed", read(&self.malformed)),
            ("unexpected_rank", read(&self.unexpected)),
        ]
    }

    /// Connections to publishers that ended or could not be made.
    #[must_use]
    pub fn connections_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
