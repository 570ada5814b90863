//! One leg of a dispatched request: breaker permit, in-flight guard, outcome.
//!
//! A leg exists only after the whole selection succeeded. Whatever ends it (answer, error,
//! disconnect, panic) drops it, which frees the permit and the count exactly once; a leg that was
//! never settled counts as cancelled. Source: policy-semantics §18, http-and-operations §16.

use std::sync::Arc;

use tokio::time::Instant;

use crate::ids::ModelId;
use crate::server::ApiError;
use crate::server::metrics::Metrics;
use crate::workers::{InflightGuard, Outcome, Permit, Worker};

/// How a leg ended, for `worker_requests_total`. Source: policy-semantics §22.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegOutcome {
    /// A whole answer below 400.
    Success,
    /// A 4xx other than 429.
    ClientError,
    /// 429 or 503.
    Backpressure,
    /// Another 5xx, a transport error, a timeout or a cut body.
    Error,
    /// The client left, or the other leg ended the request.
    Cancelled,
}

impl LegOutcome {
    /// The outcome of a complete answer with this status.
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            429 | 503 => Self::Backpressure,
            500.. => Self::Error,
            400.. => Self::ClientError,
            _ => Self::Success,
        }
    }

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::ClientError => "client_error",
            Self::Backpressure => "backpressure",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }

    /// What it says about the engine; a cancelled request says nothing.
    const fn breaker(self) -> Option<Outcome> {
        match self {
            Self::Success | Self::ClientError => Some(Outcome::Success),
            Self::Backpressure => Some(Outcome::Neutral),
            Self::Error => Some(Outcome::Failure),
            Self::Cancelled => None,
        }
    }
}

/// One engine's part of a dispatched request.
#[derive(Debug)]
#[must_use = "dropping the leg ends it as cancelled"]
pub struct Leg {
    engine: Arc<Worker>,
    model: ModelId,
    permit: Permit,
    metrics: Arc<Metrics>,
    outcome: Option<LegOutcome>,
    _inflight: InflightGuard,
}

impl Leg {
    /// Claims the breaker and counts the request, with its prompt of `input_tokens`, on `engine`.
    ///
    /// # Errors
    /// [`ApiError::BreakerOpen`] when another request took the probe or the breaker opened since
    /// selection; [`ApiError::WorkerMisconfigured`] when the address is unusable, which counts as
    /// a failure of the engine.
    pub fn claim(
        engine: &Arc<Worker>,
        model: &ModelId,
        input_tokens: u64,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ApiError> {
        let now = Instant::now();
        let Some(permit) = engine.breaker().claim(now) else {
            let (_, left) = engine.breaker().state(now);
            metrics.worker_request(engine, model, LegOutcome::Error);
            return Err(ApiError::BreakerOpen(left));
        };
        let mut leg = Self {
            engine: Arc::clone(engine),
            model: model.clone(),
            permit,
            metrics: Arc::clone(metrics),
            outcome: None,
            _inflight: engine.acquire(input_tokens),
        };
        if engine.address().is_none() {
            leg.settle(LegOutcome::Error);
            return Err(ApiError::WorkerMisconfigured);
        }
        Ok(leg)
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Worker> {
        &self.engine
    }

    /// Books how the leg ended; only the first outcome counts.
    pub fn settle(&mut self, outcome: LegOutcome) {
        if self.outcome.is_some() {
            return;
        }
        self.outcome = Some(outcome);
        if let Some(outcome) = outcome.breaker() {
            self.permit.settle(outcome, Instant::now());
        }
    }

    /// The outcome booked so far.
    #[must_use]
    pub const fn outcome(&self) -> Option<LegOutcome> {
        self.outcome
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or(LegOutcome::Cancelled);
        self.metrics
            .worker_request(&self.engine, &self.model, outcome);
    }
}
