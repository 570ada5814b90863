//! Sampling and comparing: design §4, policy-semantics §10.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use sgl_edge::ids::Stage;
use sgl_edge::policies::{
    AdmissionLimits, Draw, PolicyParams, PolicyServices, PowerOfTwoParams, PowerOfTwoPolicy,
    SeededDraw, ThreadDraw, build,
};
use sgl_edge::state::{EngineLoadTable, FRESHNESS};
use sgl_edge::workers::Worker;

use crate::support::engines::{MODEL, engine, hold, hold_staircase, plain_engines};
use crate::support::fakes::ScriptedDraw;
use crate::support::loads::{basic, decode_load, prefill_load, table, with_estimate};
use crate::support::picks::{ask, chosen, chosen_at};
use crate::support::seed::{assert_distribution, rng, seed};

const EIGHT: [&str; 8] = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"];

fn policy(choices: usize, loads: &Arc<EngineLoadTable>, draw: Arc<dyn Draw>) -> PowerOfTwoPolicy {
    let params = PowerOfTwoParams::try_new(choices).expect("at least one");
    let admission = Arc::new(AdmissionLimits::default());
    PowerOfTwoPolicy::new(params, Arc::clone(loads), admission, draw)
}

fn two(loads: &Arc<EngineLoadTable>, draw: Arc<dyn Draw>) -> PowerOfTwoPolicy {
    policy(2, loads, draw)
}

/// How often each engine wins.
fn wins(policy: &PowerOfTwoPolicy, engines: &[Arc<Worker>], picks: u32) -> Vec<u32> {
    let mut counts = vec![0; engines.len()];
    for _ in 0..picks {
        let pick = ask(policy, engines, Stage::Plain).expect("a pick");
        let same = |engine: &Arc<Worker>| Arc::ptr_eq(engine, &pick.engine);
        counts[engines.iter().position(same).expect("a candidate")] += 1;
    }
    counts
}

/// The winner of two engines, the same for both orders of drawing.
fn winner(loads: &Arc<EngineLoadTable>, engines: &[Arc<Worker>], stage: Stage) -> String {
    let [first, second] = [0, 1].map(|first| {
        let draw = ScriptedDraw::new([first, 0]);
        chosen_at(&two(loads, draw), engines, stage)
    });
    assert_eq!(first, second, "the draw order decided");
    first
}

#[test]
fn a_single_candidate_wins_without_comparison() {
    let engines = plain_engines(&["only"]);
    let _held = hold(&engines[0], 1000);
    for stage in Stage::ALL {
        let policy = two(&Arc::default(), Arc::new(ThreadDraw));
        assert_eq!(chosen_at(&policy, &engines, stage), "only");
    }
}

#[test]
fn of_two_engines_the_one_under_less_pressure_wins_whatever_the_draw_order() {
    let engines = plain_engines(&["a", "b"]);
    for (busy, expected) in [(0, "b"), (1, "a")] {
        let _held = hold(&engines[busy], 1);
        for stage in Stage::ALL {
            assert_eq!(winner(&Arc::default(), &engines, stage), expected);
        }
    }
}

#[test]
fn a_complete_tie_keeps_the_first_drawn() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    for stage in Stage::ALL {
        for first in 0..4 {
            for second in 0..3 {
                let draw = ScriptedDraw::new([first, second]);
                let policy = two(&Arc::default(), draw.clone());
                let won = chosen_at(&policy, &engines, stage);
                assert_eq!(won, engines[first].id().as_str(), "{first} {second}");
                assert_eq!(draw.left(), 0, "exactly two draws");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tie_of_equal_reports_and_equal_counts_keeps_the_first_drawn_too() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table(engines.iter().map(|e| (e, decode_load(1, 2, 3, 4))));
    for stage in Stage::ALL {
        for first in 0..2 {
            let policy = two(&loads, ScriptedDraw::new([first, 0]));
            let won = chosen_at(&policy, &engines, stage);
            assert_eq!(won, engines[first].id().as_str(), "{stage}");
        }
    }
}

#[test]
fn two_distinct_engines_are_sampled_so_the_worst_of_all_never_wins() {
    let engines = plain_engines(&EIGHT);
    let _held = hold_staircase(&engines);
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&two(&Arc::default(), draw), &engines, 28_000);
    // Engine i wins the pairs with one of the 7 - i engines above it, of 28 pairs.
    assert_distribution(&counts, &[7, 6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn equal_engines_win_equally_often() {
    let engines = plain_engines(&EIGHT);
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&two(&Arc::default(), draw), &engines, 24_000);
    assert_distribution(&counts, &[1; 8]);
}

#[test]
fn one_choice_is_a_uniform_draw_whatever_the_load() {
    let engines = plain_engines(&EIGHT);
    let _held = hold_staircase(&engines);
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&policy(1, &Arc::default(), draw), &engines, 24_000);
    assert_distribution(&counts, &[1; 8]);
}

#[test]
fn three_choices_win_like_the_best_of_three_distinct() {
    let engines = plain_engines(&EIGHT);
    let _held = hold_staircase(&engines);
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&policy(3, &Arc::default(), draw), &engines, 28_000);
    // Engine i is the best of C(7 - i, 2) of the 56 triples.
    assert_distribution(&counts, &[21, 15, 10, 6, 3, 1, 0, 0]);
}

#[test]
fn as_many_choices_as_candidates_give_the_exact_minimum() {
    let mut rng = rng();
    let draw: Arc<dyn Draw> = Arc::new(SeededDraw::new(rng.random()));
    for _ in 0..300 {
        let len = rng.random_range(1..=8);
        let mut engines = plain_engines(&EIGHT[..len]);
        let mut held = Vec::new();
        for engine in &mut engines {
            held.extend(hold(engine, rng.random_range(0..20)));
        }
        let least = engines.iter().map(|e| e.inflight()).min().expect("some");
        let choices = *[len, len + 1, 100, usize::MAX]
            .choose(&mut rng)
            .expect("four");
        let policy = policy(choices, &Arc::default(), Arc::clone(&draw));
        let pick = ask(&policy, &engines, Stage::Plain).expect("a pick");
        assert_eq!(pick.engine.inflight(), least, "{choices} of {len}");
    }
}

#[test]
fn ties_among_all_candidates_are_broken_at_random() {
    let engines = plain_engines(&EIGHT[..4]);
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&policy(4, &Arc::default(), draw), &engines, 12_000);
    assert_distribution(&counts, &[1; 4]);
}

#[tokio::test(start_paused = true)]
async fn the_winner_is_never_worse_than_the_other_sample_even_in_a_circle() {
    // Pairwise, a < c < b < a: whatever pair is drawn, its own better half wins.
    let engines = plain_engines(&["a", "b", "c"]);
    let loads = table([
        (&engines[0], with_estimate(prefill_load(100, 0, 0), 10.0)),
        (&engines[1], with_estimate(prefill_load(200, 0, 0), 5.0)),
        (&engines[2], prefill_load(150, 0, 0)),
    ]);
    let rows = [([0, 1], "b"), ([1, 2], "c"), ([0, 2], "a")];
    for (pair, expected) in rows {
        let pair = pair.map(|index| Arc::clone(&engines[index]));
        for stage in [Stage::Plain, Stage::Prefill] {
            assert_eq!(winner(&loads, &pair, stage), expected);
        }
    }
    // And sampling all three ends with some candidate instead of a panic.
    let draw = Arc::new(SeededDraw::new(seed()));
    let counts = wins(&policy(3, &loads, draw), &engines, 300);
    assert_eq!(counts.iter().sum::<u32>(), 300);
}

#[tokio::test(start_paused = true)]
async fn native_reports_beat_local_counters() {
    let engines = plain_engines(&["a", "b"]);
    let _held = hold(&engines[0], 50);
    let loads = table([
        (&engines[0], decode_load(0, 0, 1, 100)),
        (&engines[1], decode_load(0, 1, 2, 100)),
    ]);
    for stage in Stage::ALL {
        assert_eq!(winner(&loads, &engines, stage), "a", "{stage}");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_reports_fall_back_to_local_counters() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table(engines.iter().map(|e| (e, decode_load(3, 3, 3, 9))));
    let _held = hold(&engines[0], 1);
    for stage in Stage::ALL {
        assert_eq!(winner(&loads, &engines, stage), "b", "{stage}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_stale_report_puts_both_on_local_counters() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[1], decode_load(9, 9, 9, 10))]);
    tokio::time::advance(Duration::from_secs(1)).await;
    loads.publish(engines[0].id(), decode_load(0, 0, 0, 10));
    let _held = hold(&engines[0], 5);
    let _also = hold(&engines[1], 1);
    tokio::time::advance(FRESHNESS - Duration::from_secs(1)).await;
    for stage in Stage::ALL {
        assert_eq!(winner(&loads, &engines, stage), "a", "{stage}: both fresh");
    }
    tokio::time::advance(Duration::from_millis(1)).await;
    for stage in Stage::ALL {
        assert_eq!(winner(&loads, &engines, stage), "b", "{stage}: b is stale");
    }
}

#[tokio::test(start_paused = true)]
async fn a_basic_report_supplies_no_pressure() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([
        (&engines[0], prefill_load(0, 0, 0)),
        (&engines[1], basic(99, 99)),
    ]);
    let _held = hold(&engines[0], 1);
    for stage in Stage::ALL {
        assert_eq!(winner(&loads, &engines, stage), "b", "{stage}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_stage_compares_by_its_own_keys() {
    // a: few waiting tokens, many waiting requests. b: the other way round.
    let engines = plain_engines(&["a", "b"]);
    let loads = table([
        (&engines[0], prefill_load(10, 9, 9)),
        (&engines[1], prefill_load(900, 1, 1)),
    ]);
    assert_eq!(winner(&loads, &engines, Stage::Plain), "a");
    assert_eq!(winner(&loads, &engines, Stage::Prefill), "a");
    assert_eq!(winner(&loads, &engines, Stage::Decode), "b");
}

#[test]
fn choices_are_two_by_default_and_never_none() {
    assert_eq!(PowerOfTwoParams::default().choices(), 2);
    let error = PowerOfTwoParams::try_new(0).expect_err("zero choices");
    assert_eq!(error.parameter, "choices");
}

#[test]
fn a_policy_built_from_parameters_uses_the_services_it_was_given() {
    let engines: Vec<_> = ["a", "b"].map(|id| engine(id, Stage::Decode)).into();
    let _held = hold(&engines[0], 1);
    let draw = ScriptedDraw::new([0, 0, 1]);
    let services = PolicyServices {
        draw: draw.clone(),
        ..PolicyServices::new(Arc::default())
    };
    let model = MODEL.into();
    let limits = AdmissionLimits::default();
    let two = build(&PolicyParams::default(), limits, &model, &services);
    assert_eq!(
        chosen(two.as_ref(), &engines),
        "b",
        "two choices by default"
    );
    let one = PowerOfTwoParams::try_new(1).expect("one");
    let one = build(&PolicyParams::PowerOfTwo(one), limits, &model, &services);
    assert_eq!(
        chosen(one.as_ref(), &engines),
        "b",
        "the draw alone decides"
    );
    assert_eq!(draw.left(), 0);
}
