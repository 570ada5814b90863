//! An engine group: membership, its policy, and the check of the policy's answer.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use crate::ids::{ModelId, Stage, WorkerId};
use crate::policies::explain::NotCandidate;
use crate::policies::{Pick, PickError, PickRequest, Policy};
use crate::workers::{Worker, WorkerRegistry};

use super::candidates::Candidates;

/// Engines of one model and role that a bucket may use, and the policy that picks among them.
#[derive(Debug)]
pub struct EngineGroup {
    worker_ids: Option<HashSet<WorkerId>>,
    policy: Arc<dyn Policy>,
    candidates: ArcSwapOption<Candidates>,
}

impl EngineGroup {
    /// A catch-all group: every healthy engine of the requested model and role.
    #[must_use]
    pub fn new(policy: Arc<dyn Policy>) -> Self {
        Self {
            worker_ids: None,
            policy,
            candidates: ArcSwapOption::empty(),
        }
    }

    /// Restricts membership. An empty set means no engines; unknown ids are never candidates.
    #[must_use]
    pub fn with_worker_ids(mut self, worker_ids: impl IntoIterator<Item = WorkerId>) -> Self {
        self.worker_ids = Some(worker_ids.into_iter().collect());
        self
    }

    /// The configured members; `None` means every engine of the model and role.
    #[must_use]
    pub const fn worker_ids(&self) -> Option<&HashSet<WorkerId>> {
        self.worker_ids.as_ref()
    }

    /// Its policy.
    #[must_use]
    pub fn policy(&self) -> &Arc<dyn Policy> {
        &self.policy
    }

    /// Whether at least one member could be picked now. Asks no policy and changes nothing.
    #[must_use]
    pub fn has_candidate(&self, workers: &WorkerRegistry, model: &ModelId, stage: Stage) -> bool {
        let candidates = self.candidates(workers, model, stage, Instant::now());
        !candidates.engines().is_empty()
    }

    /// Filters live engines by model, health, stage and membership, in id order, and asks the
    /// policy.
    ///
    /// # Errors
    /// [`PickError::NoCandidates`] without asking the policy when nothing is left;
    /// [`PickError::OutsideCandidates`] when the answer is not one of the very handles offered (a
    /// new allocation with the same id is foreign); the policy's own errors.
    ///
    /// Source: design §2, policy-semantics §5.
    pub async fn pick(
        &self,
        workers: &WorkerRegistry,
        request: &PickRequest<'_>,
    ) -> Result<Pick, PickError> {
        let now = Instant::now();
        let candidates = self.candidates(workers, request.model, request.stage, now);
        let result = self.ask(&candidates, request).await;
        if let Some(explain) = request.explain {
            let engines = self.traces(&candidates, now);
            explain.group(request.stage, self.policy.kind(), engines, &result);
        }
        result
    }

    async fn ask(
        &self,
        candidates: &Candidates,
        request: &PickRequest<'_>,
    ) -> Result<Pick, PickError> {
        if candidates.engines().is_empty() {
            return Err(PickError::NoCandidates);
        }
        let pick = self.policy.pick(candidates.engines(), request).await?;
        if candidates.offers(&pick.engine) {
            Ok(pick)
        } else {
            Err(PickError::OutsideCandidates(pick.engine.id().clone()))
        }
    }

    /// Every engine of the model and role, with the reason against it.
    fn traces(
        &self,
        candidates: &Candidates,
        now: Instant,
    ) -> Vec<(WorkerId, Option<NotCandidate>)> {
        let against = |engine: &Worker| {
            if !self.is_member(engine) {
                Some(NotCandidate::NotAMember)
            } else if !engine.healthy() {
                Some(NotCandidate::Unhealthy)
            } else if !engine.available(now) {
                Some(NotCandidate::BreakerOpen)
            } else {
                None
            }
        };
        candidates
            .all()
            .iter()
            .map(|engine| (engine.id().clone(), against(engine)))
            .collect()
    }

    fn is_member(&self, engine: &Worker) -> bool {
        self.worker_ids
            .as_ref()
            .is_none_or(|ids| ids.contains(engine.id()))
    }

    /// The engines that may be offered at `now`, made anew only after something changed.
    fn candidates(
        &self,
        workers: &WorkerRegistry,
        model: &ModelId,
        stage: Stage,
        now: Instant,
    ) -> Arc<Candidates> {
        if let Some(known) = self.candidates.load_full()
            && known.hold(workers, model, stage, now)
        {
            return known;
        }
        let is_member = |engine: &Worker| self.is_member(engine);
        let fresh = Arc::new(Candidates::look(workers, model, stage, now, is_member));
        self.candidates.store(Some(Arc::clone(&fresh)));
        fresh
    }
}
