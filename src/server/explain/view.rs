//! The shapes of an explanation: `explain.md` §2.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::time::Instant;

use crate::buckets::Bucket;
use crate::ids::{BucketId, ModelId, Stage, WorkerId};
use crate::policies::explain::{Compared, GroupTrace, NotCandidate};
use crate::policies::{PickError, Reason};
use crate::server::select::Attempt;
use crate::state::{EngineLoad, EngineLoadTable};
use crate::workers::{Worker, WorkerRegistry};

/// One bucket and whether it can hold the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketView {
    /// Its id.
    pub id: BucketId,
    /// Its rank.
    pub rank: u32,
    /// Its input capacity, tokens; null = unbounded.
    pub capacity: Option<u64>,
    /// Whether it is tried.
    pub kept: bool,
    /// The reason against it.
    pub why: Option<String>,
}

impl BucketView {
    pub(super) fn new(bucket: &Bucket, why: Option<String>) -> Self {
        let capacity = bucket.limits().input_capacity();
        Self {
            id: bucket.id().clone(),
            rank: bucket.rank(),
            capacity: (capacity != u64::MAX).then_some(capacity),
            kept: why.is_none(),
            why,
        }
    }
}

/// One bucket that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttemptView {
    /// Its id.
    pub bucket: BucketId,
    /// `selected`, `no_candidates`, `rejected` or `error`.
    pub outcome: &'static str,
    /// Its picks in the order made.
    pub groups: Vec<GroupView>,
}

/// One pick.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupView {
    /// Role of the group.
    pub stage: Stage,
    /// Its policy.
    pub policy: &'static str,
    /// The model's engines of that role, by id.
    pub engines: Vec<EngineView>,
    /// What the policy looked at.
    pub compared: Option<Compared>,
    /// Every admission check in the order made.
    pub admission: Vec<CheckView>,
    /// How the pick ended.
    pub outcome: &'static str,
    /// The engine picked.
    pub engine: Option<WorkerId>,
    /// Why.
    pub reason: Option<&'static str>,
}

/// One engine as the group saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineView {
    /// Its id.
    pub id: WorkerId,
    /// Whether it was offered to the policy.
    pub candidate: bool,
    /// The reason against it.
    pub why: Option<NotCandidate>,
    /// Requests this router holds a guard for.
    pub inflight: u64,
    /// Its report, when fresh and complete.
    pub report: Option<ReportView>,
}

/// One admission check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckView {
    /// The engine.
    pub engine: WorkerId,
    /// Whether it may take the request.
    pub allowed: bool,
    /// The cap that refused it.
    pub limit: Option<&'static str>,
}

/// The report of one engine, summed over its ranks. Tokens and requests are counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportView {
    /// Age of the oldest rank's report, milliseconds.
    pub age_ms: u64,
    /// Requests in the running batch.
    pub running: u64,
    /// Requests in the waiting queue.
    pub waiting: u64,
    /// KV tokens in use.
    pub used_tokens: u64,
    /// KV capacity, tokens.
    pub max_total_tokens: u64,
    /// Prompt tokens that wait for prefill.
    pub waiting_uncached_tokens: Option<u64>,
    /// KV tokens used plus those of queued requests.
    pub total_tokens: Option<u64>,
    /// The scheduler's limit.
    pub max_running_requests: Option<u64>,
    /// Time the waiting tokens need, milliseconds.
    pub estimated_prefill_queue_ms: Option<f64>,
}

/// What the client would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// 200, or the status of the refusal.
    pub status: u16,
    /// `x-router-error-code`.
    pub code: Option<&'static str>,
    /// The refusal's text.
    pub message: Option<String>,
    /// Bucket of the complete selection.
    pub bucket: Option<BucketId>,
    /// Its engines by stage.
    pub engines: Option<BTreeMap<Stage, WorkerId>>,
}

impl ReportView {
    /// `load` as it looks at `now`.
    pub(crate) fn new(load: &EngineLoad, now: Instant) -> Self {
        let age = now.saturating_duration_since(load.captured_at);
        let native = load.native.as_ref();
        Self {
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            running: load.running_requests,
            waiting: load.waiting_requests,
            used_tokens: load.used_tokens,
            max_total_tokens: load.max_total_tokens,
            waiting_uncached_tokens: native.map(|native| native.waiting_uncached_tokens),
            total_tokens: native.map(|native| native.total_tokens),
            max_running_requests: native.map(|native| native.max_running_requests),
            estimated_prefill_queue_ms: native.and_then(|native| native.estimated_prefill_queue_ms),
        }
    }
}

impl AttemptView {
    pub(super) fn new(
        attempt: Attempt,
        workers: &WorkerRegistry,
        model: &ModelId,
        loads: &EngineLoadTable,
    ) -> Self {
        let groups = attempt.groups.into_iter();
        Self {
            bucket: attempt.bucket,
            outcome: attempt.outcome,
            groups: groups
                .map(|trace| GroupView::new(trace, workers, model, loads))
                .collect(),
        }
    }
}

impl GroupView {
    fn new(
        trace: GroupTrace,
        workers: &WorkerRegistry,
        model: &ModelId,
        loads: &EngineLoadTable,
    ) -> Self {
        let members = workers.members();
        let known = members.of(model, trace.stage);
        let engines = trace.engines.into_iter().map(|(id, why)| {
            let worker = known.iter().find(|worker| *worker.id() == id);
            EngineView::new(id, why, worker.map(AsRef::as_ref), loads)
        });
        let (engine, reason) = match &trace.outcome {
            Ok((engine, reason)) => (Some(engine.clone()), Some(*reason)),
            Err(_) => (None, None),
        };
        Self {
            stage: trace.stage,
            policy: trace.policy.as_str(),
            engines: engines.collect(),
            compared: trace.compared,
            admission: trace
                .admission
                .into_iter()
                .map(|check| CheckView {
                    engine: check.engine,
                    allowed: check.limit.is_none(),
                    limit: check.limit.map(crate::policies::Limit::as_str),
                })
                .collect(),
            outcome: label(&trace.outcome),
            engine,
            reason: reason.map(Reason::as_str),
        }
    }
}

impl EngineView {
    fn new(
        id: WorkerId,
        why: Option<NotCandidate>,
        worker: Option<&Worker>,
        loads: &EngineLoadTable,
    ) -> Self {
        let snapshot = loads.capture([&id]);
        let report = snapshot.get(&id);
        Self {
            candidate: why.is_none(),
            why,
            inflight: worker.map_or(0, Worker::inflight),
            report: report.map(|load| ReportView::new(load, loads.now())),
            id,
        }
    }
}

fn label(outcome: &Result<(WorkerId, Reason), PickError>) -> &'static str {
    match outcome {
        Ok(_) => "picked",
        Err(PickError::NoCandidates | PickError::NoMatchingBucket) => "no_candidates",
        Err(PickError::NoAdmissibleEngine(_)) => "no_admissible_engine",
        Err(PickError::AdmissionRejected(_)) => "admission_rejected",
        Err(PickError::InvalidSignal(_)) => "invalid_signal",
        Err(PickError::InvalidConfiguration(_)) => "invalid_configuration",
        Err(PickError::OutsideCandidates(_)) => "outside_candidates",
    }
}
