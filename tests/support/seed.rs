//! Randomness of tests: `SGL_EDGE_SEED=N` repeats a run; every run prints its seed.

use std::time::{SystemTime, UNIX_EPOCH};

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The seed of this run, printed.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("SGL_EDGE_SEED").ok();
    let seed = match given {
        Some(text) => text.parse().expect("SGL_EDGE_SEED is a number"),
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            u64::from(since.map_or(0, |since| since.subsec_nanos()))
        }
    };
    println!("SGL_EDGE_SEED={seed}");
    seed
}

/// A generator with the seed of this run.
pub(crate) fn rng() -> StdRng {
    StdRng::seed_from_u64(seed())
}

/// Fails when `counts` are unlikely to come from draws with these `weights`.
///
/// A chi-square test with at most seven degrees of freedom; a sound source passes all but once in
/// 10^9 runs. A weight of zero means never.
pub(crate) fn assert_distribution(counts: &[u32], weights: &[u32]) {
    const BOUND: f64 = 60.0;
    assert_eq!(counts.len(), weights.len());
    assert!(counts.len() <= 8, "the bound is for up to eight classes");
    let total = f64::from(counts.iter().sum::<u32>());
    let weight = f64::from(weights.iter().sum::<u32>());
    let mut distance = 0.0;
    for (count, share) in counts.iter().zip(weights) {
        let expected = total * f64::from(*share) / weight;
        if *share == 0 {
            assert_eq!(*count, 0, "weight zero was drawn: {counts:?}");
        } else {
            distance += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    assert!(distance < BOUND, "chi-square {distance}: {counts:?}");
}
