use std::time::Duration;

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
fn an_adopted_list_keeps_what_stays_and_drops_what_is_gone() {
    let specs = ["a", "b", "c"].map(|id| spec(id, "m", Stage::Plain));
    let mut all = specs.to_vec();
    all.push(spec("other", "n", Stage::Decode));
    let registry = WorkerRegistry::try_new(all, None, None).unwrap();
    let handle = |id: &str| registry.members().get(&id.into()).cloned();
    let (a, b, other) = (handle("a").unwrap(), handle("b").unwrap(), handle("other"));
    let guard = b.acquire(1);
    let mut moved = spec("b", "m", Stage::Plain);
    moved.url = EngineUrl::parse("http://127.0.0.1:2").unwrap();
    let list = vec![
        spec("a", "m", Stage::Plain),
        moved,
        spec("d", "m", Stage::Plain),
    ];
    let adopted = registry.adopt(&"m".into(), list, None).unwrap();
    let ids = |list: &[&str]| {
        list.iter()
            .map(|id| (*id).into())
            .collect::<Vec<WorkerId>>()
    };
    assert_eq!(adopted.added, ids(&["b", "d"]));
    assert_eq!(adopted.removed, ids(&["b", "c"]));
    assert_eq!(of(&registry, Stage::Plain), ["a", "b", "d"]);
    assert!(Arc::ptr_eq(&a, &handle("a").unwrap()));
    assert!(Arc::ptr_eq(&other.unwrap(), &handle("other").unwrap()));
    let new = handle("b").unwrap();
    assert_eq!((b.inflight(), new.inflight()), (1, 0));
    drop(guard);
    assert_eq!((b.inflight(), new.inflight()), (0, 0));
}

#[test]
fn a_prefill_engine_that_joins_waits_for_its_port() {
    let registry =
        WorkerRegistry::try_new(vec![spec("early", "m", Stage::Prefill)], None, None).unwrap();
    let mut given = spec("given", "m", Stage::Prefill);
    given.bootstrap_port = Some(8998);
    let list = vec![
        spec("d", "m", Stage::Decode),
        spec("early", "m", Stage::Prefill),
        given,
        spec("p", "m", Stage::Prefill),
        spec("q", "m", Stage::Prefill),
    ];
    let adopt = || registry.adopt(&"m".into(), list.clone(), None).unwrap();
    adopt();
    let available = |now| {
        let engines = registry.members().all();
        let engines = engines.iter().filter(|engine| engine.available(now));
        engines
            .map(|engine| engine.id().to_string())
            .collect::<Vec<_>>()
    };
    let now = Instant::now();
    assert_eq!(available(now), ["d", "early", "given"]);
    tell(&registry, "p", Stage::Prefill, Some(9000));
    registry.learn_roles();
    assert_eq!(available(now), ["d", "early", "given", "p"]);
    // Another list and another generation do not begin the wait anew.
    adopt();
    let specs = registry.members().all();
    let specs = specs.iter().map(|engine| engine.spec().clone()).collect();
    let next = WorkerRegistry::try_new(specs, None, Some(&registry)).unwrap();
    registry.replace(next.members().all()).unwrap();
    assert_eq!(available(now), ["d", "early", "given", "p"]);
    let later = now + Duration::from_secs(30);
    assert_eq!(available(later), ["d", "early", "given", "p", "q"]);
}

#[test]
fn a_list_that_contradicts_itself_or_another_model_changes_nothing() {
    let first = vec![spec("a", "m", Stage::Plain), spec("x", "n", Stage::Plain)];
    let registry = WorkerRegistry::try_new(first, None, None).unwrap();
    let before = registry.members();
    let mixed = vec![spec("a", "m", Stage::Plain), spec("b", "m", Stage::Decode)];
    let taken = vec![spec("x", "m", Stage::Plain)];
    for (list, mixes) in [(mixed, true), (taken, false)] {
        let error = registry.adopt(&"m".into(), list, None).unwrap_err();
        assert_eq!(matches!(error, RegistryError::MixedRoles { .. }), mixes);
        assert!(Arc::ptr_eq(&before, &registry.members()));
    }
    assert_eq!(
        registry
            .adopt(&"m".into(), Vec::new(), None)
            .unwrap()
            .removed
            .len(),
        1
    );
    assert!(of(&registry, Stage::Plain).is_empty());
}

fn tell(registry: &WorkerRegistry, id: &str, role: Stage, port: Option<u16>) {
    let facts = crate::workers::Facts {
        role: Some(role),
        bootstrap_port: port,
        ..Default::default()
    };
    let engine = Arc::clone(registry.members().get(&id.into()).unwrap());
    engine.introspection().resolved(facts, Instant::now());
}

fn of(registry: &WorkerRegistry, role: Stage) -> Vec<String> {
    let members = registry.members();
    let engines = members.of(&"m".into(), role).iter();
    engines.map(|engine| engine.id().to_string()).collect()
}

#[test]
fn an_engine_takes_the_role_it_tells_and_keeps_its_counters() {
    let specs = ["a", "b", "c"].map(|id| spec(id, "m", Stage::Decode));
    let registry = WorkerRegistry::try_new(specs.to_vec(), None, None).unwrap();
    let old = Arc::clone(registry.members().get(&"b".into()).unwrap());
    let guard = old.acquire(1);
    tell(&registry, "a", Stage::Decode, None);
    tell(&registry, "b", Stage::Prefill, Some(8998));
    assert!(registry.learn_roles().is_empty());
    assert_eq!(of(&registry, Stage::Decode), ["a", "c"]);
    assert_eq!(of(&registry, Stage::Prefill), ["b"]);
    let new = Arc::clone(registry.members().get(&"b".into()).unwrap());
    assert!(new.same_engine(&old));
    assert_eq!((new.inflight(), new.bootstrap_port()), (1, Some(8998)));
    drop(guard);
    assert_eq!(new.inflight(), 0);
}

#[test]
fn unchanged_roles_change_no_handle() {
    let registry = WorkerRegistry::try_new(vec![spec("a", "m", Stage::Plain)], None, None).unwrap();
    let before = Arc::clone(registry.members().get(&"a".into()).unwrap());
    tell(&registry, "a", Stage::Plain, None);
    registry.learn_roles();
    let after = Arc::clone(registry.members().get(&"a".into()).unwrap());
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn an_engine_that_would_mix_roles_is_left_out_told_once_and_taken_back() {
    let specs = ["a", "b"].map(|id| spec(id, "m", Stage::Plain));
    let registry = WorkerRegistry::try_new(specs.to_vec(), None, None).unwrap();
    tell(&registry, "b", Stage::Decode, None);
    let refused = registry.learn_roles();
    assert!(matches!(&refused[..], [RegistryError::MixedRoles { .. }]));
    assert!(registry.learn_roles().is_empty(), "told once");
    let available = |id: &str| {
        let engine = Arc::clone(registry.members().get(&id.into()).unwrap());
        engine.available(Instant::now())
    };
    assert_eq!(of(&registry, Stage::Plain), ["a", "b"]);
    assert_eq!((available("a"), available("b")), (true, false));
    tell(&registry, "b", Stage::Plain, None);
    assert!(registry.learn_roles().is_empty());
    assert!(available("b"));
}

#[test]
fn a_whole_model_may_change_its_kind_at_once() {
    let specs = ["a", "b"].map(|id| spec(id, "m", Stage::Plain));
    let registry = WorkerRegistry::try_new(specs.to_vec(), None, None).unwrap();
    tell(&registry, "a", Stage::Prefill, Some(1));
    registry.learn_roles();
    tell(&registry, "b", Stage::Decode, None);
    assert!(registry.learn_roles().is_empty());
    assert_eq!(of(&registry, Stage::Prefill), ["a"]);
    assert_eq!(of(&registry, Stage::Decode), ["b"]);
    let now = Instant::now();
    assert!(
        registry
            .members()
            .all()
            .iter()
            .all(|engine| engine.available(now))
    );
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
