//! `load_based`: the admitted candidate that holds the least work.
//!
//! The score is what the engine reports as waiting and running, plus the requests this router has
//! sent it since that report; in-flight decides between equals. If one candidate has no fresh
//! report, in-flight is the score of all. Equal engines take turns. Engines are admitted first and
//! chosen among afterwards; nothing is sampled, so two routers without reports choose alike.
//! Source: policy-semantics §9, §11.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policies::admission::{self, EngineAdmission};
use crate::policies::explain::{Compared, Explanation, LoadSource};
use crate::policies::{
    Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, Reason, at_once, ids,
};
use crate::state::{EngineLoadTable, LoadSnapshot};
use crate::workers::Worker;

/// What is compared, smallest first: score, then in-flight.
type Key = [u64; 2];

/// `load_based`.
#[derive(Debug)]
pub struct LeastLoadPolicy {
    cursor: AtomicUsize,
    loads: Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
}

impl LeastLoadPolicy {
    /// Turns among equal engines start at the first.
    #[must_use]
    pub fn new(loads: Arc<EngineLoadTable>, admission: Arc<dyn EngineAdmission>) -> Self {
        Self {
            cursor: AtomicUsize::new(0),
            loads,
            admission,
        }
    }

    fn choose(
        &self,
        engines: &[Arc<Worker>],
        explain: Option<&Explanation>,
    ) -> Result<Pick, PickError> {
        if engines.is_empty() {
            return Err(PickError::NoCandidates);
        }
        let snapshot = self.loads.capture(ids(engines));
        let admitted;
        let engines = if explain.is_none() && self.admission.admits_everything() {
            engines
        } else {
            admitted = admission::filter(self.admission.as_ref(), engines, &snapshot, explain)?;
            admitted.as_slice()
        };
        let (source, keys) = keys(engines, &snapshot);
        let least = keys.iter().min().ok_or(PickError::NoCandidates)?;
        let tied = keys.iter().filter(|key| *key == least).count();
        let turn = self.turn(explain) % tied;
        let mut places = (0..keys.len()).filter(|place| keys[*place] == *least);
        let place = places.nth(turn).ok_or(PickError::NoCandidates)?;
        if let Some(explain) = explain {
            let ids = engines.iter().map(|engine| engine.id().clone());
            explain.compared(Compared::LoadBased {
                source,
                keys: ids.zip(keys.iter().copied()).collect(),
            });
        }
        Ok(Pick {
            engine: Arc::clone(&engines[place]),
            reason: Reason::LeastLoad,
        })
    }

    fn turn(&self, explain: Option<&Explanation>) -> usize {
        match explain {
            Some(_) => self.cursor.load(Ordering::Relaxed),
            None => self.cursor.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// The keys of `engines` in their order, all from one source.
fn keys(engines: &[Arc<Worker>], snapshot: &LoadSnapshot) -> (LoadSource, Vec<Key>) {
    let reported = engines.iter().map(|engine| {
        let load = snapshot.get(engine.id())?;
        let score = load
            .waiting_requests
            .saturating_add(load.running_requests)
            .saturating_add(engine.dispatched_since(load.captured_at));
        Some([score, engine.inflight()])
    });
    match reported.collect() {
        Some(keys) => (LoadSource::Reports, keys),
        None => {
            let held = engines.iter().map(|engine| [engine.inflight(); 2]);
            (LoadSource::Inflight, held.collect())
        }
    }
}

impl Policy for LeastLoadPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::LeastLoad
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        at_once(self.choose(engines, request.explain))
    }
}
