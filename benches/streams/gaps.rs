//! How even the tokens of many streams came.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::Seen;

/// Figures of one load.
#[derive(Debug)]
pub(crate) struct Gaps {
    pub(crate) streams: usize,
    pub(crate) complete: usize,
    /// Median and 99 % of the time to the first token.
    pub(crate) first: [Duration; 2],
    /// Median, 99 % and largest of all gaps.
    pub(crate) all: [Duration; 3],
    /// The largest of all streams' own medians and 99 %.
    pub(crate) worst: [Duration; 2],
    /// What else streams ended with, and how many.
    pub(crate) failures: BTreeMap<String, usize>,
}

impl Gaps {
    pub(crate) fn of(streams: Vec<Result<Seen, String>>) -> Self {
        let count = streams.len();
        let (mut first, mut all, mut worst) = (Vec::new(), Vec::new(), [Duration::ZERO; 2]);
        let mut failures = BTreeMap::new();
        for stream in streams {
            match stream {
                Ok(mut seen) => {
                    first.push(seen.first);
                    let own = [0.5, 0.99].map(|share| quantile(&mut seen.gaps, share));
                    worst = [worst[0].max(own[0]), worst[1].max(own[1])];
                    all.append(&mut seen.gaps);
                }
                Err(problem) => *failures.entry(problem).or_default() += 1,
            }
        }
        Self {
            streams: count,
            complete: first.len(),
            first: [0.5, 0.99].map(|share| quantile(&mut first, share)),
            all: [0.5, 0.99, 1.0].map(|share| quantile(&mut all, share)),
            worst,
            failures,
        }
    }
}

/// The smallest value that this share of all does not exceed. Of fewer than a hundred values 99 % is the
/// largest.
fn quantile(values: &mut [Duration], share: f64) -> Duration {
    if values.is_empty() {
        return Duration::ZERO;
    }
    let rank = (values.len() as f64 * share).ceil() as usize;
    let place = rank.clamp(1, values.len()) - 1;
    *values.select_nth_unstable(place).1
}
