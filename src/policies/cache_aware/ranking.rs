//! Orders of prefix holders: by work left, by pressure, and the tournament that trades one for the
//! other. Every order is total: pressure is read from one source for the whole set.
//! Source: policy-semantics §16 steps 4, 6 and 7.

use std::cmp::Ordering;

use super::CacheCounters;
use super::hits::Hit;
use super::params::CacheAwareParams;
use crate::ids::Stage;
use crate::policies::pressure::{Pressure, Source};
use crate::state::LoadSnapshot;

/// Prefill pressure decides for plain groups too: what a holder saves is prefill.
const STAGE: Stage = Stage::Prefill;

struct Pressures<'s> {
    source: Source,
    snapshot: &'s LoadSnapshot,
}

impl<'s> Pressures<'s> {
    fn of(set: &[Hit<'_>], snapshot: &'s LoadSnapshot) -> Self {
        let members = set
            .iter()
            .map(|hit| Pressure::observe(hit.engine, snapshot));
        let members: Vec<_> = members.collect();
        Self {
            source: Source::of(STAGE, &members),
            snapshot,
        }
    }

    fn compare(&self, left: &Hit<'_>, right: &Hit<'_>) -> Ordering {
        let read = |hit: &Hit<'_>| Pressure::observe(hit.engine, self.snapshot);
        let by_pressure = self.source.compare(STAGE, &read(left), &read(right));
        by_pressure.then_with(|| left.engine.id().cmp(right.engine.id()))
    }
}

/// Orders hits by uncached tokens, pressure, id. Source: step 4.
pub(super) fn by_work(hits: &mut [Hit<'_>], snapshot: &LoadSnapshot) {
    // In-flight counts move while a sort runs; a key read once keeps the order total.
    let pressures = Pressures::of(hits, snapshot);
    let source = pressures.source;
    let mut keyed: Vec<_> = hits
        .iter()
        .map(|hit| (*hit, Pressure::observe(hit.engine, snapshot)))
        .collect();
    keyed.sort_by(|(left, left_pressure), (right, right_pressure)| {
        left.uncached
            .cmp(&right.uncached)
            .then_with(|| source.compare(STAGE, left_pressure, right_pressure))
            .then_with(|| left.engine.id().cmp(right.engine.id()))
    });
    for (place, (hit, _)) in hits.iter_mut().zip(keyed) {
        *place = hit;
    }
}

/// The admitted hit under the least pressure, then by id; pressure over all of `gated`.
pub(super) fn least_pressure<'e>(
    gated: &[Hit<'e>],
    admitted: &[Hit<'e>],
    snapshot: &LoadSnapshot,
) -> Option<Hit<'e>> {
    let pressures = Pressures::of(gated, snapshot);
    let better = |left: Hit<'e>, right: Hit<'e>| match pressures.compare(&left, &right) {
        Ordering::Greater => right,
        Ordering::Less | Ordering::Equal => left,
    };
    admitted.iter().copied().reduce(better)
}

/// Step 6: least uncached work, unless a holder within the margin is under far less pressure.
///
/// * `evaluated`: the set over which pressure is read, admitted or not.
/// * `admitted`: the contestants, by uncached tokens.
pub(super) fn tournament<'e>(
    params: &CacheAwareParams,
    evaluated: &[Hit<'e>],
    admitted: &[Hit<'e>],
    snapshot: &LoadSnapshot,
    counters: Option<&CacheCounters>,
) -> Option<Hit<'e>> {
    let pressures = Pressures::of(evaluated, snapshot);
    if let Some(counters) = counters {
        counters.compared_by(pressures.source);
    }
    let native = |hit: &Hit<'_>| Pressure::observe(hit.engine, snapshot).is_native();
    let guard = params.pressure_guard && evaluated.iter().all(native);
    let (least, others) = admitted.split_first()?;
    let ceiling = least.uncached.saturating_add(params.switch_margin_tokens);
    let mut winner = *least;
    for rival in others.iter().filter(|hit| hit.uncached <= ceiling) {
        let by_work = winner
            .uncached
            .cmp(&rival.uncached)
            .then_with(|| pressures.compare(&winner, rival));
        let near = winner.uncached.abs_diff(rival.uncached) <= params.switch_margin_tokens;
        let guarded = (guard && near).then(|| materially(params, &winner, rival, snapshot));
        let order = guarded.flatten().unwrap_or(by_work);
        if let (Some(_), Some(counters)) = (guarded, counters) {
            counters.guard_compared.inc();
            counters.guard_overrode.inc_by(u64::from(order != by_work));
        }
        if order == Ordering::Greater {
            winner = *rival;
        }
    }
    Some(winner)
}

/// Which of two is under materially more pressure; `None` when neither is.
fn materially(
    params: &CacheAwareParams,
    left: &Hit<'_>,
    right: &Hit<'_>,
    snapshot: &LoadSnapshot,
) -> Option<Ordering> {
    let native = |hit: &Hit<'_>| snapshot.get(hit.engine.id())?.native.as_ref();
    let (left, right) = (native(left)?, native(right)?);
    let estimates = params.pressure_abs_threshold_ms.zip(
        left.estimated_prefill_queue_ms
            .zip(right.estimated_prefill_queue_ms),
    );
    let (more, less) = match estimates {
        Some((least, (x, y))) => {
            let factor = params.pressure_rel_threshold;
            let above = |x: f64, y: f64| x - y > least && x > y * factor;
            (above(x, y), above(y, x))
        }
        None => {
            let (x, y) = (left.waiting_uncached_tokens, right.waiting_uncached_tokens);
            (more_tokens(params, x, y), more_tokens(params, y, x))
        }
    };
    match (more, less) {
        (true, _) => Some(Ordering::Greater),
        (false, true) => Some(Ordering::Less),
        (false, false) => None,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "queues are far below 2^53 tokens"
)]
fn more_tokens(params: &CacheAwareParams, x: u64, y: u64) -> bool {
    x.saturating_sub(y) > params.pressure_abs_threshold_tokens
        && x as f64 > y as f64 * params.pressure_rel_threshold
}
