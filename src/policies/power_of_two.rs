//! Sample a few engines, take the one under the least pressure, ask admission once.
//!
//! The winner is checked and nothing else happens on a refusal: no second draw, no second choice,
//! no fallback. The check sees the same load snapshot as the comparison. A single candidate wins
//! without comparison, but its load is still read for admission. Source: design §4,
//! policy-semantics §10.

use std::cmp::Ordering;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::policies::admission::{self, EngineAdmission};
use crate::policies::explain::{Compared, LoadSource};
use crate::policies::pressure::{Pressure, Source};
use crate::policies::{
    Draw, Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, PowerOfTwoParams, Reason,
    at_once,
};
use crate::state::{EngineLoadTable, LoadSnapshot};
use crate::workers::Worker;

/// Samples up to this size need no heap.
const FEW: usize = 4;

/// `power_of_two`, and power-of-N for other values of `choices`.
#[derive(Debug)]
pub struct PowerOfTwoPolicy {
    params: PowerOfTwoParams,
    loads: Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
    draw: Arc<dyn Draw>,
}

impl PowerOfTwoPolicy {
    /// A policy that reads `loads` once per pick and draws from `draw`.
    #[must_use]
    pub fn new(
        params: PowerOfTwoParams,
        loads: Arc<EngineLoadTable>,
        admission: Arc<dyn EngineAdmission>,
        draw: Arc<dyn Draw>,
    ) -> Self {
        Self {
            params,
            loads,
            admission,
            draw,
        }
    }

    fn choose(
        &self,
        engines: &[Arc<Worker>],
        request: &PickRequest<'_>,
    ) -> Result<Pick, PickError> {
        if engines.is_empty() {
            return Err(PickError::NoCandidates);
        }
        let mut sample = Sample::new(engines.len(), self.params.choices());
        let drawn = (0..sample.left).map(|_| &engines[sample.next(self.draw.as_ref())]);
        let drawn: SmallVec<[&Arc<Worker>; FEW]> = drawn.collect();
        let snapshot = self.loads.capture(drawn.iter().map(|engine| engine.id()));
        let engine = least_pressed(request, &drawn, &snapshot);
        admission::require(self.admission.as_ref(), engine, &snapshot, request.explain)?;
        Ok(Pick {
            engine: Arc::clone(engine),
            reason: Reason::PowerOfTwo,
        })
    }
}

/// Reduces the sample in the order drawn; the incumbent stays unless strictly beaten.
fn least_pressed<'e>(
    request: &PickRequest<'_>,
    drawn: &[&'e Arc<Worker>],
    snapshot: &LoadSnapshot,
) -> &'e Arc<Worker> {
    let pressures = drawn
        .iter()
        .map(|engine| Pressure::observe(engine, snapshot));
    let pressures: SmallVec<[_; FEW]> = pressures.collect();
    let source = Source::of(request.stage, pressures.iter());
    let mut best = 0;
    for rival in 1..drawn.len() {
        let order = source.compare(request.stage, &pressures[best], &pressures[rival]);
        if order == Ordering::Greater {
            best = rival;
        }
    }
    if let Some(explain) = request.explain {
        explain.compared(Compared::PowerOfTwo {
            sampled: drawn.iter().map(|engine| engine.id().clone()).collect(),
            source: match source {
                Source::Millis | Source::Tokens => LoadSource::Reports,
                Source::Inflight => LoadSource::Inflight,
            },
        });
    }
    drawn[best]
}

impl Policy for PowerOfTwoPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::PowerOfTwo
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        at_once(self.choose(engines, request))
    }
}

/// Distinct indices of `0..population` in random order, without a list of the population: the
/// k-th draw is made among the indices not taken yet and shifted past the taken ones.
struct Sample {
    taken: SmallVec<[usize; FEW]>,
    population: usize,
    left: usize,
}

impl Sample {
    fn new(population: usize, choices: usize) -> Self {
        let left = choices.min(population);
        Self {
            taken: SmallVec::new(),
            population,
            left,
        }
    }

    fn next(&mut self, draw: &dyn Draw) -> usize {
        let mut index = draw.below(self.population - self.taken.len());
        self.left -= 1;
        let mut at = 0;
        while at < self.taken.len() && self.taken[at] <= index {
            index += 1;
            at += 1;
        }
        if self.left > 0 {
            self.taken.insert(at, index);
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::SeededDraw;

    #[test]
    fn a_sample_is_distinct_and_covers_every_ordered_pair_equally() {
        let draw = SeededDraw::new(7);
        let mut seen = std::collections::HashMap::new();
        for _ in 0..24_000 {
            let mut sample = Sample::new(4, 2);
            let pair = (sample.next(&draw), sample.next(&draw));
            assert_ne!(pair.0, pair.1);
            *seen.entry(pair).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 12, "twelve ordered pairs of four");
        for (pair, count) in seen {
            // 2000 expected, standard deviation 43: six of them on either side.
            assert!((1740..2260).contains(&count), "{pair:?} {count}");
        }
    }

    #[test]
    fn a_sample_of_everything_is_a_permutation() {
        let draw = SeededDraw::new(1);
        for choices in [5, 9] {
            let mut sample = Sample::new(5, choices);
            let mut all: Vec<usize> = (0..5).map(|_| sample.next(&draw)).collect();
            assert_eq!(sample.left, 0);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
    }
}
