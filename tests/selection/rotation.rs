//! Round robin and random: policy-semantics §12.

use std::collections::BTreeMap;
use std::sync::Arc;

use sgl_edge::buckets::EngineGroup;
use sgl_edge::ids::Stage;
use sgl_edge::policies::{
    Admission, AdmissionLimits, Limit, PickError, Policy, RandomPolicy, RoundRobinPolicy,
    SeededDraw,
};
use sgl_edge::workers::Worker;

use crate::support::engines::{MODEL, hold, hold_staircase, plain_engines, registry};
use crate::support::fakes::FakeAdmission;
use crate::support::loads::{prefill_load, table};
use crate::support::picks::{ask, ask_group, chosen};
use crate::support::routing::{Router, chat};
use crate::support::seed::{assert_distribution, seed};

fn round_robin() -> RoundRobinPolicy {
    RoundRobinPolicy::new(Arc::default(), Arc::new(AdmissionLimits::default()))
}

fn picks(policy: &dyn Policy, engines: &[Arc<Worker>], count: usize) -> String {
    (0..count).map(|_| chosen(policy, engines)).collect()
}

#[test]
fn three_engines_take_turns_and_a_departure_keeps_the_cursor() {
    let engines = plain_engines(&["a", "b", "c"]);
    let policy = round_robin();
    assert_eq!(picks(&policy, &engines, 4), "abca");
    let left = [Arc::clone(&engines[0]), Arc::clone(&engines[2])];
    // Cursor 4 of [a, c] is a, cursor 5 is c.
    assert_eq!(picks(&policy, &left, 2), "ac");
}

#[test]
fn an_arrival_keeps_the_cursor_too() {
    let engines = plain_engines(&["a", "b", "c", "d", "e"]);
    let policy = round_robin();
    assert_eq!(picks(&policy, &engines[..2], 3), "aba");
    assert_eq!(picks(&policy, &engines, 4), "deab");
}

#[test]
fn neither_load_nor_stage_changes_the_rotation() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[0], prefill_load(9999, 9, 9))]);
    let _held = hold(&engines[0], 100);
    let policy = RoundRobinPolicy::new(loads, Arc::new(AdmissionLimits::default()));
    let stages = [Stage::Plain, Stage::Prefill, Stage::Decode, Stage::Plain];
    let turns = stages.map(|stage| ask(&policy, &engines, stage).expect("a pick"));
    let ids = turns.map(|pick| pick.engine.id().to_string());
    assert_eq!(ids.concat(), "abab");
}

#[test]
fn the_cursor_does_not_move_while_no_candidate_is_admitted() {
    let engines = plain_engines(&["a", "b", "c"]);
    let limits = AdmissionLimits {
        max_inflight_requests: Some(1),
        ..AdmissionLimits::default()
    };
    let policy = RoundRobinPolicy::new(Arc::default(), Arc::new(limits));
    assert_eq!(picks(&policy, &engines, 1), "a");
    let held: Vec<_> = engines.iter().map(|engine| engine.acquire(1)).collect();
    for _ in 0..4 {
        let error = ask(&policy, &engines, Stage::Plain).expect_err("all are full");
        assert!(matches!(error, PickError::NoAdmissibleEngine(list) if list.len() == 3));
    }
    for _ in 0..4 {
        assert!(ask(&policy, &[], Stage::Plain).is_err());
    }
    drop(held);
    assert_eq!(picks(&policy, &engines, 2), "bc");
}

#[test]
fn the_cursor_does_not_move_when_the_checker_fails() {
    let engines = plain_engines(&["a", "b"]);
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let flag = Arc::clone(&broken);
    let admission = FakeAdmission::new(move |_| {
        if flag.load(std::sync::atomic::Ordering::Relaxed) {
            Err(PickError::InvalidSignal("broken"))
        } else {
            Ok(Admission::Allow)
        }
    });
    let policy = RoundRobinPolicy::new(Arc::default(), admission);
    assert!(ask(&policy, &engines, Stage::Plain).is_err());
    broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(picks(&policy, &engines, 3), "aba");
}

#[test]
fn the_rotation_runs_over_the_admitted_list() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    let admission = FakeAdmission::new(|engine| {
        Ok(match engine.id().as_str() {
            "b" => Admission::Reject(Limit::RunningRequests),
            _ => Admission::Allow,
        })
    });
    let policy = RoundRobinPolicy::new(Arc::default(), admission);
    assert_eq!(picks(&policy, &engines, 7), "acdacda");
}

#[test]
fn a_group_rotates_over_its_available_members() {
    let engines = plain_engines(&["a", "b", "c"]);
    let workers = registry(&engines);
    let group = EngineGroup::new(Arc::new(round_robin()));
    let turn = || {
        let pick = ask_group(&group, &workers, MODEL, Stage::Plain).expect("a pick");
        pick.engine.id().to_string()
    };
    assert_eq!([turn(), turn(), turn(), turn()].concat(), "abca");
    engines[1].set_healthy(false);
    assert_eq!([turn(), turn()].concat(), "ac");
}

/// Two buckets of one file, both `round_robin`, told apart by length.
fn two_buckets() -> Router {
    Router::of(
        &[("a", "plain"), ("b", "plain"), ("c", "plain")],
        "    buckets:
      - {id: short, limits: {max: 10}, groups: {plain: {policy: {type: round_robin}}}}
      - {id: long, limits: {min: 11}, groups: {plain: {policy: {type: round_robin}}}}
",
    )
}

fn turn(router: &Router, input: usize) -> String {
    let selection = router.select(&chat(input, None)).expect("a selection");
    crate::support::picks::ids(&selection.pick).concat()
}

#[test]
fn a_groups_policy_is_one_object_for_all_requests_and_no_other_group_shares_its_cursor() {
    let router = two_buckets();
    assert_eq!([turn(&router, 1), turn(&router, 1)].concat(), "ab");
    assert_eq!(turn(&router, 20), "a", "the other bucket starts at its own");
    assert_eq!(turn(&router, 1), "c");
    assert_eq!(turn(&router, 20), "b");
}

#[test]
fn both_halves_of_a_pair_have_cursors_of_their_own() {
    let fleet = [
        ("p1", "prefill"),
        ("p2", "prefill"),
        ("p3", "prefill"),
        ("d1", "decode"),
        ("d2", "decode"),
    ];
    let router = Router::of(
        &fleet,
        "    buckets:
      - id: b
        groups:
          pd:
            prefill: {policy: {type: round_robin}}
            decode: {policy: {type: round_robin}}
",
    );
    let turns: Vec<_> = (0..4).map(|_| turn(&router, 1)).collect();
    assert_eq!(turns, ["p1d1", "p2d2", "p3d1", "p1d2"]);
}

#[test]
fn concurrent_picks_take_exact_turns() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    let policy = round_robin();
    let counts = std::thread::scope(|scope| {
        let threads = [(); 8].map(|()| scope.spawn(|| picks(&policy, &engines, 1000)));
        let mut counts = BTreeMap::new();
        for thread in threads {
            for id in thread.join().expect("no panic").chars() {
                *counts.entry(id).or_insert(0) += 1;
            }
        }
        counts
    });
    let even = ['a', 'b', 'c', 'd'].map(|id| (id, 2000));
    assert_eq!(counts, BTreeMap::from(even));
}

/// How often `random` chooses each of six engines, and each ordered pair of three in a row.
#[test]
fn random_is_uniform_whatever_the_load() {
    let engines = plain_engines(&["0", "1", "2", "3", "4", "5"]);
    let _held = hold_staircase(&engines);
    let open: Arc<AdmissionLimits> = Arc::default();
    let capped = Arc::new(AdmissionLimits {
        max_inflight_requests: Some(100),
        ..AdmissionLimits::default()
    });
    for limits in [open, capped] {
        let draw = Arc::new(SeededDraw::new(seed()));
        let policy = RandomPolicy::new(Arc::default(), limits, draw);
        let mut counts = [0; 6];
        for _ in 0..24_000 {
            let id = chosen(&policy, &engines);
            counts[id.parse::<usize>().expect("a digit")] += 1;
        }
        assert_distribution(&counts, &[1; 6]);
    }
}

#[test]
fn successive_random_draws_are_independent() {
    let engines = plain_engines(&["0", "1"]);
    let draw = Arc::new(SeededDraw::new(seed()));
    let policy = RandomPolicy::new(Arc::default(), Arc::new(AdmissionLimits::default()), draw);
    let mut counts = [0; 8];
    for _ in 0..16_000 {
        let triple = picks(&policy, &engines, 3);
        counts[usize::from_str_radix(&triple, 2).expect("three bits")] += 1;
    }
    assert_distribution(&counts, &[1; 8]);
}

#[test]
fn random_is_uniform_over_the_admitted() {
    let engines = plain_engines(&["0", "1", "2", "3"]);
    let draw = Arc::new(SeededDraw::new(seed()));
    let policy = RandomPolicy::new(Arc::default(), FakeAdmission::refusing(&["1"]), draw);
    let mut counts = [0; 4];
    for _ in 0..12_000 {
        counts[chosen(&policy, &engines).parse::<usize>().expect("a digit")] += 1;
    }
    assert_distribution(&counts, &[1, 0, 1, 1]);
}
