//! Where randomness comes from: the thread's generator in production, a seeded counter in tests.
//!
//! Both draw through `&self` without a lock, because `Policy::pick` takes `&self`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::Rng;

/// A source of uniform indices.
pub trait Draw: Send + Sync + fmt::Debug {
    /// A uniform index in `0..bound`. `bound` must be at least 1.
    fn below(&self, bound: usize) -> usize;
}

/// The calling thread's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadDraw;

impl Draw for ThreadDraw {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that may use the global generator"
    )]
    fn below(&self, bound: usize) -> usize {
        rand::rng().random_range(0..bound)
    }
}

/// A reproducible source: splitmix64 over a shared counter.
#[derive(Debug)]
pub struct SeededDraw(AtomicU64);

impl SeededDraw {
    /// The sequence that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Draw for SeededDraw {
    fn below(&self, bound: usize) -> usize {
        let step = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mut z = step.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        // The high half of the product is uniform in 0..bound up to a bias of bound / 2^64.
        let product = u128::from(z) * u128::try_from(bound).unwrap_or(u128::MAX);
        usize::try_from(product >> 64).unwrap_or(0)
    }
}
