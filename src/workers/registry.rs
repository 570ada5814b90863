//! The list of live engines.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::Instant;

use crate::ids::{ModelId, Stage, WorkerId};
use crate::workers::{BreakerParams, Worker, WorkerSpec};

/// Why a set of engines was refused; the registry is unchanged then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// One model has plain engines and prefill or decode engines.
    #[error("model `{model}` mixes plain with prefill/decode engines (`{engine}` is {role})")]
    MixedRoles {
        /// The model.
        model: ModelId,
        /// The engine that would cause the mix.
        engine: WorkerId,
        /// Its role.
        role: Stage,
    },
    /// Two engines have one id.
    #[error("engine id `{0}` is used twice")]
    DuplicateId(WorkerId),
}

/// What an adoption changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adopted {
    /// Engines that were not there before, or were at another address.
    pub added: Vec<WorkerId>,
    /// Engines that are gone, or are at another address.
    pub removed: Vec<WorkerId>,
}

type Role = Arc<[Arc<Worker>]>;

/// The engines of one model by role. Ids come from the operator, so a quick hash is safe.
type Roles = HashMap<Stage, Role, DefaultHashBuilder>;

/// One immutable state of the registry.
#[derive(Debug, Default)]
pub struct Members {
    by_id: HashMap<WorkerId, Arc<Worker>, DefaultHashBuilder>,
    by_model: HashMap<ModelId, Roles, DefaultHashBuilder>,
}

impl Members {
    fn build(workers: Vec<Arc<Worker>>) -> Result<Self, RegistryError> {
        let mut by_id = HashMap::default();
        let mut lists: HashMap<ModelId, HashMap<Stage, Vec<Arc<Worker>>>> = HashMap::new();
        for worker in workers {
            let (id, role) = (worker.id().clone(), worker.role());
            let roles = lists.entry(worker.model().clone()).or_default();
            let plain = role == Stage::Plain;
            if roles.keys().any(|other| (*other == Stage::Plain) != plain) {
                return Err(RegistryError::MixedRoles {
                    model: worker.model().clone(),
                    engine: id,
                    role,
                });
            }
            roles.entry(role).or_default().push(Arc::clone(&worker));
            if by_id.insert(id.clone(), worker).is_some() {
                return Err(RegistryError::DuplicateId(id));
            }
        }
        let sorted = |mut list: Vec<Arc<Worker>>| -> Role {
            list.sort_by(|a, b| a.id().cmp(b.id()));
            list.into()
        };
        let by_model = lists
            .into_iter()
            .map(|(model, roles)| {
                let roles = roles.into_iter().map(|(role, list)| (role, sorted(list)));
                (model, roles.collect())
            })
            .collect();
        Ok(Self { by_id, by_model })
    }

    /// Engines of one model and role, sorted by id, whatever their health.
    #[must_use]
    pub fn of(&self, model: &ModelId, role: Stage) -> &[Arc<Worker>] {
        self.by_model
            .get(model)
            .and_then(|roles| roles.get(&role))
            .map_or(&[], |list| list)
    }

    /// The engine with this id.
    #[must_use]
    pub fn get(&self, id: &WorkerId) -> Option<&Arc<Worker>> {
        self.by_id.get(id)
    }

    /// All engines, sorted by id.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Worker>> {
        let mut all: Vec<_> = self.by_id.values().cloned().collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }
}

/// Live engines: many readers, a new snapshot per change.
#[derive(Debug, Default)]
pub struct WorkerRegistry {
    members: ArcSwap<Members>,
    /// Serialises changes that build on the present members.
    writing: Mutex<()>,
}

impl WorkerRegistry {
    /// A registry of these engines. Engines that `previous` had under the same id hand over their
    /// counters (see [`Worker::succeed`]).
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn try_new(
        specs: Vec<WorkerSpec>,
        breaker: Option<BreakerParams>,
        previous: Option<&Self>,
    ) -> Result<Self, RegistryError> {
        let old = previous.map(Self::members);
        let workers = specs.into_iter().map(|spec| {
            let predecessor = old.as_ref().and_then(|old| old.get(&spec.id));
            Arc::new(match predecessor {
                Some(predecessor) => Worker::succeed(spec, breaker, predecessor),
                None => Worker::new(spec, breaker),
            })
        });
        let members = Members::build(workers.collect())?;
        Ok(Self {
            members: ArcSwap::from_pointee(members),
            writing: Mutex::new(()),
        })
    }

    /// The present snapshot.
    #[must_use]
    pub fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Whether `snapshot` is the present one.
    #[must_use]
    pub fn are_members(&self, snapshot: &Arc<Members>) -> bool {
        Arc::ptr_eq(&self.members.load(), snapshot)
    }

    /// Whether `model` has engines of this role now, whatever their health.
    #[must_use]
    pub fn has(&self, model: &ModelId, role: Stage) -> bool {
        !self.members.load().of(model, role).is_empty()
    }

    /// Gives every engine the role that it told ([`Facts`](crate::workers::Facts)) in place of its
    /// label; counters, breaker and health go on, and requests in flight keep their handle.
    ///
    /// An engine whose role would mix plain with prefill or decode keeps its label and is no
    /// candidate while it says so. Gives those that were not refused before.
    pub fn learn_roles(&self) -> Vec<RegistryError> {
        let _one_at_a_time = self.writing.lock();
        let members = self.members();
        let (mut engines, mut changed) = (members.all(), false);
        for engine in &mut engines {
            if let Some(relabelled) = engine.as_told() {
                (*engine, changed) = (Arc::new(relabelled), true);
            }
        }
        if let Ok(all) = Members::build(engines) {
            for engine in all.by_id.values() {
                engine.set_misplaced(false);
            }
            if changed {
                self.members.store(Arc::new(all));
            }
            return Vec::new();
        }
        // Some contradict each other: take those that fit one by one.
        let (mut kept, mut refused) = (members.all(), Vec::new());
        for place in 0..kept.len() {
            let Some(relabelled) = kept[place].as_told() else {
                kept[place].set_misplaced(false);
                continue;
            };
            let old = std::mem::replace(&mut kept[place], Arc::new(relabelled));
            let misplaced = Members::build(kept.clone()).err();
            let new = old.set_misplaced(misplaced.is_some());
            if let Some(error) = misplaced {
                kept[place] = old;
                refused.extend(new.then_some(error));
            }
        }
        if let Ok(kept) = Members::build(kept) {
            self.members.store(Arc::new(kept));
        }
        refused
    }

    /// Makes `specs` the engines of `model`, and leaves those of other models alone. Handles of
    /// engines that did not change stay the same, of others with the same id hand over what
    /// [`Worker::succeed`] says. What is not in `specs` is gone at the next pick; requests in
    /// flight on it finish. Gives the ids that came and those that went.
    ///
    /// # Errors
    /// [`RegistryError`]; the registry is unchanged then.
    pub fn adopt(
        &self,
        model: &ModelId,
        specs: Vec<WorkerSpec>,
        breaker: Option<BreakerParams>,
    ) -> Result<Adopted, RegistryError> {
        let _one_at_a_time = self.writing.lock();
        let members = self.members();
        let mut workers = members.all();
        let mut before: HashMap<WorkerId, Arc<Worker>> = workers
            .extract_if(.., |worker| worker.model() == model)
            .map(|worker| (worker.id().clone(), worker))
            .collect();
        let mut adopted = Adopted::default();
        let now = Instant::now();
        for spec in specs {
            let worker = match before.remove(&spec.id) {
                Some(old) if *old.spec() == spec => old,
                Some(old) => {
                    let new = Arc::new(Worker::succeed(spec, breaker, &old));
                    if !new.same_engine(&old) {
                        adopted.added.push(new.id().clone());
                        adopted.removed.push(new.id().clone());
                    }
                    new
                }
                None => {
                    adopted.added.push(spec.id.clone());
                    Arc::new(Worker::joining(spec, breaker, now))
                }
            };
            workers.push(worker);
        }
        adopted.removed.extend(before.into_keys());
        self.members.store(Arc::new(Members::build(workers)?));
        Ok(adopted)
    }

    /// Replaces the whole set by ready-made handles; what is not in it is gone at the next pick.
    ///
    /// # Errors
    /// [`RegistryError`]; the registry is unchanged then.
    pub fn replace(&self, workers: Vec<Arc<Worker>>) -> Result<(), RegistryError> {
        let _one_at_a_time = self.writing.lock();
        self.members.store(Arc::new(Members::build(workers)?));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
