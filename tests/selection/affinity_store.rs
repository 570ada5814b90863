//! The affinity store: policy-semantics §13.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rand::Rng;
use sgl_edge::ids::{BucketId, ModelId, Stage, WorkerId};
use sgl_edge::state::{
    AffinityKind, AffinityScope, AffinityStore, AffinityStores, AffinityTimes, Binding, MAX_BYTES,
};
use tokio::time::{Instant, advance};

use crate::support::seed::rng;

const IDLE: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(1);

struct Names {
    model: ModelId,
    bucket: BucketId,
}

impl Names {
    fn new(model: &str, bucket: &str) -> Self {
        let (model, bucket) = (model.into(), bucket.into());
        Self { model, bucket }
    }

    fn at<'a>(&'a self, stage: Stage, key: &'a str) -> AffinityScope<'a> {
        AffinityScope {
            model: &self.model,
            stage,
            bucket: &self.bucket,
            key,
        }
    }

    fn key<'a>(&'a self, key: &'a str) -> AffinityScope<'a> {
        self.at(Stage::Plain, key)
    }
}

fn names() -> Names {
    Names::new("m", "b")
}

/// Every engine is a candidate.
fn any(id: &WorkerId) -> Option<WorkerId> {
    Some(id.clone())
}

/// No engine is.
fn none(_: &WorkerId) -> Option<WorkerId> {
    None
}

fn bind(store: &AffinityStore, scope: &AffinityScope<'_>, engine: &str) -> Binding<WorkerId> {
    store.bind(scope, &engine.into(), any)
}

#[test]
fn a_key_without_a_binding_is_not_bound() {
    let (store, names) = (AffinityStore::default(), names());
    assert_eq!(store.bound(&names.key("k"), any), None);
    assert_eq!(store.peek(&names.key("k")), None);
    assert!(store.is_empty());
}

#[test]
fn bind_inserts_keeps_a_candidate_and_replaces_what_is_none() {
    let (store, names) = (AffinityStore::default(), names());
    let scope = names.key("k");
    assert_eq!(bind(&store, &scope, "a"), Binding::Created);
    assert_eq!(bind(&store, &scope, "b"), Binding::Kept("a".into()));
    assert_eq!(store.bound(&scope, any), Some("a".into()));
    assert_eq!(store.bind(&scope, &"b".into(), none), Binding::Replaced);
    assert_eq!(store.bound(&scope, any), Some("b".into()));
    assert_eq!(store.len(), 1);
}

#[test]
fn a_binding_outside_the_candidates_is_not_bound_and_stays() {
    let (store, names) = (AffinityStore::default(), names());
    bind(&store, &names.key("k"), "a");
    assert_eq!(store.bound(&names.key("k"), none), None);
    assert_eq!(store.peek(&names.key("k")), Some("a".into()));
    assert_eq!(
        store.bound(&names.key("k"), any),
        Some("a".into()),
        "it is back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_binding_lives_at_exactly_the_idle_time_and_goes_after_it() {
    let (store, names) = (AffinityStore::default(), names());
    bind(&store, &names.key("k"), "a");
    advance(IDLE).await;
    assert_eq!(store.sweep_expired(IDLE), 0);
    advance(TICK).await;
    assert_eq!(store.sweep_expired(IDLE), 1);
    assert_eq!((store.len(), store.expired(), store.evicted()), (0, 1, 0));
    assert_eq!(store.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_between_the_deadline_and_the_sweep_revives() {
    let (store, names) = (AffinityStore::default(), names());
    bind(&store, &names.key("k"), "a");
    advance(IDLE + TICK).await;
    assert_eq!(store.bound(&names.key("k"), any), Some("a".into()));
    assert_eq!(store.sweep_expired(IDLE), 0);
    advance(IDLE + TICK).await;
    assert_eq!(store.sweep_expired(IDLE), 1);
}

#[tokio::test(start_paused = true)]
async fn peeking_and_missing_the_candidates_are_no_uses_but_binding_again_is() {
    type Touch = fn(&AffinityStore, &AffinityScope<'_>);
    let rows: [(&str, Touch, u64); 4] = [
        ("peek", |store, scope| drop(store.peek(scope)), 1),
        ("miss", |store, scope| drop(store.bound(scope, none)), 1),
        ("bound", |store, scope| drop(store.bound(scope, any)), 0),
        ("bind", |store, scope| drop(bind(store, scope, "b")), 0),
    ];
    for (name, touch, removed) in rows {
        let (store, names) = (AffinityStore::default(), names());
        bind(&store, &names.key("k"), "a");
        advance(IDLE).await;
        touch(&store, &names.key("k"));
        advance(TICK).await;
        assert_eq!(store.sweep_expired(IDLE), removed, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_only_what_is_idle_wherever_it_lies() {
    let (store, names) = (AffinityStore::default(), names());
    let keys: Vec<String> = (0..500).map(|key| key.to_string()).collect();
    for key in &keys {
        bind(&store, &names.key(key), "a");
    }
    advance(IDLE).await;
    for key in &keys[..100] {
        store.bound(&names.key(key), any);
    }
    advance(TICK).await;
    assert_eq!(store.sweep_expired(IDLE), 400);
    assert!(
        keys[..100]
            .iter()
            .all(|key| store.peek(&names.key(key)).is_some())
    );
}

#[test]
fn scopes_never_collide_whatever_their_names_hold() {
    let store = AffinityStore::default();
    let parts = ["", "a", "b", "ab", "a\0b", "\0", "a\0", "\0a", "aa", "1:a"];
    let mut bound = 0;
    for model in parts {
        for bucket in parts {
            for key in parts {
                for stage in Stage::ALL {
                    let names = Names::new(model, bucket);
                    let engine = format!("e{bound}");
                    let made = bind(&store, &names.at(stage, key), &engine);
                    assert_eq!(
                        made,
                        Binding::Created,
                        "{model:?} {bucket:?} {key:?} {stage}"
                    );
                    bound += 1;
                }
            }
        }
    }
    assert_eq!(store.len(), bound);
}

#[test]
fn keys_are_compared_exactly() {
    let (store, names) = (AffinityStore::default(), names());
    bind(&store, &names.key("Key"), "a");
    for other in ["key", "KEY", "Key ", " Key", "Ke", "Keyy"] {
        assert_eq!(store.bound(&names.key(other), any), None, "{other:?}");
    }
}

#[test]
fn racing_first_bindings_converge_on_one_engine() {
    for _ in 0..20 {
        let (store, names) = (AffinityStore::default(), names());
        let barrier = Barrier::new(8);
        let results: Vec<Binding<WorkerId>> = std::thread::scope(|scope| {
            let bindings = (0..8).map(|thread| {
                let (store, names, barrier) = (&store, &names, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    bind(store, &names.key("k"), &format!("e{thread}"))
                })
            });
            let threads: Vec<_> = bindings.collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let winner = store.peek(&names.key("k")).unwrap();
        let created = results.iter().filter(|result| **result == Binding::Created);
        assert_eq!(created.count(), 1, "{results:?}");
        let kept = results
            .iter()
            .filter(|result| **result == Binding::Kept(winner.clone()));
        assert_eq!(kept.count(), 7, "{results:?}");
    }
}

#[test]
fn where_memory_is_short_the_longest_unused_go_and_are_counted() {
    let (store, names) = (AffinityStore::with_max_bytes(1 << 20), names());
    let keys: Vec<String> = (0..20_000).map(|key| format!("session-{key:08}")).collect();
    for (index, key) in keys.iter().enumerate() {
        bind(&store, &names.key(key), "a");
        if index % 101 == 0 {
            assert!(store.bytes() <= 1 << 20, "after {index}");
        }
        // In constant use, so it is never the longest unused.
        store.bound(&names.key(&keys[0]), any);
        assert!(store.peek(&names.key(&keys[0])).is_some(), "after {index}");
    }
    let left = u64::try_from(store.len()).unwrap();
    assert_eq!(left + store.evicted(), 20_000);
    assert!(left > 4_000, "{left}");
    assert_eq!(store.expired(), 0);
    // Shards fill unevenly, so the border is not sharp; far from it, it is.
    assert!(
        keys[19_000..]
            .iter()
            .all(|key| store.peek(&names.key(key)).is_some())
    );
    assert!(
        keys[1..5_000]
            .iter()
            .all(|key| store.peek(&names.key(key)).is_none())
    );
}

#[test]
fn a_million_distinct_keys_stay_within_the_bound() {
    let (store, names) = (AffinityStore::default(), names());
    let mut rng = rng();
    for _ in 0..1_000_000 {
        let key = format!(
            "{:032x}-{:03x}",
            rng.random::<u128>(),
            rng.random::<u16>() & 0xfff
        );
        bind(&store, &names.key(&key), "engine-1");
    }
    assert!(store.bytes() <= MAX_BYTES, "{}", store.bytes());
    let left = u64::try_from(store.len()).unwrap();
    assert_eq!(left + store.evicted(), 1_000_000);
    assert!(left > 500_000, "{left}");
}

#[test]
fn huge_keys_are_bounded_too() {
    let (store, names) = (AffinityStore::with_max_bytes(8 << 20), names());
    let tail = "x".repeat(60_000);
    for key in 0..2_000 {
        bind(&store, &names.key(&format!("{key}{tail}")), "a");
    }
    assert!(store.bytes() <= 8 << 20);
    assert!(store.len() < 140, "{}", store.len());
    // One that could never fit is not kept and pushes nothing else out for long.
    bind(&store, &names.key(&"y".repeat(1 << 20)), "a");
    assert!(store.bytes() <= 8 << 20);
}

fn times(idle: Duration, eviction_interval: Duration) -> AffinityTimes {
    AffinityTimes {
        idle,
        eviction_interval,
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_sweep_is_due_at_once_then_every_interval_and_missed_ones_are_skipped() {
    let (stores, names) = (AffinityStores::default(), names());
    let store = stores.of(AffinityKind::Session, &names.model);
    stores.configure(|_, _| Some(times(IDLE, Duration::from_secs(60))));
    let start = Instant::now();
    let second = |seconds| Some(start + Duration::from_secs(seconds));
    assert_eq!(stores.sweep_due(start), second(60));
    bind(&store, &names.key("k"), "a");
    advance(IDLE + TICK).await;
    // Ten turns were missed: one sweep makes up for them.
    let now = Instant::now();
    assert_eq!(stores.sweep_due(now), Some(now + Duration::from_secs(60)));
    assert!(store.is_empty());
    bind(&store, &names.key("k"), "a");
    advance(Duration::from_secs(59)).await;
    stores.sweep_due(Instant::now());
    assert_eq!(store.expired(), 1, "not due");
}

#[tokio::test(start_paused = true)]
async fn every_kind_and_model_has_its_own_store_and_times() {
    let stores = AffinityStores::default();
    let (x, y) = (Names::new("x", "b"), Names::new("y", "b"));
    let session = stores.of(AffinityKind::Session, &x.model);
    let sticky = stores.of(AffinityKind::Sticky, &x.model);
    let other = stores.of(AffinityKind::Session, &y.model);
    assert!(!Arc::ptr_eq(&session, &other) && !Arc::ptr_eq(&session, &sticky));
    let second = Duration::from_secs(1);
    stores.configure(|kind, model| {
        let short = kind == AffinityKind::Session && model.as_str() == "x";
        Some(times(if short { second } else { IDLE }, second))
    });
    bind(&session, &x.key("k"), "a");
    bind(&sticky, &x.key("k"), "b");
    bind(&other, &y.key("k"), "c");
    stores.sweep_due(Instant::now());
    advance(second + TICK).await;
    stores.sweep_due(Instant::now());
    assert_eq!((session.len(), sticky.len(), other.len()), (0, 1, 1));
    assert_eq!(stores.sum(AffinityKind::Session, AffinityStore::expired), 1);
    assert_eq!(stores.sum(AffinityKind::Sticky, AffinityStore::expired), 0);
}

#[test]
fn stores_outlive_a_new_configuration_unless_their_model_is_gone() {
    let stores = AffinityStores::default();
    let (x, y) = (Names::new("x", "b"), Names::new("y", "b"));
    let kept = stores.of(AffinityKind::Sticky, &x.model);
    let gone = stores.of(AffinityKind::Sticky, &y.model);
    bind(&kept, &x.key("k"), "a");
    bind(&gone, &y.key("k"), "a");
    stores.configure(|_, model| (model.as_str() == "x").then(AffinityTimes::default));
    assert!(Arc::ptr_eq(
        &kept,
        &stores.of(AffinityKind::Sticky, &x.model)
    ));
    assert_eq!(kept.len(), 1);
    assert!(stores.get(AffinityKind::Sticky, &y.model).is_none());
    assert!(stores.of(AffinityKind::Sticky, &y.model).is_empty());
    assert!(stores.get(AffinityKind::Session, &x.model).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shorter_interval_takes_effect_before_the_old_one_is_over() {
    let (stores, names) = (AffinityStores::default(), names());
    let _store = stores.of(AffinityKind::Session, &names.model);
    let second = Duration::from_secs(1);
    stores.configure(|_, _| Some(times(IDLE, 3600 * second)));
    let now = Instant::now();
    assert_eq!(stores.sweep_due(now), Some(now + 3600 * second));
    stores.configure(|_, _| Some(times(IDLE, second)));
    assert_eq!(stores.sweep_due(now), Some(now + second));
}

#[test]
fn a_random_history_agrees_with_a_plain_map() {
    let mut rng = rng();
    let (store, names) = (AffinityStore::default(), names());
    let mut model = std::collections::HashMap::new();
    for _ in 0..20_000 {
        let key = rng.random_range(0..50_u8).to_string();
        let engine = format!("e{}", rng.random_range(0..6));
        let candidates: HashSet<String> = (0..6)
            .filter(|_| rng.random_bool(0.6))
            .map(|index| format!("e{index}"))
            .collect();
        let find = |id: &WorkerId| candidates.contains(id.as_str()).then(|| id.to_string());
        let known = model.get(&key).cloned();
        let live = known.clone().filter(|engine| candidates.contains(engine));
        if rng.random() {
            assert_eq!(store.bound(&names.key(&key), find), live);
        } else {
            let expected = match (&known, live) {
                (_, Some(live)) => Binding::Kept(live),
                (Some(_), None) => Binding::Replaced,
                (None, None) => Binding::Created,
            };
            let found = store.bind(&names.key(&key), &engine.as_str().into(), find);
            assert_eq!(found, expected);
            if !matches!(found, Binding::Kept(_)) {
                model.insert(key, engine);
            }
        }
    }
    assert_eq!(store.len(), model.len());
}
