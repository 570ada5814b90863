//! The list of live engines.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use thiserror::Error;

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

type Role = Arc<[Arc<Worker>]>;

/// One immutable state of the registry.
#[derive(Debug, Default)]
pub struct Members {
    by_id: HashMap<WorkerId, Arc<Worker>>,
    by_model: HashMap<ModelId, HashMap<Stage, Role>>,
}

impl Members {
    fn build(workers: Vec<Arc<Worker>>) -> Result<Self, RegistryError> {
        let mut by_id = HashMap::with_capacity(workers.len());
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
        })
    }

    /// The present snapshot.
    #[must_use]
    pub fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Replaces the whole set by ready-made handles; what is not in it is gone at the next pick.
    ///
    /// # Errors
    /// [`RegistryError`]; the registry is unchanged then.
    pub fn replace(&self, workers: Vec<Arc<Worker>>) -> Result<(), RegistryError> {
        self.members.store(Arc::new(Members::build(workers)?));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::EngineUrl;

    fn spec(id: &str, model: &str, role: Stage) -> WorkerSpec {
        WorkerSpec {
            id: id.into(),
            url: EngineUrl::parse("http://127.0.0.1:1").unwrap(),
            model: model.into(),
            role,
            bootstrap_port: None,
        }
    }

    #[test]
    fn mixing_plain_with_prefill_or_decode_is_refused_and_changes_nothing() {
        let plain = vec![spec("a", "m", Stage::Plain)];
        let registry = WorkerRegistry::try_new(plain, None, None).unwrap();
        for role in [Stage::Prefill, Stage::Decode] {
            let mixed = ["a", "b"].map(|id| {
                let role = if id == "a" { Stage::Plain } else { role };
                Arc::new(Worker::new(spec(id, "m", role), None))
            });
            let error = registry.replace(mixed.to_vec()).unwrap_err();
            assert!(matches!(error, RegistryError::MixedRoles { .. }));
            assert_eq!(registry.members().all().len(), 1);
        }
    }

    #[test]
    fn different_models_may_have_different_roles() {
        let specs = vec![
            spec("a", "m", Stage::Plain),
            spec("p", "n", Stage::Prefill),
            spec("d", "n", Stage::Decode),
        ];
        let members = WorkerRegistry::try_new(specs, None, None)
            .unwrap()
            .members();
        assert_eq!(members.of(&"m".into(), Stage::Plain).len(), 1);
        assert_eq!(members.of(&"n".into(), Stage::Decode)[0].id().as_str(), "d");
        assert!(members.of(&"n".into(), Stage::Plain).is_empty());
    }

    #[test]
    fn members_are_sorted_bytewise() {
        let specs = ["w2", "w10", "w1"].map(|id| spec(id, "m", Stage::Plain));
        let members = WorkerRegistry::try_new(specs.to_vec(), None, None)
            .unwrap()
            .members();
        let ids: Vec<_> = members
            .of(&"m".into(), Stage::Plain)
            .iter()
            .map(|w| w.id().as_str().to_owned())
            .collect();
        assert_eq!(ids, ["w1", "w10", "w2"]);
    }

    #[test]
    fn one_id_twice_is_refused() {
        let specs = vec![spec("a", "m", Stage::Plain), spec("a", "n", Stage::Plain)];
        let error = WorkerRegistry::try_new(specs, None, None).unwrap_err();
        assert_eq!(error, RegistryError::DuplicateId("a".into()));
    }
}
