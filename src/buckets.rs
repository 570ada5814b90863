//! Which bucket, and within it which engines: design §2 and §3.
//!
//! [`BucketResolver`] orders compatible buckets by length and looks at no worker, load, stage or
//! policy. [`Bucket`] owns the choice between one plain engine and a complete pair; half a pair
//! cannot be spelled ([`BucketGroups`]). [`EngineGroup`] owns membership and its policy, filters
//! live engines, and believes a policy's answer only if it is the very handle it offered. Nothing
//! here knows HTTP, falls to another bucket, takes a guard or sends anything.

mod candidates;
mod group;
mod resolver;
mod slo;

use thiserror::Error;

pub use group::EngineGroup;
pub use resolver::{BucketResolver, ResolverError};
pub use slo::{SloEstimates, SloOrder, SloPreference, SloTargets};

use crate::ids::{BucketId, ModelId, Stage};
use crate::policies::explain::Explanation;
use crate::policies::{Pick, PickError, PickRequest};
use crate::state::prefix::PrefixMemo;
use crate::workers::WorkerRegistry;

/// Length limits of a bucket, tokens. Every bound is inclusive; an absent bound always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenLimits {
    /// Smallest prompt.
    pub min_input_tokens: Option<u64>,
    /// Largest prompt.
    pub max_input_tokens: Option<u64>,
    /// Largest prompt plus requested output; compared with the prompt alone when the output
    /// budget is unknown.
    pub max_context_tokens: Option<u64>,
}

impl TokenLimits {
    /// The capacity by which buckets are ordered: the lesser of the input bound and the context
    /// capacity, tokens; unbounded is `u64::MAX`. Source: policy-semantics §3 step 4.
    #[must_use]
    pub fn input_capacity(&self) -> u64 {
        let input = self.max_input_tokens.unwrap_or(u64::MAX);
        input.min(self.max_context_tokens.unwrap_or(u64::MAX))
    }

    /// Whether a prompt of `input` tokens with the expected peak `peak` fits.
    #[must_use]
    pub fn admit(&self, input: u64, peak: Option<u64>) -> bool {
        self.misfit(input, peak).is_none()
    }

    /// Whether the bucket takes either every or no prompt of `least` to `most` tokens, when
    /// `output` tokens are asked for; the budget is unknown for `None`.
    #[must_use]
    pub fn indifferent(&self, least: u64, most: u64, output: Option<u64>) -> bool {
        let context = self.max_context_tokens.unwrap_or(u64::MAX);
        // No prompt is below zero: a context smaller than the output takes none.
        let Some(room) = context.checked_sub(output.unwrap_or(0)) else {
            return true;
        };
        let room = if self.max_context_tokens.is_some() {
            room
        } else {
            u64::MAX
        };
        let min = self.min_input_tokens.unwrap_or(0);
        let max = self.max_input_tokens.unwrap_or(u64::MAX).min(room);
        let all = min <= least && most <= max;
        let none = most < min || max < least || max < min;
        all || none
    }

    /// The first bound that a prompt of `input` tokens with the expected peak `peak` breaks.
    #[must_use]
    pub fn misfit(&self, input: u64, peak: Option<u64>) -> Option<Misfit> {
        let below = |min: &u64| input < *min;
        let above = |max: &u64| input > *max;
        let tokens = peak.unwrap_or(input);
        if let Some(min) = self.min_input_tokens.filter(below) {
            return Some(Misfit::BelowMin { input, min });
        }
        if let Some(max) = self.max_input_tokens.filter(above) {
            return Some(Misfit::AboveMax { input, max });
        }
        let capacity = self.max_context_tokens.filter(|max| tokens > *max)?;
        Some(match peak {
            Some(peak) => Misfit::PeakAboveContext { peak, capacity },
            None => Misfit::InputAboveContext { input, capacity },
        })
    }
}

/// Why a request does not fit a bucket; all numbers are tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The prompt is too short.
    #[error("input {input} is below limits.min {min}")]
    BelowMin {
        /// The prompt.
        input: u64,
        /// The bound.
        min: u64,
    },
    /// The prompt is too long.
    #[error("input {input} is above limits.max {max}")]
    AboveMax {
        /// The prompt.
        input: u64,
        /// The bound.
        max: u64,
    },
    /// Prompt plus requested output are too long.
    #[error("expected peak {peak} is above max_context_tokens {capacity}")]
    PeakAboveContext {
        /// Prompt plus requested output.
        peak: u64,
        /// The bound.
        capacity: u64,
    },
    /// The prompt alone exceeds the context capacity; the output budget is unknown.
    #[error("input {input} is above max_context_tokens {capacity}")]
    InputAboveContext {
        /// The prompt.
        input: u64,
        /// The bound.
        capacity: u64,
    },
}

/// The facts of one prepared request. The bucket adds its own id and the stage per group call.
#[derive(Debug, Clone, Copy)]
pub struct BucketRequest<'a> {
    /// Requested model.
    pub model: &'a ModelId,
    /// Prompt length, tokens, at least 1.
    pub input_tokens: u64,
    /// Prompt plus requested output, tokens; `None` when the output budget is unknown.
    pub expected_peak_tokens: Option<u64>,
    /// Token ids of the prompt when tokenization worked.
    pub token_ids: Option<&'a [u32]>,
    /// Session header value.
    pub session_key: Option<&'a str>,
    /// Routing-key header value.
    pub routing_key: Option<&'a str>,
    /// The request's prefix lookups, shared by all its bucket attempts.
    pub prefix: &'a PrefixMemo<'a>,
    /// Where to write down what is seen, for a request that is only explained.
    pub explain: Option<&'a Explanation>,
}

/// The groups of a bucket: plain, or both halves of a pair.
#[derive(Debug)]
pub enum BucketGroups {
    /// One engine does everything.
    Plain(EngineGroup),
    /// Prefill and decode engines, both picked from this bucket.
    Pd {
        /// Prefill engines.
        prefill: EngineGroup,
        /// Decode engines.
        decode: EngineGroup,
    },
}

/// A complete selection from one bucket.
#[derive(Debug, Clone)]
pub enum BucketPick {
    /// One plain engine.
    Plain(Pick),
    /// A complete pair.
    Pd {
        /// The prefill engine.
        prefill: Pick,
        /// The decode engine, from the same bucket.
        decode: Pick,
    },
}

/// A failed attempt on one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{stage}: {error}")]
pub struct BucketError {
    /// The group that failed.
    pub stage: Stage,
    /// How.
    pub error: PickError,
}

/// One length class of a model: limits, rank and groups.
#[derive(Debug)]
pub struct Bucket {
    id: BucketId,
    rank: u32,
    limits: TokenLimits,
    estimates: SloEstimates,
    groups: BucketGroups,
}

impl Bucket {
    /// A bucket; limits are checked when a resolver is built from it.
    #[must_use]
    pub const fn new(id: BucketId, rank: u32, limits: TokenLimits, groups: BucketGroups) -> Self {
        Self {
            id,
            rank,
            limits,
            estimates: SloEstimates {
                ttft_ms: None,
                tokens_per_second: None,
            },
            groups,
        }
    }

    /// Says what latency to expect of it.
    #[must_use]
    pub const fn with_estimates(mut self, estimates: SloEstimates) -> Self {
        self.estimates = estimates;
        self
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &BucketId {
        &self.id
    }

    /// Its rank; smaller is tried first among equal capacities.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Its length limits.
    #[must_use]
    pub const fn limits(&self) -> &TokenLimits {
        &self.limits
    }

    /// What latency to expect of it.
    #[must_use]
    pub const fn estimates(&self) -> &SloEstimates {
        &self.estimates
    }

    /// Its groups.
    #[must_use]
    pub const fn groups(&self) -> &BucketGroups {
        &self.groups
    }

    /// The group that serves `stage`, if the bucket has one.
    #[must_use]
    pub const fn group(&self, stage: Stage) -> Option<&EngineGroup> {
        match (&self.groups, stage) {
            (BucketGroups::Plain(group), Stage::Plain)
            | (BucketGroups::Pd { prefill: group, .. }, Stage::Prefill)
            | (BucketGroups::Pd { decode: group, .. }, Stage::Decode) => Some(group),
            (BucketGroups::Plain(_), _) | (BucketGroups::Pd { .. }, Stage::Plain) => None,
        }
    }

    /// One plain engine, or prefill and then decode.
    ///
    /// A decode failure discards the prefill pick: no guard was taken and nothing was sent.
    ///
    /// # Errors
    /// The first group's failure with its stage.
    pub async fn pick_engines(
        &self,
        workers: &WorkerRegistry,
        request: &BucketRequest<'_>,
    ) -> Result<BucketPick, BucketError> {
        match &self.groups {
            BucketGroups::Plain(group) => self
                .pick_stage(group, Stage::Plain, workers, request)
                .await
                .map(BucketPick::Plain),
            BucketGroups::Pd { prefill, decode } => {
                let prefill = self
                    .pick_stage(prefill, Stage::Prefill, workers, request)
                    .await?;
                let decode = self
                    .pick_stage(decode, Stage::Decode, workers, request)
                    .await?;
                Ok(BucketPick::Pd { prefill, decode })
            }
        }
    }

    async fn pick_stage(
        &self,
        group: &EngineGroup,
        stage: Stage,
        workers: &WorkerRegistry,
        request: &BucketRequest<'_>,
    ) -> Result<Pick, BucketError> {
        let request = PickRequest {
            model: request.model,
            stage,
            bucket: &self.id,
            input_tokens: request.input_tokens,
            expected_peak_tokens: request.expected_peak_tokens,
            token_ids: request.token_ids,
            session_key: request.session_key,
            routing_key: request.routing_key,
            prefix: request.prefix,
            explain: request.explain,
        };
        group
            .pick(workers, &request)
            .await
            .map_err(|error| BucketError { stage, error })
    }
}
