//! The ordered bucket loop: from prepared facts to a complete selection or the right refusal.
//!
//! Tries compatible buckets in order until one supplies everything; a refused or empty bucket
//! advances, an invalid signal or a foreign pick stops. Rejections win over missing engines at the
//! end. Dispatches nothing and takes no guard. An explained request goes through the same loop. Source: design §3, policy-semantics §6.

use std::time::Instant;

use crate::buckets::{Bucket, BucketError, BucketPick, BucketRequest};
use crate::ids::{BucketId, ModelId, Stage};
use crate::policies::explain::{Explanation, GroupTrace};
use crate::policies::{Disposition, PickError, PolicyKind, Rejection};
use crate::server::ApiError;
use crate::server::metrics::Metrics;
use crate::server::prepare::Prepared;
use crate::state::prefix::PrefixMemo;
use crate::workers::WorkerRegistry;

/// A complete selection.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The bucket that supplied it.
    pub bucket: BucketId,
    /// The engines.
    pub pick: BucketPick,
    /// How many buckets were tried, this one included.
    pub buckets_tried: u32,
    /// Prompt tokens that the plain or prefill engine should have cached, where an index told.
    pub predicted_cached_tokens: Option<u64>,
}

/// What the buckets tried so far said.
#[derive(Debug, Default)]
struct Attempts {
    tried: u32,
    rejections: Vec<Rejection>,
    any_rejection: bool,
    last_missing: Option<Stage>,
    last_policy: Option<PolicyKind>,
    /// What ended the loop before all buckets were tried.
    stopped: Option<String>,
}

impl Attempts {
    /// Books one failed bucket; an error means that the loop must stop.
    fn failed(&mut self, failure: BucketError) -> Result<(), ApiError> {
        if failure.error.disposition() == Disposition::Stop {
            self.stopped = Some(failure.to_string());
            return Err(ApiError::Internal);
        }
        match failure.error {
            PickError::NoAdmissibleEngine(list) => {
                self.any_rejection = true;
                self.rejections.extend(list);
            }
            PickError::AdmissionRejected(rejection) => {
                self.any_rejection = true;
                self.rejections.push(rejection);
            }
            PickError::NoCandidates
            | PickError::NoMatchingBucket
            | PickError::InvalidSignal(_)
            | PickError::InvalidConfiguration(_)
            | PickError::OutsideCandidates(_) => self.last_missing = Some(failure.stage),
        }
        Ok(())
    }

    /// The refusal after the last bucket; rejections win over a later empty bucket.
    fn exhausted(&self) -> ApiError {
        match (self.any_rejection, self.last_missing) {
            (true, _) => ApiError::PolicySelectionFailed,
            (false, Some(stage)) => ApiError::NoWorkers(stage),
            (false, None) => ApiError::bad_request("no bucket supports the requested length"),
        }
    }
}

/// Sees what the loop does. A live request is booked; an explained one is written down instead.
trait Watch {
    /// The record for the attempt that begins.
    fn explanation(&self) -> Option<&Explanation>;
    /// One bucket was asked.
    fn tried(&mut self, bucket: &Bucket, result: &Result<BucketPick, BucketError>);
    /// All were asked in vain, or one stopped the loop.
    fn refused(&mut self, attempts: &Attempts, refusal: &ApiError);
}

/// Picks the engines of one request.
///
/// # Errors
/// The refusals of policy-semantics §6: 400 when no bucket fits, 503 when all were tried, 500 for
/// an invalid signal, configuration or foreign pick.
pub async fn select(
    prepared: &Prepared,
    workers: &WorkerRegistry,
    metrics: &Metrics,
) -> Result<Selection, ApiError> {
    let started = Instant::now();
    let result = run(prepared, workers, Booked { prepared, metrics }).await;
    metrics
        .selection_seconds
        .observe(started.elapsed().as_secs_f64());
    result
}

/// One bucket that was tried for an explained request.
#[derive(Debug)]
pub struct Attempt {
    /// The bucket.
    pub bucket: BucketId,
    /// `selected`, or the label of the failure.
    pub outcome: &'static str,
    /// Its picks in the order made.
    pub groups: Vec<GroupTrace>,
}

/// The same for a request that is only explained: nothing is counted, moved or bound.
pub async fn explain(
    prepared: &Prepared,
    workers: &WorkerRegistry,
) -> (Vec<Attempt>, Result<Selection, ApiError>) {
    let mut attempts = Vec::new();
    let watch = Traced {
        now: Explanation::default(),
        attempts: &mut attempts,
    };
    let result = run(prepared, workers, watch).await;
    (attempts, result)
}

async fn run(
    prepared: &Prepared,
    workers: &WorkerRegistry,
    mut watch: impl Watch,
) -> Result<Selection, ApiError> {
    let memo = PrefixMemo::new(prepared.prefix_query());
    let request = prepared.bucket_request(&memo);
    let resolved = prepared.model.resolver.resolve(
        request.input_tokens,
        request.expected_peak_tokens,
        prepared.headers.slo,
    );
    let mut attempts = Attempts::default();
    let buckets = match resolved {
        Ok(buckets) => buckets,
        Err(error) => {
            attempts.stopped = Some(error.to_string());
            watch.refused(&attempts, &ApiError::Internal);
            return Err(ApiError::Internal);
        }
    };
    for bucket in buckets {
        attempts.tried += 1;
        let explain = watch.explanation();
        let request = BucketRequest { explain, ..request };
        let result = bucket.pick_engines(workers, &request).await;
        watch.tried(bucket, &result);
        match result {
            Ok(pick) => {
                let (BucketPick::Plain(computes)
                | BucketPick::Pd {
                    prefill: computes, ..
                }) = &pick;
                return Ok(Selection {
                    predicted_cached_tokens: memo.predicted_tokens(computes.engine.origin()),
                    bucket: bucket.id().clone(),
                    pick,
                    buckets_tried: attempts.tried,
                });
            }
            Err(failure) => {
                let policy = bucket
                    .group(failure.stage)
                    .map(|group| group.policy().kind());
                attempts.last_policy = policy.or(attempts.last_policy);
                if let Err(stop) = attempts.failed(failure) {
                    watch.refused(&attempts, &stop);
                    return Err(stop);
                }
            }
        }
    }
    let refusal = attempts.exhausted();
    watch.refused(&attempts, &refusal);
    Err(refusal)
}

/// A live request: metrics and logs.
struct Booked<'a> {
    prepared: &'a Prepared,
    metrics: &'a Metrics,
}

impl Watch for Booked<'_> {
    fn explanation(&self) -> Option<&Explanation> {
        None
    }

    fn tried(&mut self, bucket: &Bucket, result: &Result<BucketPick, BucketError>) {
        let model = &self.prepared.model.id;
        self.metrics
            .bucket_attempt(model, bucket.id(), outcome(result));
        match result {
            Ok(pick) => record_decision(self.metrics, model, bucket, pick),
            Err(failure) => record_failure(self.metrics, self.prepared, bucket, failure),
        }
    }

    fn refused(&mut self, attempts: &Attempts, refusal: &ApiError) {
        let model = &self.prepared.model.id;
        if let Some(error) = &attempts.stopped {
            tracing::error!(%model, error, "selection stopped");
            return;
        }
        if let Some(policy) = attempts.last_policy {
            let reason = match attempts.any_rejection {
                true => "prefill_admission_exhausted",
                false => "proposal_empty",
            };
            self.metrics.policy_selection_failure(policy, reason);
        }
        if attempts.tried > 0 {
            let rejections = attempts.rejections.iter().map(ToString::to_string);
            tracing::warn!(
                %model,
                stage = attempts.last_missing.map(Stage::as_str),
                error = refusal.code(),
                buckets_tried = attempts.tried,
                rejections = rejections.collect::<Vec<_>>().join(", "),
                "selection failed"
            );
        }
    }
}

/// An explained request: a list of attempts.
struct Traced<'a> {
    now: Explanation,
    attempts: &'a mut Vec<Attempt>,
}

impl Watch for Traced<'_> {
    fn explanation(&self) -> Option<&Explanation> {
        Some(&self.now)
    }

    fn tried(&mut self, bucket: &Bucket, result: &Result<BucketPick, BucketError>) {
        self.attempts.push(Attempt {
            bucket: bucket.id().clone(),
            outcome: outcome(result),
            groups: std::mem::take(&mut self.now).into_groups(),
        });
    }

    fn refused(&mut self, _attempts: &Attempts, _refusal: &ApiError) {}
}

/// The label of one attempt.
fn outcome(result: &Result<BucketPick, BucketError>) -> &'static str {
    match result.as_ref().map_err(|failure| &failure.error) {
        Ok(_) => "selected",
        Err(PickError::NoCandidates) => "no_candidates",
        Err(PickError::NoAdmissibleEngine(_) | PickError::AdmissionRejected(_)) => "rejected",
        Err(
            PickError::NoMatchingBucket
            | PickError::InvalidSignal(_)
            | PickError::InvalidConfiguration(_)
            | PickError::OutsideCandidates(_),
        ) => "error",
    }
}

/// A selection is recorded once, for the final complete pick. Source: field-lessons L63.
fn record_decision(metrics: &Metrics, model: &ModelId, bucket: &Bucket, pick: &BucketPick) {
    let (stage, pick, decode) = match pick {
        BucketPick::Plain(pick) => (Stage::Plain, pick, None),
        BucketPick::Pd { prefill, decode } => (Stage::Prefill, prefill, Some(decode)),
    };
    for pick in std::iter::once(pick).chain(decode) {
        if let Some(outcome) = pick.reason.sticky_outcome() {
            metrics.sticky(outcome);
        }
    }
    if let Some(group) = bucket.group(stage) {
        metrics.policy_decision(group.policy().kind(), pick.reason);
        metrics.cache_decision(model, pick.reason);
    }
}

fn record_failure(metrics: &Metrics, prepared: &Prepared, bucket: &Bucket, failure: &BucketError) {
    let model = &prepared.model.id;
    let rejections: &[Rejection] = match &failure.error {
        PickError::NoAdmissibleEngine(list) => list,
        PickError::AdmissionRejected(rejection) => std::slice::from_ref(rejection),
        PickError::NoCandidates
        | PickError::NoMatchingBucket
        | PickError::InvalidSignal(_)
        | PickError::InvalidConfiguration(_)
        | PickError::OutsideCandidates(_) => &[],
    };
    for rejection in rejections {
        metrics.admission_rejection(model, bucket.id(), failure.stage, rejection.limit);
    }
    tracing::debug!(%model, bucket = %bucket.id(), stage = %failure.stage, error = %failure.error, "bucket not usable");
}
