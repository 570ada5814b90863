//! Groups hold ids, not engines: they follow the registry at every pick. Design §1, §2.

use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use sgl_edge::buckets::EngineGroup;
use sgl_edge::ids::Stage;
use sgl_edge::policies::PickError;
use sgl_edge::workers::{Worker, WorkerRegistry};

use crate::support::engines::{MODEL, engine, engine_of, plain_engines, registry};
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::picks::ask_group;
use crate::support::seed::rng;

fn first_of(group: &EngineGroup, workers: &WorkerRegistry) -> Result<Arc<Worker>, PickError> {
    ask_group(group, workers, MODEL, Stage::Plain).map(|pick| pick.engine)
}

#[test]
fn engines_that_leave_and_come_are_seen_at_the_next_pick() {
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let engines = plain_engines(&["a", "b", "c"]);
    let workers = registry(&engines[..2]);
    let sets: [&[Arc<Worker>]; 4] = [&engines[..2], &engines[1..], &[], &engines];
    for set in sets {
        workers.replace(set.to_vec()).unwrap();
        let _ = first_of(&group, &workers);
    }
    let calls = journal.lock();
    let offered: Vec<_> = calls.iter().map(|call| call.candidates.join("")).collect();
    assert_eq!(offered, ["ab", "bc", "abc"], "and none while it is empty");
}

#[test]
fn a_successor_with_the_same_id_is_offered_and_its_predecessor_is_foreign() {
    let [old, new] = ["http://127.0.0.1:1"; 2].map(|_| engine("a", Stage::Plain));
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let stubborn = EngineGroup::new(FakePolicy::new(Answer::Engine(Arc::clone(&old)), &journal));
    let workers = registry(&[Arc::clone(&old)]);
    assert!(Arc::ptr_eq(&first_of(&group, &workers).unwrap(), &old));
    assert!(first_of(&stubborn, &workers).is_ok());
    workers.replace(vec![Arc::clone(&new)]).unwrap();
    assert!(Arc::ptr_eq(&first_of(&group, &workers).unwrap(), &new));
    let error = first_of(&stubborn, &workers).unwrap_err();
    assert_eq!(error, PickError::OutsideCandidates("a".into()));
}

#[test]
fn a_refused_replacement_leaves_the_candidates_as_they_were() {
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let workers = registry(&plain_engines(&["a"]));
    let mixed = vec![engine("a", Stage::Plain), engine("p", Stage::Prefill)];
    assert!(workers.replace(mixed).is_err());
    assert_eq!(first_of(&group, &workers).unwrap().id().as_str(), "a");
}

#[test]
fn a_group_asked_over_two_registries_mixes_nothing() {
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let one = registry(&plain_engines(&["a"]));
    let two = registry(&plain_engines(&["b"]));
    for _ in 0..3 {
        assert_eq!(first_of(&group, &one).unwrap().id().as_str(), "a");
        assert_eq!(first_of(&group, &two).unwrap().id().as_str(), "b");
    }
}

#[test]
fn a_group_asked_for_two_models_and_stages_in_turn_mixes_nothing() {
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let workers = registry(&[
        engine_of("m", "m", Stage::Plain),
        engine_of("n", "n", Stage::Plain),
        engine_of("p", "split", Stage::Prefill),
        engine_of("d", "split", Stage::Decode),
    ]);
    let rows = [
        ("m", Stage::Plain),
        ("n", Stage::Plain),
        ("p", Stage::Prefill),
        ("d", Stage::Decode),
        ("m", Stage::Plain),
    ];
    for (expected, stage) in rows {
        let plain = stage == Stage::Plain;
        let model = if plain { expected } else { "split" };
        let pick = ask_group(&group, &workers, model, stage).unwrap();
        assert_eq!(pick.engine.id().as_str(), expected);
    }
}

/// The world a group looks at, kept beside the registry.
struct World {
    engines: Vec<Arc<Worker>>,
    workers: WorkerRegistry,
}

impl World {
    fn step(&mut self, rng: &mut StdRng) {
        if rng.random_bool(0.3) {
            self.engines = population(rng);
            let replaced = self.workers.replace(self.engines.clone());
            replaced.expect("no mixed roles");
        } else if let Some(engine) = pick_one(rng, &self.engines) {
            engine.set_healthy(rng.random_bool(0.6));
        }
    }

    fn expected(&self, members: Option<&[&str]>, model: &str, stage: Stage) -> Vec<String> {
        let mut ids = Vec::new();
        for engine in &self.engines {
            let id = engine.id().as_str();
            let member = members.is_none_or(|members| members.contains(&id));
            let fits = engine.model().as_str() == model && engine.role() == stage;
            if member && fits && engine.healthy() {
                ids.push(id.to_owned());
            }
        }
        ids.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        ids
    }
}

fn pick_one<'a>(rng: &mut StdRng, engines: &'a [Arc<Worker>]) -> Option<&'a Arc<Worker>> {
    (!engines.is_empty()).then(|| &engines[rng.random_range(0..engines.len())])
}

/// Some of `e0`…`e11`: plain engines of `m`, prefill and decode engines of `n`.
fn population(rng: &mut StdRng) -> Vec<Arc<Worker>> {
    let mut engines = Vec::new();
    for index in 0..12 {
        if rng.random_bool(0.3) {
            continue;
        }
        let (model, role) = match rng.random_range(0..3) {
            0 => ("m", Stage::Plain),
            1 => ("n", Stage::Prefill),
            _ => ("n", Stage::Decode),
        };
        engines.push(engine_of(&format!("e{index}"), model, role));
    }
    engines
}

#[test]
fn after_any_changes_exactly_the_right_engines_are_offered() {
    let mut rng = rng();
    let journal = Journal::default();
    let memberships: [Option<&[&str]>; 4] = [
        None,
        Some(&[]),
        Some(&["e1", "e10", "e2", "e3"]),
        Some(&["e5", "nobody", "e0"]),
    ];
    let groups = memberships.map(|members| {
        let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
        match members {
            Some(ids) => group.with_worker_ids(ids.iter().map(|id| (*id).into())),
            None => group,
        }
    });
    let engines = population(&mut rng);
    let mut world = World {
        workers: registry(&engines),
        engines,
    };
    let mut calls = 0;
    for _ in 0..20_000 {
        world.step(&mut rng);
        let which = rng.random_range(0..groups.len());
        let (model, stage) = [
            ("m", Stage::Plain),
            ("n", Stage::Prefill),
            ("n", Stage::Decode),
            ("m", Stage::Decode),
        ][rng.random_range(0..4)];
        let expected = world.expected(memberships[which], model, stage);
        let group = &groups[which];
        let found = group.has_candidate(&world.workers, &model.into(), stage);
        assert_eq!(found, !expected.is_empty());
        let result = ask_group(group, &world.workers, model, stage);
        let call = journal.lock().pop();
        assert_eq!(result.is_ok(), !expected.is_empty());
        calls += usize::from(call.is_some());
        let offered = call.map(|call| call.candidates).unwrap_or_default();
        assert_eq!(offered, expected, "{model} {stage} {which}");
    }
    assert!(calls > 1000, "the loop met candidates");
}
