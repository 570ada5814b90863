//! Rotation over the admitted candidates, with a cursor owned by this policy object.
//!
//! The cursor moves once per pick that has an admitted candidate and wraps around. A change of
//! membership may skip or repeat an engine; that is accepted. Source: policy-semantics §12.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policies::admission::{self, EngineAdmission};
use crate::policies::explain::{Compared, Explanation};
use crate::policies::{
    Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, Reason, at_once, ids,
};
use crate::state::EngineLoadTable;
use crate::workers::Worker;

/// `round_robin`.
#[derive(Debug)]
pub struct RoundRobinPolicy {
    cursor: AtomicUsize,
    loads: Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
}

impl RoundRobinPolicy {
    /// A rotation that starts at the first engine. Load is read for admission only.
    #[must_use]
    pub fn new(loads: Arc<EngineLoadTable>, admission: Arc<dyn EngineAdmission>) -> Self {
        Self {
            cursor: AtomicUsize::new(0),
            loads,
            admission,
        }
    }

    fn turn<'e>(
        &self,
        engines: &'e [Arc<Worker>],
        explain: Option<&Explanation>,
    ) -> Option<&'e Arc<Worker>> {
        if engines.is_empty() {
            return None;
        }
        let cursor = match explain {
            Some(_) => self.cursor.load(Ordering::Relaxed),
            None => self.cursor.fetch_add(1, Ordering::Relaxed),
        };
        engines.get(cursor % engines.len())
    }

    fn choose(
        &self,
        engines: &[Arc<Worker>],
        explain: Option<&Explanation>,
    ) -> Result<Pick, PickError> {
        if engines.is_empty() {
            return Err(PickError::NoCandidates);
        }
        if let Some(explain) = explain {
            explain.compared(Compared::RoundRobin {
                cursor: self.cursor.load(Ordering::Relaxed),
            });
        }
        let engine = if explain.is_none() && self.admission.admits_everything() {
            self.turn(engines, explain).cloned()
        } else {
            let snapshot = self.loads.capture(ids(engines));
            let admitted = admission::filter(self.admission.as_ref(), engines, &snapshot, explain)?;
            self.turn(&admitted, explain).cloned()
        };
        engine
            .map(|engine| Pick {
                engine,
                reason: Reason::RoundRobin,
            })
            .ok_or(PickError::NoCandidates)
    }
}

impl Policy for RoundRobinPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        at_once(self.choose(engines, request.explain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Stage;
    use crate::policies::AdmissionLimits;
    use crate::workers::{EngineUrl, WorkerSpec};

    #[test]
    fn the_cursor_wraps_around() {
        let policy = RoundRobinPolicy {
            cursor: AtomicUsize::new(usize::MAX),
            loads: Arc::default(),
            admission: Arc::new(AdmissionLimits::default()),
        };
        let engines = ["a", "b"].map(|id| {
            let spec = WorkerSpec {
                id: id.into(),
                url: EngineUrl::parse("http://127.0.0.1:1").unwrap(),
                model: "m".into(),
                role: Stage::Plain,
                bootstrap_port: None,
            };
            Arc::new(Worker::new(spec, None))
        });
        let turns: Vec<_> = (0..3)
            .map(|_| policy.turn(&engines, None).unwrap().id().as_str())
            .collect();
        assert_eq!(turns, ["b", "a", "b"]);
    }
}
