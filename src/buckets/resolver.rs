//! Ordering of buckets by length.

use std::collections::HashSet;

use thiserror::Error;

use crate::buckets::{Bucket, Misfit, SloOrder, SloTargets};
use crate::ids::BucketId;
use crate::policies::PickError;

/// Why a set of buckets was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ResolverError {
    /// A bucket id is empty after trimming.
    #[error("a bucket id is empty")]
    EmptyId,
    /// Two buckets have one id.
    #[error("bucket id `{0}` is used twice")]
    DuplicateId(BucketId),
    /// `min` is above `max` or above the context capacity, so nothing could ever fit.
    #[error("bucket `{0}` can hold no request: its minimum is above its capacity")]
    Unreachable(BucketId),
}

/// The buckets of one model, in resolution order.
#[derive(Debug)]
pub struct BucketResolver {
    buckets: Vec<Bucket>,
    slo: SloOrder,
}

impl BucketResolver {
    /// Sorts the buckets by input capacity, then rank, then id (bytewise).
    ///
    /// # Errors
    /// [`ResolverError`]. Source: policy-semantics §4.
    pub fn try_new(mut buckets: Vec<Bucket>) -> Result<Self, ResolverError> {
        let mut seen = HashSet::new();
        for bucket in &buckets {
            if bucket.id().as_str().trim().is_empty() {
                return Err(ResolverError::EmptyId);
            }
            if !seen.insert(bucket.id().clone()) {
                return Err(ResolverError::DuplicateId(bucket.id().clone()));
            }
            let limits = bucket.limits();
            if limits.min_input_tokens.unwrap_or(0) > limits.input_capacity() {
                return Err(ResolverError::Unreachable(bucket.id().clone()));
            }
        }
        buckets.sort_by(|a, b| {
            let key = |bucket: &Bucket| (bucket.limits().input_capacity(), bucket.rank());
            key(a).cmp(&key(b)).then_with(|| a.id().cmp(b.id()))
        });
        Ok(Self {
            buckets,
            slo: SloOrder::default(),
        })
    }

    /// Orders by latency targets before all else.
    #[must_use]
    pub const fn with_slo(mut self, slo: SloOrder) -> Self {
        self.slo = slo;
        self
    }

    /// All buckets, in resolution order.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Buckets that can hold a request: those that suit its latency targets first, then smallest
    /// input capacity first.
    ///
    /// * `input_tokens`: prompt length, tokens.
    /// * `expected_peak_tokens`: prompt plus requested output, tokens; `None` when the output
    ///   budget is unknown, and then context capacity is compared with the prompt alone.
    /// * `targets`: latency targets; those of a disabled preference are not looked at.
    ///
    /// Looks at no worker and no policy; a bucket whose groups are empty is kept. The list may be
    /// empty; the caller answers 400 for that.
    ///
    /// # Errors
    /// [`PickError::InvalidSignal`] if a known peak is below the prompt length, or an enabled
    /// target is no number above zero, before anything is filtered.
    ///
    /// Source: design §3 steps 1 to 4, policy-semantics §3 and §19.
    pub fn resolve(
        &self,
        input_tokens: u64,
        expected_peak_tokens: Option<u64>,
        targets: SloTargets,
    ) -> Result<impl Iterator<Item = &Bucket>, PickError> {
        if expected_peak_tokens.is_some_and(|peak| peak < input_tokens) {
            return Err(PickError::InvalidSignal("expected peak below input"));
        }
        if targets.invalid(self.slo) {
            return Err(PickError::InvalidSignal("latency target not above zero"));
        }
        // One pass per penalty keeps the order within each without sorting or allocating.
        let most = self.slo.most(&targets);
        Ok((0..=most).flat_map(move |penalty| {
            self.buckets.iter().filter(move |bucket| {
                bucket.limits().admit(input_tokens, expected_peak_tokens)
                    && self.slo.penalty(bucket.estimates(), &targets) == penalty
            })
        }))
    }

    /// Every bucket with the reason why [`resolve`](Self::resolve) leaves it out, in the order of
    /// [`buckets`](Self::buckets); `None` for those it keeps.
    pub fn misfits(
        &self,
        input_tokens: u64,
        expected_peak_tokens: Option<u64>,
    ) -> impl Iterator<Item = (&Bucket, Option<Misfit>)> {
        let buckets = self.buckets.iter();
        buckets.map(move |bucket| {
            let misfit = bucket.limits().misfit(input_tokens, expected_peak_tokens);
            (bucket, misfit)
        })
    }
}
