//! Pure comparison of engines for one stage; lower pressure is better.
//!
//! One source decides for all engines that are compared: their reports where every one of them has
//! a native one, in-flight for all of them otherwise, never one engine's gauge against another's
//! counter. There is no tie-break by id: equal stays equal.
//!
//! [`compare`] is the rule for two. It is not a total order over three or more (estimates may be
//! missing for some), so sets use [`Source::of`] once and [`Source::compare`], which is one.
//! Source: design §4, policy-semantics §8.

use std::cmp::Ordering;

use crate::ids::Stage;
use crate::state::{EngineLoad, LoadSnapshot, NativeLoad};
use crate::workers::Worker;

/// What is compared of one engine.
#[derive(Debug, Clone, Copy)]
pub struct Pressure<'a> {
    /// Its fresh, complete report, if there is one.
    pub report: Option<&'a EngineLoad>,
    /// Requests this router holds on it.
    pub inflight: u64,
}

impl<'a> Pressure<'a> {
    /// Reads `engine` from a captured snapshot and its live counter.
    #[must_use]
    pub fn observe(engine: &Worker, snapshot: &'a LoadSnapshot) -> Self {
        Self {
            report: snapshot.get(engine.id()),
            inflight: engine.inflight(),
        }
    }

    /// Whether it has a native report with a valid capacity.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.native().is_some()
    }

    fn native(&self) -> Option<(&'a EngineLoad, &'a NativeLoad)> {
        let report = self.report.filter(|report| report.max_total_tokens > 0)?;
        Some((report, report.native.as_ref()?))
    }

    fn estimate(&self) -> Option<f64> {
        self.native()?.1.estimated_prefill_queue_ms
    }
}

/// What a set of engines is compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Estimated prefill queue time first, then as [`Self::Tokens`].
    Millis,
    /// The reported counts of the stage.
    Tokens,
    /// Requests this router holds.
    Inflight,
}

impl Source {
    /// All of them, finest first.
    pub const ALL: [Self; 3] = [Self::Millis, Self::Tokens, Self::Inflight];

    /// Metric label. Source: policy-semantics §22, `cache_monitor_decisions_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Millis => "estimated_prefill_queue_ms",
            Self::Tokens => "native_queue_tokens",
            Self::Inflight => "router_local",
        }
    }

    /// The best source that every one of `engines` has for `stage`.
    ///
    /// In-flight if any lacks a native report; else counts if any lacks an estimate, or the stage
    /// is decode; else the estimate. Source: policy-semantics §8, last paragraph.
    #[must_use]
    pub fn of<'a>(stage: Stage, engines: impl IntoIterator<Item = &'a Pressure<'a>>) -> Self {
        let mut source = match stage {
            Stage::Plain | Stage::Prefill => Self::Millis,
            Stage::Decode => Self::Tokens,
        };
        for engine in engines {
            if !engine.is_native() {
                return Self::Inflight;
            }
            if engine.estimate().is_none() {
                source = Self::Tokens;
            }
        }
        source
    }

    /// Orders two engines of the set that `self` was chosen for: `Less` means `left` is the better
    /// choice. A total preorder over that set.
    ///
    /// Keys, plain and prefill: estimated queue ms (source [`Self::Millis`] only), waiting uncached
    /// tokens, waiting requests, running requests, in-flight. Decode: waiting, running, KV fraction
    /// (`used_l * capacity_r` against `used_r * capacity_l`, exact), used KV tokens, in-flight.
    #[must_use]
    pub fn compare(self, stage: Stage, left: &Pressure<'_>, right: &Pressure<'_>) -> Ordering {
        let estimated = match (self, left.estimate(), right.estimate()) {
            (Self::Millis, Some(left), Some(right)) => left.total_cmp(&right),
            _ => Ordering::Equal,
        };
        let counted = match (self, left.native(), right.native()) {
            (Self::Inflight, _, _) => Ordering::Equal,
            (_, Some(left), Some(right)) => match stage {
                Stage::Plain | Stage::Prefill => compare_prefill(left, right),
                Stage::Decode => compare_decode(left.0, right.0),
            },
            _ => Ordering::Equal,
        };
        estimated
            .then(counted)
            .then(left.inflight.cmp(&right.inflight))
    }
}

/// Orders two engines by pressure for `stage`: `Less` means `left` is the better choice.
#[must_use]
pub fn compare(stage: Stage, left: &Pressure<'_>, right: &Pressure<'_>) -> Ordering {
    Source::of(stage, [left, right]).compare(stage, left, right)
}

fn compare_prefill(
    (left, left_native): (&EngineLoad, &NativeLoad),
    (right, right_native): (&EngineLoad, &NativeLoad),
) -> Ordering {
    left_native
        .waiting_uncached_tokens
        .cmp(&right_native.waiting_uncached_tokens)
        .then(left.waiting_requests.cmp(&right.waiting_requests))
        .then(left.running_requests.cmp(&right.running_requests))
}

fn compare_decode(left: &EngineLoad, right: &EngineLoad) -> Ordering {
    let fraction = |used: u64, other_capacity: u64| u128::from(used) * u128::from(other_capacity);
    left.waiting_requests
        .cmp(&right.waiting_requests)
        .then(left.running_requests.cmp(&right.running_requests))
        .then(
            fraction(left.used_tokens, right.max_total_tokens)
                .cmp(&fraction(right.used_tokens, left.max_total_tokens)),
        )
        .then(left.used_tokens.cmp(&right.used_tokens))
}
