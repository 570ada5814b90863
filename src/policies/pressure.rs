//! Pure comparison of two engines for one stage; lower pressure is better.
//!
//! If both engines have a native report, report keys decide and in-flight breaks the tie; if
//! either lacks one, both are compared by in-flight alone, never one engine's gauge against the
//! other's counter. There is no tie-break by id: equal stays equal.
//!
//! This is not a total order over three or more engines (estimates may be missing for some), so it
//! must never be handed to a sort. Source: design §4, policy-semantics §8.

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

    /// Whether its report has what a comparison by reports needs.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.native().is_some()
    }

    fn native(&self) -> Option<(&'a EngineLoad, &'a NativeLoad)> {
        let report = self.report?;
        Some((report, report.native.as_ref()?))
    }
}

/// Orders two engines by pressure for `stage`: `Less` means `left` is the better choice.
///
/// Keys, plain and prefill: estimated queue ms (if both have it), waiting uncached tokens, waiting
/// requests, running requests, in-flight. Decode: waiting, running, KV fraction
/// (`used_l * capacity_r` against `used_r * capacity_l`, exact), used KV tokens, in-flight.
#[must_use]
pub fn compare(stage: Stage, left: &Pressure<'_>, right: &Pressure<'_>) -> Ordering {
    let reported = match (left.native(), right.native()) {
        (Some(left), Some(right)) => match stage {
            Stage::Plain | Stage::Prefill => compare_prefill(left, right),
            Stage::Decode => compare_decode(left.0, right.0),
        },
        _ => Ordering::Equal,
    };
    reported.then(left.inflight.cmp(&right.inflight))
}

fn compare_prefill(
    (left, left_native): (&EngineLoad, &NativeLoad),
    (right, right_native): (&EngineLoad, &NativeLoad),
) -> Ordering {
    let estimated = match (
        left_native.estimated_prefill_queue_ms,
        right_native.estimated_prefill_queue_ms,
    ) {
        (Some(left), Some(right)) => left.total_cmp(&right),
        _ => Ordering::Equal,
    };
    estimated
        .then(
            left_native
                .waiting_uncached_tokens
                .cmp(&right_native.waiting_uncached_tokens),
        )
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
