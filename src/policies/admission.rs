//! Per-engine acceptance checks.
//!
//! Admission evaluates acceptance and nothing else. It does not rank engines, choose replacements,
//! change buckets, reserve capacity or count the request it is asked about. A check observes; two
//! concurrent requests may pass against the same observation. Source: design §4.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::WorkerId;
use crate::policies::PickError;
use crate::policies::explain::Explanation;
use crate::state::LoadSnapshot;
use crate::workers::Worker;

/// The cap that refused an engine; its label is the name of the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// `max_running_requests`
    RunningRequests,
    /// `max_waiting_requests`
    WaitingRequests,
    /// `max_kv_tokens`
    KvTokens,
    /// `max_pending_prefill_tokens`
    PendingPrefillTokens,
    /// `max_inflight_requests`
    InflightRequests,
}

impl Limit {
    /// The label used in files, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RunningRequests => "max_running_requests",
            Self::WaitingRequests => "max_waiting_requests",
            Self::KvTokens => "max_kv_tokens",
            Self::PendingPrefillTokens => "max_pending_prefill_tokens",
            Self::InflightRequests => "max_inflight_requests",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One engine that a check refused, for logs and metrics; never shown to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The refused engine.
    pub engine: WorkerId,
    /// The first cap that it reached.
    pub limit: Limit,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.engine, self.limit)
    }
}

/// What a check sees of one engine. `None` means "not known", never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineMetrics {
    /// Reported running requests.
    pub running_requests: Option<u64>,
    /// Reported waiting requests.
    pub waiting_requests: Option<u64>,
    /// Reported total KV tokens: used plus those of queued requests.
    pub kv_tokens: Option<u64>,
    /// Reported prompt tokens that wait for prefill, cache hits excluded.
    pub pending_prefill_tokens: Option<u64>,
    /// Requests this router holds a guard for on the engine; always known.
    pub inflight_requests: u64,
}

impl EngineMetrics {
    /// The metrics of `engine` from an already captured snapshot plus its live in-flight count.
    #[must_use]
    pub fn observe(engine: &Worker, snapshot: &LoadSnapshot) -> Self {
        let report = snapshot.get(engine.id());
        let native = report.and_then(|report| report.native.as_ref());
        Self {
            running_requests: report.map(|report| report.running_requests),
            waiting_requests: report.map(|report| report.waiting_requests),
            kv_tokens: native.map(|native| native.total_tokens),
            pending_prefill_tokens: native.map(|native| native.waiting_uncached_tokens),
            inflight_requests: engine.inflight(),
        }
    }
}

/// The answer of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The engine may take the request.
    Allow,
    /// It may not; the first cap that it reached.
    Reject(Limit),
}

/// A per-engine acceptance check, attached to a policy.
pub trait EngineAdmission: Send + Sync + fmt::Debug {
    /// Whether `engine` with these `metrics` may take one more request.
    ///
    /// # Errors
    /// [`PickError::InvalidSignal`] or [`PickError::InvalidConfiguration`], which stop routing.
    fn check(&self, engine: &Worker, metrics: &EngineMetrics) -> Result<Admission, PickError>;

    /// True when `check` can never refuse, so that a policy need not ask engine by engine.
    fn admits_everything(&self) -> bool {
        false
    }
}

/// Absolute caps; each is optional and admits while the metric is below it.
///
/// Reported metrics are skipped while unknown (fail open); the in-flight count is always known.
/// The caps never default to capacities that engines report. Source: design §4,
/// policy-semantics §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionLimits {
    /// Cap on reported running requests.
    pub max_running_requests: Option<u64>,
    /// Cap on reported waiting requests.
    pub max_waiting_requests: Option<u64>,
    /// Cap on reported total KV tokens.
    pub max_kv_tokens: Option<u64>,
    /// Cap on reported waiting uncached tokens.
    pub max_pending_prefill_tokens: Option<u64>,
    /// Cap on router-local in-flight requests.
    pub max_inflight_requests: Option<u64>,
}

/// A parameter outside its range. The text names the parameter and the range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{parameter}: {rule}")]
pub struct ParamsError {
    /// The setting as written in a file.
    pub parameter: &'static str,
    /// What is allowed.
    pub rule: &'static str,
}

impl AdmissionLimits {
    /// The caps in the order in which they are checked, with the metric each one bounds.
    fn rows(&self, metrics: &EngineMetrics) -> [(Limit, Option<u64>, Option<u64>); 5] {
        [
            (
                Limit::RunningRequests,
                self.max_running_requests,
                metrics.running_requests,
            ),
            (
                Limit::WaitingRequests,
                self.max_waiting_requests,
                metrics.waiting_requests,
            ),
            (Limit::KvTokens, self.max_kv_tokens, metrics.kv_tokens),
            (
                Limit::PendingPrefillTokens,
                self.max_pending_prefill_tokens,
                metrics.pending_prefill_tokens,
            ),
            (
                Limit::InflightRequests,
                self.max_inflight_requests,
                Some(metrics.inflight_requests),
            ),
        ]
    }

    /// Every cap of zero, which would refuse all traffic; empty when the limits are usable.
    ///
    /// Source: policy-semantics §9 "refuse 0 at startup".
    #[must_use]
    pub fn problems(&self) -> Vec<ParamsError> {
        self.rows(&EngineMetrics::default())
            .into_iter()
            .filter(|(_, cap, _)| *cap == Some(0))
            .map(|(limit, _, _)| ParamsError {
                parameter: limit.as_str(),
                rule: "must be at least 1 (0 would refuse every request; leave it out for no cap)",
            })
            .collect()
    }
}

impl EngineAdmission for AdmissionLimits {
    fn check(&self, _engine: &Worker, metrics: &EngineMetrics) -> Result<Admission, PickError> {
        let reached = self.rows(metrics).into_iter().find(
            |(_, cap, metric)| matches!((cap, metric), (Some(cap), Some(metric)) if metric >= cap),
        );
        Ok(match reached {
            Some((limit, _, _)) => Admission::Reject(limit),
            None => Admission::Allow,
        })
    }

    fn admits_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Asks whether `engine` may take one more request, and records the answer where asked to.
///
/// # Errors
/// The checker's own.
pub(crate) fn ask(
    admission: &dyn EngineAdmission,
    engine: &Worker,
    snapshot: &LoadSnapshot,
    explain: Option<&Explanation>,
) -> Result<Admission, PickError> {
    let answer = admission.check(engine, &EngineMetrics::observe(engine, snapshot))?;
    if let Some(explain) = explain {
        explain.checked(engine, answer);
    }
    Ok(answer)
}

/// Checks one chosen engine and turns a refusal into [`PickError::AdmissionRejected`].
///
/// # Errors
/// The rejection, or whatever the checker itself returned.
pub(crate) fn require(
    admission: &dyn EngineAdmission,
    engine: &Worker,
    snapshot: &LoadSnapshot,
    explain: Option<&Explanation>,
) -> Result<(), PickError> {
    match ask(admission, engine, snapshot, explain)? {
        Admission::Allow => Ok(()),
        Admission::Reject(limit) => Err(PickError::AdmissionRejected(Rejection {
            engine: engine.id().clone(),
            limit,
        })),
    }
}

/// The admitted part of `engines`, in their order.
///
/// Round robin, random and least load filter before they choose. Source: policy-semantics §9,
/// "Placement per policy".
///
/// # Errors
/// [`PickError::NoAdmissibleEngine`] with every reason when none is left; a checker's own error.
pub(crate) fn filter(
    admission: &dyn EngineAdmission,
    engines: &[Arc<Worker>],
    snapshot: &LoadSnapshot,
    explain: Option<&Explanation>,
) -> Result<Vec<Arc<Worker>>, PickError> {
    let mut admitted = Vec::with_capacity(engines.len());
    let mut rejections = Vec::new();
    for engine in engines {
        match ask(admission, engine, snapshot, explain)? {
            Admission::Allow => admitted.push(Arc::clone(engine)),
            Admission::Reject(limit) => rejections.push(Rejection {
                engine: engine.id().clone(),
                limit,
            }),
        }
    }
    if admitted.is_empty() {
        return Err(PickError::NoAdmissibleEngine(rejections));
    }
    Ok(admitted)
}
