//! A uniform, independent draw over the admitted candidates. Source: policy-semantics §12.

use std::sync::Arc;

use crate::policies::admission::{self, EngineAdmission};
use crate::policies::explain::{Compared, Explanation};
use crate::policies::{
    Draw, Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, Reason, at_once, ids,
};
use crate::state::EngineLoadTable;
use crate::workers::Worker;

/// `random`.
#[derive(Debug)]
pub struct RandomPolicy {
    loads: Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
    draw: Arc<dyn Draw>,
}

impl RandomPolicy {
    /// Load is read for admission only.
    #[must_use]
    pub fn new(
        loads: Arc<EngineLoadTable>,
        admission: Arc<dyn EngineAdmission>,
        draw: Arc<dyn Draw>,
    ) -> Self {
        Self {
            loads,
            admission,
            draw,
        }
    }

    fn drawn(&self, engines: &[Arc<Worker>]) -> Pick {
        Pick {
            engine: Arc::clone(&engines[self.draw.below(engines.len())]),
            reason: Reason::Random,
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
        if let Some(explain) = explain {
            explain.compared(Compared::Random {});
        } else if self.admission.admits_everything() {
            return Ok(self.drawn(engines));
        }
        let snapshot = self.loads.capture(ids(engines));
        let admitted = admission::filter(self.admission.as_ref(), engines, &snapshot, explain)?;
        Ok(self.drawn(&admitted))
    }
}

impl Policy for RandomPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Random
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        at_once(self.choose(engines, request.explain))
    }
}
