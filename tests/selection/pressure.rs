//! The pairwise comparison, row by row and stage by stage: policy-semantics §8.

use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::sync::Arc;

use sgl_edge::ids::Stage;
use sgl_edge::policies::{Pressure, compare_pressure};
use sgl_edge::state::EngineLoad;

use crate::support::engines::{hold, plain_engines};
use crate::support::loads::{basic, capture, decode_load, prefill_load, table, with_estimate};

const PREFILL_STAGES: [Stage; 2] = [Stage::Plain, Stage::Prefill];

/// One engine: its report, if any, and its requests in flight.
pub(crate) type Side = (Option<EngineLoad>, u64);

fn pressure(side: &Side) -> Pressure<'_> {
    let (report, inflight) = (side.0.as_ref(), side.1);
    Pressure { report, inflight }
}

/// Compares two engines both ways round, which must mirror each other.
pub(crate) fn compared(stage: Stage, left: &Side, right: &Side) -> Ordering {
    let (left, right) = (pressure(left), pressure(right));
    let order = compare_pressure(stage, &left, &right);
    assert_eq!(compare_pressure(stage, &right, &left), order.reverse());
    assert_eq!(compare_pressure(stage, &left, &left), Equal);
    order
}

fn native(load: EngineLoad) -> Side {
    (Some(load), 0)
}

#[test]
fn every_worked_prefill_row() {
    let x = || prefill_load(1000, 1, 5);
    let y = || prefill_load(1500, 0, 0);
    let rows = [
        ("fewer tokens", (Some(x()), 9), native(y()), Less),
        (
            "both estimates",
            (Some(with_estimate(x(), 250.0)), 9),
            native(with_estimate(y(), 150.0)),
            Greater,
        ),
        (
            "one estimate",
            (Some(with_estimate(x(), 250.0)), 9),
            native(y()),
            Less,
        ),
    ];
    for stage in PREFILL_STAGES {
        for (name, left, right, expected) in &rows {
            assert_eq!(compared(stage, left, right), *expected, "{stage} {name}");
        }
    }
}

#[test]
fn every_worked_decode_row() {
    let rows = [
        (
            decode_load(1, 1, 0, 1000),
            decode_load(0, 50, 0, 1000),
            Greater,
        ),
        (
            decode_load(2, 2, 900, 1000),
            decode_load(2, 2, 1500, 10_000),
            Greater,
        ),
        (
            decode_load(2, 2, 10, 100),
            decode_load(2, 2, 100, 1000),
            Less,
        ),
    ];
    for (left, right, expected) in rows {
        let order = compared(Stage::Decode, &native(left.clone()), &native(right.clone()));
        assert_eq!(order, expected, "{left:?} {right:?}");
    }
}

#[test]
fn prefill_keys_are_compared_in_this_order() {
    // Each row: better by one key, worse by every later key.
    let rows = [
        (
            with_estimate(prefill_load(9, 9, 9), 1.0),
            with_estimate(prefill_load(0, 0, 0), 2.0),
        ),
        (
            with_estimate(prefill_load(0, 9, 9), 1.0),
            with_estimate(prefill_load(1, 0, 0), 1.0),
        ),
        (prefill_load(0, 9, 9), prefill_load(1, 0, 0)),
        (prefill_load(5, 0, 9), prefill_load(5, 1, 0)),
        (prefill_load(5, 5, 0), prefill_load(5, 5, 1)),
    ];
    for stage in PREFILL_STAGES {
        for (better, worse) in &rows {
            let (better, worse) = ((Some(better.clone()), 9), (Some(worse.clone()), 0));
            assert_eq!(compared(stage, &better, &worse), Less, "{stage} {better:?}");
        }
    }
}

#[test]
fn decode_keys_are_compared_in_this_order() {
    let rows = [
        (decode_load(0, 9, 9, 10), decode_load(1, 0, 0, 10)),
        (decode_load(5, 0, 9, 10), decode_load(5, 1, 0, 10)),
        (decode_load(5, 5, 200, 1000), decode_load(5, 5, 100, 400)),
        (decode_load(5, 5, 10, 100), decode_load(5, 5, 20, 200)),
    ];
    for (better, worse) in rows {
        let (better, worse) = ((Some(better), 9), (Some(worse), 0));
        assert_eq!(compared(Stage::Decode, &better, &worse), Less, "{better:?}");
    }
}

#[test]
fn each_stage_ignores_the_keys_of_the_other() {
    let used = |tokens| native(decode_load(1, 1, tokens, 100));
    for stage in PREFILL_STAGES {
        assert_eq!(compared(stage, &used(1), &used(99)), Equal, "KV use");
    }
    let uncached = |tokens| native(prefill_load(tokens, 1, 1));
    assert_eq!(compared(Stage::Decode, &uncached(1), &uncached(99)), Equal);
    let estimate = |ms| native(with_estimate(prefill_load(1, 1, 1), ms));
    let (fast, slow) = (estimate(1.0), estimate(9.0));
    assert_eq!(compared(Stage::Decode, &fast, &slow), Equal);
}

#[test]
fn equal_reports_are_decided_by_inflight_and_complete_equality_stays_equal() {
    for stage in Stage::ALL {
        let load = with_estimate(decode_load(3, 4, 50, 100), 7.0);
        let side = |inflight| (Some(load.clone()), inflight);
        assert_eq!(compared(stage, &side(1), &side(2)), Less, "{stage}");
        assert_eq!(compared(stage, &side(2), &side(2)), Equal, "{stage}");
    }
}

#[test]
fn one_engine_without_a_native_report_puts_both_on_their_inflight_counts() {
    let idle = || Some(decode_load(0, 0, 0, 100));
    let busy = || Some(decode_load(90, 90, 90, 100));
    for stage in Stage::ALL {
        for other in [None, Some(basic(50, 50))] {
            // Idle by its report, but with five requests of ours.
            let order = compared(stage, &(idle(), 5), &(other.clone(), 1));
            assert_eq!(order, Greater, "{stage} {other:?}");
            // Busy by its report, which must not count against it.
            let order = compared(stage, &(busy(), 0), &(other.clone(), 1));
            assert_eq!(order, Less, "{stage} {other:?}");
            let order = compared(stage, &(busy(), 1), &(other.clone(), 1));
            assert_eq!(order, Equal, "{stage} {other:?}");
        }
    }
}

#[test]
fn basic_reports_alone_are_never_compared() {
    for stage in Stage::ALL {
        let (idle, busy) = ((Some(basic(0, 0)), 2), (Some(basic(99, 99)), 1));
        assert_eq!(compared(stage, &idle, &busy), Greater, "{stage}");
    }
}

#[test]
fn three_engines_can_beat_each_other_in_a_circle() {
    let a = native(with_estimate(prefill_load(100, 0, 0), 10.0));
    let b = native(with_estimate(prefill_load(200, 0, 0), 5.0));
    let c = native(prefill_load(150, 0, 0));
    for stage in PREFILL_STAGES {
        assert_eq!(compared(stage, &b, &a), Less, "b beats a by its estimate");
        assert_eq!(compared(stage, &c, &b), Less, "c beats b by tokens");
        assert_eq!(compared(stage, &a, &c), Less, "a beats c by tokens");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observation_is_the_captured_report_and_the_live_count() {
    let engines = plain_engines(&["a", "b"]);
    let snapshot = capture(&table([(&engines[0], basic(3, 4))]), &engines);
    let _held = hold(&engines[1], 2);
    let known = Pressure::observe(&engines[0], &snapshot);
    assert_eq!(known.report.map(|load| load.waiting_requests), Some(4));
    assert_eq!(known.inflight, 0);
    let unknown = Pressure::observe(&Arc::clone(&engines[1]), &snapshot);
    assert!(unknown.report.is_none(), "unknown, not zero");
    assert_eq!(unknown.inflight, 2);
}
