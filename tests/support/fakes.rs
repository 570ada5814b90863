//! Fakes of the three roles that a policy meets, and of the policy itself; all record.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sgl_edge::ids::{Stage, WorkerId};
use sgl_edge::policies::{
    Admission, Draw, EngineAdmission, EngineMetrics, Limit, Pick, PickError, PickFuture,
    PickRequest, Policy, PolicyKind, Reason, at_once,
};
use sgl_edge::workers::Worker;

/// What a [`FakePolicy`] answers, whatever it is asked.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// The first candidate.
    First,
    /// This handle, candidate or not.
    Engine(Arc<Worker>),
    /// This error.
    Fail(PickError),
}

/// One call of a [`FakePolicy`], with everything it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) candidates: Vec<String>,
    pub(crate) model: String,
    pub(crate) stage: Stage,
    pub(crate) bucket: String,
    pub(crate) input_tokens: u64,
    pub(crate) expected_peak_tokens: Option<u64>,
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) session_key: Option<String>,
    pub(crate) routing_key: Option<String>,
}

/// Calls in order; policies that share a journal show their order among each other.
pub(crate) type Journal = Arc<Mutex<Vec<Call>>>;

/// A policy that records its calls and answers as told.
#[derive(Debug)]
pub(crate) struct FakePolicy {
    answer: Answer,
    journal: Journal,
}

impl FakePolicy {
    pub(crate) fn new(answer: Answer, journal: &Journal) -> Arc<Self> {
        Arc::new(Self {
            answer,
            journal: Arc::clone(journal),
        })
    }
}

impl Policy for FakePolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        self.journal.lock().push(Call {
            candidates: engines.iter().map(|e| e.id().to_string()).collect(),
            model: request.model.to_string(),
            stage: request.stage,
            bucket: request.bucket.to_string(),
            input_tokens: request.input_tokens,
            expected_peak_tokens: request.expected_peak_tokens,
            token_ids: request.token_ids.map(<[u32]>::to_vec),
            session_key: request.session_key.map(str::to_owned),
            routing_key: request.routing_key.map(str::to_owned),
        });
        let engine = match &self.answer {
            Answer::First => Ok(Arc::clone(&engines[0])),
            Answer::Engine(engine) => Ok(Arc::clone(engine)),
            Answer::Fail(error) => Err(error.clone()),
        };
        let reason = Reason::RoundRobin;
        at_once(engine.map(|engine| Pick { engine, reason }))
    }
}

type Verdict = dyn Fn(&Worker) -> Result<Admission, PickError> + Send + Sync;

/// A checker that records whom it was asked about, with which metrics.
pub(crate) struct FakeAdmission {
    verdict: Box<Verdict>,
    calls: Mutex<Vec<(WorkerId, EngineMetrics)>>,
}

impl fmt::Debug for FakeAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeAdmission")
    }
}

impl FakeAdmission {
    pub(crate) fn new(
        verdict: impl Fn(&Worker) -> Result<Admission, PickError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            verdict: Box::new(verdict),
            calls: Mutex::default(),
        })
    }

    /// Allows everything.
    pub(crate) fn open() -> Arc<Self> {
        Self::new(|_| Ok(Admission::Allow))
    }

    /// Refuses these engines by the in-flight cap and allows the others.
    pub(crate) fn refusing(ids: &'static [&'static str]) -> Arc<Self> {
        Self::new(move |engine| {
            Ok(if ids.contains(&engine.id().as_str()) {
                Admission::Reject(Limit::InflightRequests)
            } else {
                Admission::Allow
            })
        })
    }

    /// Engines asked about so far, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        let calls = self.calls.lock();
        calls.iter().map(|(id, _)| id.to_string()).collect()
    }

    /// The metrics of every call so far, in order.
    pub(crate) fn seen(&self) -> Vec<EngineMetrics> {
        let calls = self.calls.lock();
        calls.iter().map(|(_, metrics)| *metrics).collect()
    }
}

impl EngineAdmission for FakeAdmission {
    fn check(&self, engine: &Worker, metrics: &EngineMetrics) -> Result<Admission, PickError> {
        self.calls.lock().push((engine.id().clone(), *metrics));
        (self.verdict)(engine)
    }
}

/// Indices given in advance; panics when it is asked for more or for a smaller bound.
pub(crate) struct ScriptedDraw {
    script: Mutex<VecDeque<usize>>,
    on_draw: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for ScriptedDraw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedDraw")
    }
}

impl ScriptedDraw {
    pub(crate) fn new(script: impl IntoIterator<Item = usize>) -> Arc<Self> {
        Self::acting(script, || {})
    }

    /// Does something at every draw, which is between the capture of a snapshot and the check.
    pub(crate) fn acting(
        script: impl IntoIterator<Item = usize>,
        on_draw: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(script.into_iter().collect()),
            on_draw: Box::new(on_draw),
        })
    }

    /// Draws that were not asked for.
    pub(crate) fn left(&self) -> usize {
        self.script.lock().len()
    }
}

impl Draw for ScriptedDraw {
    fn below(&self, bound: usize) -> usize {
        (self.on_draw)();
        let next = self.script.lock().pop_front().expect("one more draw");
        assert!(next < bound, "scripted {next}, allowed 0..{bound}");
        next
    }
}
