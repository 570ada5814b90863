//! An engine group: membership, its policy, and the check of the policy's answer.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use crate::ids::{ModelId, Stage, WorkerId};
use crate::policies::explain::NotCandidate;
use crate::policies::{Pick, PickError, PickRequest, Policy};
use crate::workers::{Members, Worker, WorkerRegistry};

/// Engines of one model and role that a bucket may use, and the policy that picks among them.
#[derive(Debug)]
pub struct EngineGroup {
    worker_ids: Option<HashSet<WorkerId>>,
    policy: Arc<dyn Policy>,
    resolved: ArcSwapOption<Resolved>,
}

/// The members of one registry snapshot, so that a request does not look them up again.
#[derive(Debug)]
struct Resolved {
    snapshot: Arc<Members>,
    model: ModelId,
    stage: Stage,
    engines: Vec<Arc<Worker>>,
}

impl EngineGroup {
    /// A catch-all group: every healthy engine of the requested model and role.
    #[must_use]
    pub fn new(policy: Arc<dyn Policy>) -> Self {
        Self {
            worker_ids: None,
            policy,
            resolved: ArcSwapOption::empty(),
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
        let now = Instant::now();
        let resolved = self.members(workers, model, stage);
        resolved.engines.iter().any(|engine| engine.available(now))
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
        let resolved = self.members(workers, request.model, request.stage);
        let now = Instant::now();
        // The list is copied only while some member is unavailable.
        let available: Vec<Arc<Worker>>;
        let candidates = if resolved.engines.iter().all(|engine| engine.available(now)) {
            resolved.engines.as_slice()
        } else {
            let usable = resolved
                .engines
                .iter()
                .filter(|engine| engine.available(now));
            available = usable.cloned().collect();
            available.as_slice()
        };
        let result = self.ask(candidates, request).await;
        if let Some(explain) = request.explain {
            let engines = self.traces(&resolved, now);
            explain.group(request.stage, self.policy.kind(), engines, &result);
        }
        result
    }

    async fn ask(
        &self,
        candidates: &[Arc<Worker>],
        request: &PickRequest<'_>,
    ) -> Result<Pick, PickError> {
        if candidates.is_empty() {
            return Err(PickError::NoCandidates);
        }
        let pick = self.policy.pick(candidates, request).await?;
        if candidates
            .iter()
            .any(|candidate| Arc::ptr_eq(candidate, &pick.engine))
        {
            Ok(pick)
        } else {
            Err(PickError::OutsideCandidates(pick.engine.id().clone()))
        }
    }

    /// Every engine of the model and role, with the reason against it.
    fn traces(&self, resolved: &Resolved, now: Instant) -> Vec<(WorkerId, Option<NotCandidate>)> {
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
        let all = resolved.snapshot.of(&resolved.model, resolved.stage);
        all.iter()
            .map(|engine| (engine.id().clone(), against(engine)))
            .collect()
    }

    fn is_member(&self, engine: &Worker) -> bool {
        self.worker_ids
            .as_ref()
            .is_none_or(|ids| ids.contains(engine.id()))
    }

    fn members(&self, workers: &WorkerRegistry, model: &ModelId, stage: Stage) -> Arc<Resolved> {
        let snapshot = workers.members();
        if let Some(resolved) = self.resolved.load_full()
            && Arc::ptr_eq(&resolved.snapshot, &snapshot)
            && resolved.stage == stage
            && resolved.model == *model
        {
            return resolved;
        }
        let engines = snapshot
            .of(model, stage)
            .iter()
            .filter(|engine| self.is_member(engine))
            .cloned()
            .collect();
        let resolved = Arc::new(Resolved {
            snapshot,
            model: model.clone(),
            stage,
            engines,
        });
        self.resolved.store(Some(Arc::clone(&resolved)));
        resolved
    }
}
