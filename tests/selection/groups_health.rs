//! A group keeps its list of available engines; whatever changes availability changes the list at
//! the next pick: health, breakers, probes and the end of a cool-down. Policy-semantics §5, §18.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use sgl_edge::buckets::EngineGroup;
use sgl_edge::ids::Stage;
use sgl_edge::policies::PickError;
use sgl_edge::workers::{BreakerParams, Facts, Outcome, Permit, Worker, WorkerRegistry};
use tokio::time::Instant;

use crate::support::engines::{MODEL, engine, open_breaker, registry};
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::picks::ask_group;
use crate::support::seed::rng;

fn fleet(count: usize) -> Vec<Arc<Worker>> {
    let ids = (0..count).map(|index| format!("e{index:03}"));
    ids.map(|id| engine(&id, Stage::Plain)).collect()
}

fn offered(group: &EngineGroup, workers: &WorkerRegistry, journal: &Journal) -> Vec<String> {
    let _ = ask_group(group, workers, MODEL, Stage::Plain);
    let call = journal.lock().pop();
    call.map(|call| call.candidates).unwrap_or_default()
}

fn available(engines: &[Arc<Worker>]) -> Vec<String> {
    let now = Instant::now();
    let available = engines.iter().filter(|engine| engine.available(now));
    available.map(|engine| engine.id().to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_engine_comes_back_at_the_end_of_its_cool_down_and_leaves_while_probed() {
    let engines = fleet(3);
    let (workers, journal) = (registry(&engines), Journal::default());
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let cool_down = BreakerParams::default().cool_down;
    let count = || offered(&group, &workers, &journal).len();
    assert_eq!(count(), 3);
    open_breaker(&engines[1]);
    assert_eq!(count(), 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    open_breaker(&engines[2]);
    assert_eq!(count(), 1);
    tokio::time::advance(cool_down - Duration::from_millis(1001)).await;
    assert_eq!(count(), 1, "a millisecond is left");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(count(), 2, "the first one may be probed");
    let probe = engines[1].breaker().claim(Instant::now());
    assert_eq!(count(), 1, "by one request");
    drop(probe);
    assert_eq!(count(), 2, "and by another when that gave up");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_prefill_engine_that_joins_comes_when_it_tells_its_port_or_its_time_is_up() {
    let workers = registry(&[engine("early", Stage::Prefill)]);
    let journal = Journal::default();
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let count = || {
        let _ = ask_group(&group, &workers, MODEL, Stage::Prefill);
        let call = journal.lock().pop();
        call.map_or(0, |call| call.candidates.len())
    };
    let joined = ["early", "p", "q"].map(|id| engine(id, Stage::Prefill).spec().clone());
    let breaker = Some(BreakerParams::default());
    workers
        .adopt(&MODEL.into(), joined.to_vec(), breaker)
        .unwrap();
    assert_eq!(count(), 1);
    let facts = Facts {
        bootstrap_port: Some(9000),
        ..Facts::default()
    };
    let told = Arc::clone(workers.members().get(&"p".into()).unwrap());
    told.introspection().resolved(facts, Instant::now());
    assert_eq!(count(), 2);
    tokio::time::advance(Duration::from_millis(29_999)).await;
    assert_eq!(count(), 2);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(count(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_any_events_exactly_the_available_engines_are_offered() {
    let mut rng = rng();
    let engines = fleet(24);
    let (workers, journal) = (registry(&engines), Journal::default());
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &journal));
    let mut permits: Vec<Permit> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20_000 {
        let engine = &engines[rng.random_range(0..engines.len())];
        let now = Instant::now();
        match rng.random_range(0..8) {
            0 => engine.set_healthy(rng.random_bool(0.8)),
            1 => tokio::time::advance(Duration::from_millis(rng.random_range(0..15_000))).await,
            2 if !permits.is_empty() => drop(permits.swap_remove(0)),
            3 if !permits.is_empty() => permits.swap_remove(0).settle(Outcome::Success, now),
            4 | 5 if !permits.is_empty() => permits.swap_remove(0).settle(Outcome::Failure, now),
            _ => permits.extend(engine.breaker().claim(now)),
        }
        if rng.random_bool(0.5) {
            let offered = offered(&group, &workers, &journal);
            assert_eq!(offered, available(&engines));
            seen.insert(offered.len());
        }
    }
    assert!(
        seen.len() > 5,
        "the loop met lists of many lengths: {seen:?}"
    );
}

#[test]
fn in_a_long_list_a_foreign_handle_is_found_out_too() {
    let engines = fleet(300);
    let (workers, journal) = (registry(&engines), Journal::default());
    let ask = |engine: &Arc<Worker>| {
        let policy = FakePolicy::new(Answer::Engine(Arc::clone(engine)), &journal);
        ask_group(&EngineGroup::new(policy), &workers, MODEL, Stage::Plain)
    };
    for own in [&engines[0], &engines[157], &engines[299]] {
        assert!(Arc::ptr_eq(&ask(own).unwrap().engine, own));
    }
    let foreign = ask(&engine("e157", Stage::Plain)).unwrap_err();
    assert_eq!(foreign, PickError::OutsideCandidates("e157".into()));
    engines[157].set_healthy(false);
    let unwell = ask(&engines[157]).unwrap_err();
    assert_eq!(unwell, PickError::OutsideCandidates("e157".into()));
}
