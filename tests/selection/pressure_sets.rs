//! Pressure over three engines or more: one source for the whole set. Policy-semantics §8.

use std::cmp::Ordering::{Equal, Greater, Less};

use rand::seq::SliceRandom;
use sgl_edge::ids::Stage;
use sgl_edge::policies::{Pressure, PressureSource as Source, compare_pressure};

use crate::pressure::Side;
use crate::pressure_extremes::side;
use crate::support::loads::{basic, decode_load, prefill_load, with_estimate};
use crate::support::seed::rng;

fn view(sides: &[Side]) -> Vec<Pressure<'_>> {
    let view = sides.iter().map(|(load, inflight)| Pressure {
        report: load.as_ref(),
        inflight: *inflight,
    });
    view.collect()
}

#[tokio::test(start_paused = true)]
async fn the_circle_of_three_is_broken_by_comparing_all_of_them_by_tokens() {
    let sides = [
        (Some(with_estimate(prefill_load(100, 0, 0), 10.0)), 0),
        (Some(with_estimate(prefill_load(200, 0, 0), 5.0)), 0),
        (Some(prefill_load(150, 0, 0)), 0),
    ];
    let [a, b, c] = &view(&sides)[..] else {
        unreachable!()
    };
    let pair = |left, right| compare_pressure(Stage::Prefill, left, right);
    assert_eq!((pair(b, a), pair(c, b), pair(a, c)), (Less, Less, Less));
    let source = Source::of(Stage::Prefill, [a, b, c]);
    assert_eq!(source, Source::Tokens);
    let set = |left, right| source.compare(Stage::Prefill, left, right);
    assert_eq!((set(a, c), set(c, b), set(a, b)), (Less, Less, Less));
}

#[tokio::test(start_paused = true)]
async fn the_source_is_the_best_that_every_member_has() {
    let full = || (Some(with_estimate(prefill_load(1, 0, 0), 1.0)), 0);
    let counts = || (Some(prefill_load(1, 0, 0)), 0);
    let mut no_capacity = decode_load(0, 0, 0, 10);
    no_capacity.max_total_tokens = 0;
    let rows: [(Vec<Side>, Source); 6] = [
        (vec![full(), full(), full()], Source::Millis),
        (vec![full(), counts(), full()], Source::Tokens),
        (
            vec![full(), counts(), (Some(basic(1, 1)), 0)],
            Source::Inflight,
        ),
        (vec![full(), (None, 0), full()], Source::Inflight),
        (
            vec![(Some(no_capacity), 0), full(), full()],
            Source::Inflight,
        ),
        (vec![], Source::Millis),
    ];
    for (sides, expected) in rows {
        let view = view(&sides);
        for stage in [Stage::Plain, Stage::Prefill] {
            assert_eq!(Source::of(stage, &view), expected, "{sides:?}");
        }
        let decode = match expected {
            Source::Millis => Source::Tokens,
            other => other,
        };
        assert_eq!(Source::of(Stage::Decode, &view), decode, "{sides:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn inflight_compares_nothing_but_inflight() {
    let sides = [
        (Some(prefill_load(1, 0, 0)), 5),
        (Some(prefill_load(900, 9, 9)), 1),
        (None, 3),
    ];
    let view = view(&sides);
    let source = Source::of(Stage::Plain, &view);
    let compare = |l: usize, r: usize| source.compare(Stage::Plain, &view[l], &view[r]);
    assert_eq!(
        (compare(0, 1), compare(1, 2), compare(0, 2)),
        (Greater, Less, Greater)
    );
}

#[test]
fn over_any_set_the_comparison_is_a_total_preorder_and_its_order_never_depends_on_the_input() {
    let mut rng = rng();
    for round in 0..3000 {
        let sides: Vec<Side> = (0..3 + round % 30).map(|_| side(&mut rng)).collect();
        let mut view = view(&sides);
        for stage in Stage::ALL {
            let source = Source::of(stage, &view);
            let compare = |l: &Pressure<'_>, r: &Pressure<'_>| source.compare(stage, l, r);
            for [a, b, c] in view.array_windows() {
                assert_eq!(compare(a, b), compare(b, a).reverse());
                if compare(a, b) != Greater && compare(b, c) != Greater {
                    assert_ne!(
                        compare(a, c),
                        Greater,
                        "{stage} {source:?} {a:?} {b:?} {c:?}"
                    );
                }
            }
            // The sort of the standard library panics on an order that is none.
            view.sort_by(compare);
            let least = view[0];
            view.shuffle(&mut rng);
            assert_eq!(Source::of(stage, &view), source);
            let found = view.iter().copied().min_by(compare).unwrap();
            assert_eq!(compare(&found, &least), Equal);
        }
    }
}

#[test]
fn of_two_engines_the_set_rule_is_the_pair_rule() {
    let mut rng = rng();
    for _ in 0..10_000 {
        let sides = [side(&mut rng), side(&mut rng)];
        let view = view(&sides);
        for stage in Stage::ALL {
            let set = Source::of(stage, &view).compare(stage, &view[0], &view[1]);
            assert_eq!(set, compare_pressure(stage, &view[0], &view[1]));
        }
    }
}
