//! Circuit breaker of one engine: closed, open, half-open with one probe.
//!
//! A pure state machine: it is told outcomes and the time and asks no clock. Filtering is
//! non-mutating ([`Breaker::would_allow`]); the probe is claimed at dispatch
//! ([`Breaker::claim`]), so that recovering engines do not starve while requests merely look at
//! them. An outcome that belongs to an older probe changes nothing (generation check).
//! Source: policy-semantics §18.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::workers::availability;

/// When a breaker opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerParams {
    /// Consecutive failures that open it, at least 1.
    pub failures: u32,
    /// Time from opening until one probe may pass.
    pub cool_down: Duration,
}

impl Default for BreakerParams {
    /// 3 failures, 30 s. Source: policy-semantics §18.
    fn default() -> Self {
        Self {
            failures: 3,
            cool_down: Duration::from_secs(30),
        }
    }
}

/// What a finished exchange says about its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Any answer except the two below, 4xx included.
    Success,
    /// 5xx other than 503, transport error, timeout, cut body, unusable address.
    Failure,
    /// 429 or 503: busy, neither well nor ill.
    Neutral,
}

impl Outcome {
    /// The outcome that belongs to an engine's HTTP status.
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            429 | 503 => Self::Neutral,
            500.. => Self::Failure,
            _ => Self::Success,
        }
    }
}

/// The state, for gauges: 0, 1 and 2 in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Traffic passes.
    Closed,
    /// No traffic until the cool-down is over.
    Open,
    /// One probe decides.
    HalfOpen,
}

impl BreakerState {
    /// `closed`, `open` or `half_open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    /// The gauge value. Source: policy-semantics §22.
    #[must_use]
    pub const fn gauge(self) -> i64 {
        match self {
            Self::Closed => 0,
            Self::Open => 1,
            Self::HalfOpen => 2,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { streak: u32 },
    Open { since: Instant },
    HalfOpen { probe: Option<u64> },
}

#[derive(Debug)]
struct Inner {
    state: State,
    generation: u64,
}

/// One engine's breaker. Shared by every handle of the engine, also across a reload.
#[derive(Debug)]
pub struct Breaker {
    params: Option<BreakerParams>,
    /// True while closed with no failure on record: the hot path reads only this.
    calm: AtomicBool,
    inner: Mutex<Inner>,
}

impl Breaker {
    /// A closed breaker; `None` never opens.
    #[must_use]
    pub fn new(params: Option<BreakerParams>) -> Self {
        Self {
            params,
            calm: AtomicBool::new(true),
            inner: Mutex::new(Inner {
                state: State::Closed { streak: 0 },
                generation: 0,
            }),
        }
    }

    /// The parameters it was built with.
    #[must_use]
    pub const fn params(&self) -> Option<BreakerParams> {
        self.params
    }

    /// Whether a request could be dispatched at `now`. Changes nothing.
    #[must_use]
    pub fn would_allow(&self, now: Instant) -> bool {
        if self.calm.load(Ordering::Acquire) {
            return true;
        }
        match self.inner.lock().state {
            State::Closed { .. } => true,
            State::Open { since } => self.cooled(since, now),
            State::HalfOpen { probe } => probe.is_none(),
        }
    }

    /// When, without anybody's doing, the answer of [`would_allow`](Self::would_allow) changes after
    /// `now`: the end of the cool-down.
    #[must_use]
    pub fn changes_at(&self, now: Instant) -> Option<Instant> {
        if self.calm.load(Ordering::Acquire) {
            return None;
        }
        match self.inner.lock().state {
            State::Open { since } if !self.cooled(since, now) => {
                since.checked_add(self.cool_down())
            }
            State::Open { .. } | State::Closed { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// The current state and, while open, what is left of the cool-down at `now`.
    #[must_use]
    pub fn state(&self, now: Instant) -> (BreakerState, Duration) {
        match self.inner.lock().state {
            State::Closed { .. } => (BreakerState::Closed, Duration::ZERO),
            State::Open { since } => {
                let passed = now.saturating_duration_since(since);
                let left = self.cool_down().saturating_sub(passed);
                (BreakerState::Open, left)
            }
            State::HalfOpen { .. } => (BreakerState::HalfOpen, Duration::ZERO),
        }
    }

    /// Claims the right to dispatch one request; `None` means the breaker refuses.
    ///
    /// Past the cool-down the first claim becomes the only probe.
    #[must_use]
    pub fn claim(self: &Arc<Self>, now: Instant) -> Option<Permit> {
        if self.calm.load(Ordering::Acquire) {
            return Some(Permit::new(self, None));
        }
        let mut inner = self.inner.lock();
        let may_probe = match inner.state {
            State::Closed { .. } => return Some(Permit::new(self, None)),
            State::Open { since } => self.cooled(since, now),
            State::HalfOpen { probe } => probe.is_none(),
        };
        if !may_probe {
            return None;
        }
        inner.generation += 1;
        let generation = inner.generation;
        inner.state = State::HalfOpen {
            probe: Some(generation),
        };
        availability::changed();
        Some(Permit::new(self, Some(generation)))
    }

    fn cool_down(&self) -> Duration {
        self.params
            .map_or(Duration::ZERO, |params| params.cool_down)
    }

    fn cooled(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.cool_down()
    }

    fn record(&self, probe: Option<u64>, outcome: Outcome, now: Instant) {
        let Some(params) = self.params else { return };
        if outcome != Outcome::Failure && self.calm.load(Ordering::Acquire) {
            return;
        }
        let mut inner = self.inner.lock();
        let is_probe = match inner.state {
            State::HalfOpen { probe: current } => current.is_some() && current == probe,
            State::Closed { .. } | State::Open { .. } => false,
        };
        inner.state = match (inner.state, outcome) {
            (_, Outcome::Success) => State::Closed { streak: 0 },
            (State::Closed { streak }, Outcome::Failure) if streak + 1 >= params.failures => {
                State::Open { since: now }
            }
            (State::Closed { streak }, Outcome::Failure) => State::Closed { streak: streak + 1 },
            (State::HalfOpen { .. }, Outcome::Failure) if is_probe => State::Open { since: now },
            (State::HalfOpen { .. }, Outcome::Neutral) if is_probe => State::Closed { streak: 0 },
            (unchanged, Outcome::Failure | Outcome::Neutral) => unchanged,
        };
        let calm = matches!(inner.state, State::Closed { streak: 0 });
        self.calm.store(calm, Ordering::Release);
        availability::changed();
    }

    fn cancel(&self, generation: u64) {
        let mut inner = self.inner.lock();
        if let State::HalfOpen { probe } = &mut inner.state
            && *probe == Some(generation)
        {
            *probe = None;
            availability::changed();
        }
    }
}

/// The right to dispatch one request. Dropping it without an outcome (a cancelled request) frees
/// its own probe slot and nothing else.
#[derive(Debug)]
#[must_use = "a permit that is dropped counts as cancelled"]
pub struct Permit {
    breaker: Arc<Breaker>,
    probe: Option<u64>,
    settled: bool,
}

impl Permit {
    fn new(breaker: &Arc<Breaker>, probe: Option<u64>) -> Self {
        Self {
            breaker: Arc::clone(breaker),
            probe,
            settled: false,
        }
    }

    /// Books the outcome. Only the first one counts.
    pub fn settle(&mut self, outcome: Outcome, now: Instant) {
        if !std::mem::replace(&mut self.settled, true) {
            self.breaker.record(self.probe, outcome, now);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let (false, Some(generation)) = (self.settled, self.probe) {
            self.breaker.cancel(generation);
        }
    }
}

#[cfg(test)]
mod tests;
