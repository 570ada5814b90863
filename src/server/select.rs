//! The ordered bucket loop: from prepared facts to a complete selection or the right refusal.
//!
//! Tries compatible buckets in order until one supplies everything; a refused or empty bucket
//! advances, an invalid signal or a foreign pick stops. Rejections win over missing engines at the
//! end. Dispatches nothing and takes no guard. Source: design §3, policy-semantics §6.

use std::time::Instant;

use crate::buckets::{Bucket, BucketError, BucketPick};
use crate::ids::{BucketId, Stage};
use crate::policies::{Disposition, PickError, PolicyKind, Rejection};
use crate::server::ApiError;
use crate::server::metrics::Metrics;
use crate::server::prepare::Prepared;
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
}

/// What the buckets tried so far said.
#[derive(Debug, Default)]
struct Attempts {
    tried: u32,
    rejections: Vec<Rejection>,
    any_rejection: bool,
    last_missing: Option<Stage>,
    last_policy: Option<PolicyKind>,
}

impl Attempts {
    /// Books one failed bucket; an error means that the loop must stop.
    fn failed(&mut self, failure: BucketError) -> Result<(), ApiError> {
        if failure.error.disposition() == Disposition::Stop {
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
    let result = run(prepared, workers, metrics).await;
    metrics
        .selection_seconds
        .observe(started.elapsed().as_secs_f64());
    result
}

async fn run(
    prepared: &Prepared,
    workers: &WorkerRegistry,
    metrics: &Metrics,
) -> Result<Selection, ApiError> {
    let request = prepared.bucket_request();
    let resolved = prepared.model.resolver.resolve(
        request.input_tokens,
        request.expected_peak_tokens,
        prepared.headers.slo,
    );
    let buckets = resolved.map_err(|error| {
        tracing::warn!(model = %request.model, %error, "selection failed");
        ApiError::Internal
    })?;
    let mut attempts = Attempts::default();
    for bucket in buckets {
        attempts.tried += 1;
        match bucket.pick_engines(workers, &request).await {
            Ok(pick) => {
                metrics.bucket_attempt(request.model, bucket.id(), "selected");
                record_decision(metrics, bucket, &pick);
                return Ok(Selection {
                    bucket: bucket.id().clone(),
                    pick,
                    buckets_tried: attempts.tried,
                });
            }
            Err(failure) => {
                record_failure(metrics, prepared, bucket, &failure);
                let (stage, error) = (failure.stage, failure.error.to_string());
                let policy = bucket.group(stage).map(|group| group.policy().kind());
                attempts.last_policy = policy.or(attempts.last_policy);
                if let Err(stop) = attempts.failed(failure) {
                    tracing::error!(model = %request.model, bucket = %bucket.id(), %stage, error, "selection stopped");
                    return Err(stop);
                }
            }
        }
    }
    let refusal = attempts.exhausted();
    if let Some(policy) = attempts.last_policy {
        let reason = match attempts.any_rejection {
            true => "prefill_admission_exhausted",
            false => "proposal_empty",
        };
        metrics.policy_selection_failure(policy, reason);
    }
    if attempts.tried > 0 {
        let rejections: Vec<_> = attempts
            .rejections
            .iter()
            .map(ToString::to_string)
            .collect();
        tracing::warn!(
            model = %request.model,
            stage = attempts.last_missing.map(Stage::as_str),
            error = refusal.code(),
            buckets_tried = attempts.tried,
            rejections = rejections.join(", "),
            "selection failed"
        );
    }
    Err(refusal)
}

/// A selection is recorded once, for the final complete pick. Source: field-lessons L63.
fn record_decision(metrics: &Metrics, bucket: &Bucket, pick: &BucketPick) {
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
    }
}

fn record_failure(metrics: &Metrics, prepared: &Prepared, bucket: &Bucket, failure: &BucketError) {
    let model = &prepared.model.id;
    let outcome = match &failure.error {
        PickError::NoCandidates => "no_candidates",
        PickError::NoAdmissibleEngine(_) | PickError::AdmissionRejected(_) => "rejected",
        PickError::NoMatchingBucket
        | PickError::InvalidSignal(_)
        | PickError::InvalidConfiguration(_)
        | PickError::OutsideCandidates(_) => "error",
    };
    metrics.bucket_attempt(model, bucket.id(), outcome);
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
