//! Steps 3 to 5: which engines hold enough, how many of them are looked at, and which of those the
//! soft gate holds back. Source: policy-semantics §16.

use std::sync::Arc;

use super::params::CacheAwareParams;
use super::ranking;
use crate::policies::PickRequest;
use crate::policies::explain::CacheHit;
use crate::state::LoadSnapshot;
use crate::state::prefix::{PrefixAnswer, PrefixMatches};
use crate::workers::Worker;

/// One engine that holds enough of the prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit<'e> {
    pub(super) engine: &'e Arc<Worker>,
    /// Blocks held from the start of the prompt.
    pub(super) blocks: u32,
    /// Tokens those stand for: a proportional estimate, because the last block may be short.
    pub(super) matched: u64,
    /// Tokens left to compute.
    pub(super) uncached: u64,
}

impl Hit<'_> {
    pub(super) fn shown(&self) -> CacheHit {
        CacheHit {
            engine: self.engine.id().clone(),
            blocks: self.blocks,
            matched_tokens: self.matched,
            uncached_tokens: self.uncached,
        }
    }
}

/// All hits in their order; the first `kept` survive the candidate bound.
#[derive(Debug, Default)]
pub(super) struct Hits<'e> {
    pub(super) all: Vec<Hit<'e>>,
    pub(super) kept: usize,
}

impl<'e> Hits<'e> {
    pub(super) fn kept(&self) -> &[Hit<'e>] {
        &self.all[..self.kept]
    }
}

/// Steps 3 and 4.
pub(super) fn kept<'e>(
    params: &CacheAwareParams,
    engines: &'e [Arc<Worker>],
    request: &PickRequest<'_>,
    answer: &PrefixAnswer,
    snapshot: &LoadSnapshot,
) -> Hits<'e> {
    let PrefixAnswer::Matches(matches) = answer else {
        return Hits::default();
    };
    let hit = |engine| hit(params, engine, request.input_tokens, matches);
    let mut all: Vec<Hit<'e>> = engines.iter().filter_map(hit).collect();
    ranking::by_work(&mut all, snapshot);
    let kept = params.candidates(engines.len()).min(all.len());
    Hits { all, kept }
}

fn hit<'e>(
    params: &CacheAwareParams,
    engine: &'e Arc<Worker>,
    input: u64,
    matches: &PrefixMatches,
) -> Option<Hit<'e>> {
    let blocks = matches.blocks(engine.origin());
    if blocks == 0 {
        return None;
    }
    let product = u128::from(input) * u128::from(blocks);
    let matched = product / u128::from(matches.query_blocks().max(1));
    let matched = u64::try_from(matched).unwrap_or(input).min(input);
    let deep = params
        .min_matched_tokens
        .is_none_or(|floor| matched >= floor);
    let wide = params
        .min_match_ratio
        .is_none_or(|floor| ratio(matched, input) >= floor);
    (deep && wide).then_some(Hit {
        engine,
        blocks,
        matched,
        uncached: input - matched,
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "prompts are far below 2^53 tokens"
)]
fn ratio(matched: u64, input: u64) -> f64 {
    matched as f64 / input.max(1) as f64
}

/// The kept hits on both sides of the soft queue gate.
#[derive(Debug, Default)]
pub(super) struct Gate<'e> {
    /// To be hard-checked.
    pub(super) evaluated: Vec<Hit<'e>>,
    /// Held back.
    pub(super) gated: Vec<Hit<'e>>,
    /// Whether the whole group is at the limit, so that nobody is held back after all.
    pub(super) saturated: bool,
}

/// Reported waiting requests; `None` without a fresh report.
fn waiting(engine: &Worker, snapshot: &LoadSnapshot) -> Option<u64> {
    snapshot
        .get(engine.id())
        .map(|report| report.waiting_requests)
}

impl<'e> Gate<'e> {
    /// Step 5.
    pub(super) fn new(
        params: &CacheAwareParams,
        engines: &[Arc<Worker>],
        kept: &[Hit<'e>],
        snapshot: &LoadSnapshot,
    ) -> Self {
        let full = |engine: &Worker| is_full(params, engine, snapshot);
        let (gated, evaluated): (Vec<_>, Vec<_>) = kept.iter().partition(|hit| full(hit.engine));
        let whole_group = params.saturation_queue_floor.is_none()
            && evaluated.is_empty()
            && !gated.is_empty()
            && engines.iter().all(|engine| full(engine));
        match whole_group {
            true => Self {
                evaluated: gated,
                gated: Vec::new(),
                saturated: true,
            },
            false => Self {
                evaluated,
                gated,
                saturated: false,
            },
        }
    }

    /// Step 7: whether gated holders may be taken because nobody waits less than the floor. An
    /// engine without a report does not count as idle.
    pub(super) fn floor_reached(
        &self,
        params: &CacheAwareParams,
        engines: &[Arc<Worker>],
        snapshot: &LoadSnapshot,
    ) -> bool {
        let below = |floor| {
            let idle = |engine: &Arc<Worker>| waiting(engine, snapshot).is_some_and(|w| w < floor);
            engines.iter().any(idle)
        };
        params
            .saturation_queue_floor
            .is_some_and(|floor| !below(floor))
    }

    /// Step 8: engines that the gate admits, or all of them if it admits none.
    pub(super) fn pool(
        &self,
        params: &CacheAwareParams,
        engines: &[Arc<Worker>],
        snapshot: &LoadSnapshot,
    ) -> Vec<Arc<Worker>> {
        let admits = |engine: &&Arc<Worker>| !is_full(params, engine, snapshot);
        let pool: Vec<_> = engines.iter().filter(admits).cloned().collect();
        match pool.is_empty() {
            true => engines.to_vec(),
            false => pool,
        }
    }
}

/// Whether the gate holds `engine` back: a fresh report at or over the limit.
fn is_full(params: &CacheAwareParams, engine: &Worker, snapshot: &LoadSnapshot) -> bool {
    let Some(limit) = params.worker_queue_limit else {
        return false;
    };
    waiting(engine, snapshot).is_some_and(|waiting| waiting >= limit)
}
