//! The engines of a group that may be offered to its policy, kept from pick to pick.
//!
//! Looking at every engine's health for every request would make the cost of a request grow with
//! the fleet. The list holds until the registry has other members, some engine became available or
//! ceased to be, or a cool-down ended. It chooses nothing. Source: policy-semantics §5.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::ids::{ModelId, Stage};
use crate::workers::{Members, Worker, WorkerRegistry, availability};

/// Up to this many handles are compared one by one, which is quicker than hashing there.
const FEW: usize = 16;

/// The available members of one group as they were at one moment.
#[derive(Debug)]
pub(super) struct Candidates {
    snapshot: Arc<Members>,
    model: ModelId,
    stage: Stage,
    /// The number of changes before the look.
    changes: u64,
    /// When a cool-down ends.
    until: Option<Instant>,
    engines: Vec<Arc<Worker>>,
    /// The handles of a long list, by address.
    handles: HashSet<usize>,
}

impl Candidates {
    /// Looks at every engine of `model` and `stage` that `is_member`.
    pub(super) fn look(
        workers: &WorkerRegistry,
        model: &ModelId,
        stage: Stage,
        now: Instant,
        is_member: impl Fn(&Worker) -> bool,
    ) -> Self {
        // Read before the engines: a change during the look is seen by the next request.
        let changes = availability::changes();
        let snapshot = workers.members();
        let members = snapshot.of(model, stage).iter();
        let (mut engines, mut until) = (Vec::new(), None);
        for engine in members.filter(|engine| is_member(engine)) {
            if engine.available(now) {
                engines.push(Arc::clone(engine));
            }
            let change = engine.availability_changes_at(now);
            until = [until, change].into_iter().flatten().min();
        }
        let mut handles = HashSet::new();
        if engines.len() > FEW {
            handles.extend(engines.iter().map(address));
        }
        Self {
            snapshot,
            model: model.clone(),
            stage,
            changes,
            until,
            engines,
            handles,
        }
    }

    /// Whether the list is still right for a request of `model` and `stage` at `now`.
    pub(super) fn hold(
        &self,
        workers: &WorkerRegistry,
        model: &ModelId,
        stage: Stage,
        now: Instant,
    ) -> bool {
        self.changes == availability::changes()
            && self.until.is_none_or(|until| now < until)
            && workers.are_members(&self.snapshot)
            && self.stage == stage
            && self.model == *model
    }

    /// In id order.
    pub(super) fn engines(&self) -> &[Arc<Worker>] {
        &self.engines
    }

    /// Whether `engine` is one of the very handles in the list.
    pub(super) fn offers(&self, engine: &Arc<Worker>) -> bool {
        if self.engines.len() > FEW {
            return self.handles.contains(&address(engine));
        }
        let mut engines = self.engines.iter();
        engines.any(|candidate| Arc::ptr_eq(candidate, engine))
    }

    /// Every engine of the model and role, members or not, available or not.
    pub(super) fn all(&self) -> &[Arc<Worker>] {
        self.snapshot.of(&self.model, self.stage)
    }
}

fn address(engine: &Arc<Worker>) -> usize {
    Arc::as_ptr(engine).addr()
}
