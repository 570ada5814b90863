//! Numbers at the end of their range, and the comparison against a model that shares no code.

use std::cmp::Ordering::{self, Equal, Greater, Less};

use rand::Rng;
use rand::rngs::StdRng;
use sgl_edge::ids::Stage;
use sgl_edge::state::EngineLoad;

use crate::pressure::{Side, compared};
use crate::support::loads::{basic, decode_load, prefill_load, with_estimate};
use crate::support::seed::rng;

const MAX: u64 = u64::MAX;

#[test]
fn kv_fractions_are_exact_at_the_largest_numbers() {
    let rows = [
        // Equal in 64-bit floats, different by one token.
        ((MAX - 1, MAX), (MAX, MAX), Less),
        ((1 << 53, MAX), ((1 << 53) + 1, MAX), Less),
        // A product in 64 bits would wrap to something small.
        ((MAX, MAX), (1, 2), Greater),
        ((MAX / 2, MAX), (2, 3), Less),
        ((MAX, 1), (MAX, 2), Greater),
        // Equal fractions: fewer tokens win.
        ((MAX, MAX), (1, 1), Greater),
        ((MAX - 1, MAX), (MAX - 1, MAX), Equal),
        ((0, 1), (0, MAX), Equal),
        ((0, MAX), (1, MAX), Less),
        ((1, MAX), (1, MAX - 1), Less),
    ];
    for ((used_l, cap_l), (used_r, cap_r), expected) in rows {
        let left = (Some(decode_load(0, 0, used_l, cap_l)), 0);
        let right = (Some(decode_load(0, 0, used_r, cap_r)), 0);
        assert_eq!(
            compared(Stage::Decode, &left, &right),
            expected,
            "{used_l}/{cap_l} against {used_r}/{cap_r}"
        );
    }
}

#[test]
fn counts_are_compared_and_never_added() {
    let rows = [
        (
            Stage::Prefill,
            prefill_load(0, MAX, MAX),
            prefill_load(1, 0, 0),
        ),
        (
            Stage::Plain,
            prefill_load(MAX, 0, MAX),
            prefill_load(MAX, 1, 0),
        ),
        (
            Stage::Decode,
            decode_load(0, MAX, MAX, 1),
            decode_load(1, 0, 0, 1),
        ),
    ];
    for (stage, better, worse) in rows {
        let (better, worse) = ((Some(better), MAX), (Some(worse), 0));
        assert_eq!(compared(stage, &better, &worse), Less, "{stage}");
    }
    for stage in Stage::ALL {
        assert_eq!(compared(stage, &(None, MAX - 1), &(None, MAX)), Less);
    }
}

#[test]
fn estimates_use_a_total_order_even_for_numbers_that_are_none() {
    let side = |ms| (Some(with_estimate(prefill_load(1, 0, 0), ms)), 0);
    let ascending = [0.0, f64::MIN_POSITIVE, 1.0, 1.0 + f64::EPSILON, f64::MAX];
    let ascending = ascending.into_iter().chain([f64::INFINITY, f64::NAN]);
    let sides: Vec<Side> = ascending.map(side).collect();
    for (left, one) in sides.iter().enumerate() {
        for (right, other) in sides.iter().enumerate() {
            let order = compared(Stage::Prefill, one, other);
            assert_eq!(order, left.cmp(&right), "{left} {right}");
        }
    }
}

/// `l/n` against `r/m` by long division: whole parts first, then the remainders turned over.
fn fractions(mut left: (u64, u64), mut right: (u64, u64)) -> Ordering {
    let mut turned = false;
    loop {
        let whole = (left.0 / left.1).cmp(&(right.0 / right.1));
        let order = if whole == Equal {
            match (left.0 % left.1, right.0 % right.1) {
                (0, 0) => Equal,
                (0, _) => Less,
                (_, 0) => Greater,
                (l, r) => {
                    left = (left.1, l);
                    right = (right.1, r);
                    turned = !turned;
                    continue;
                }
            }
        } else {
            whole
        };
        return if turned { order.reverse() } else { order };
    }
}

fn first_difference(keys: &[Ordering]) -> Ordering {
    let different = keys.iter().find(|order| **order != Equal);
    different.copied().unwrap_or(Equal)
}

/// The table of policy-semantics §8, written down once more.
fn model(stage: Stage, left: &Side, right: &Side) -> Ordering {
    let inflight = left.1.cmp(&right.1);
    let (Some(l), Some(r)) = (&left.0, &right.0) else {
        return inflight;
    };
    let (Some(ln), Some(rn)) = (&l.native, &r.native) else {
        return inflight;
    };
    let running = l.running_requests.cmp(&r.running_requests);
    let waiting = l.waiting_requests.cmp(&r.waiting_requests);
    let keys = if stage == Stage::Decode {
        let left = (l.used_tokens, l.max_total_tokens);
        let right = (r.used_tokens, r.max_total_tokens);
        let used = l.used_tokens.cmp(&r.used_tokens);
        [waiting, running, fractions(left, right), used, inflight]
    } else {
        let estimates = (ln.estimated_prefill_queue_ms, rn.estimated_prefill_queue_ms);
        let estimate = match estimates {
            (Some(l), Some(r)) => l.partial_cmp(&r).expect("numbers"),
            _ => Equal,
        };
        let tokens = ln.waiting_uncached_tokens.cmp(&rn.waiting_uncached_tokens);
        [estimate, tokens, waiting, running, inflight]
    };
    first_difference(&keys)
}

/// Values that are often equal, often near the edges, and sometimes anything.
fn number(rng: &mut StdRng) -> u64 {
    match rng.random_range(0..8) {
        0 => MAX,
        1 => MAX - 1,
        2 => rng.random(),
        _ => rng.random_range(0..3),
    }
}

pub(crate) fn side(rng: &mut StdRng) -> Side {
    let load = rng.random_bool(0.9).then(|| {
        let (waiting, running) = (number(rng) % 2, number(rng) % 2);
        let mut load: EngineLoad = if rng.random_bool(0.9) {
            decode_load(waiting, running, number(rng), number(rng).max(1))
        } else {
            basic(running, waiting)
        };
        if let Some(native) = &mut load.native {
            native.waiting_uncached_tokens = number(rng);
            let ms = f64::from(rng.random_range(0..2_u8));
            native.estimated_prefill_queue_ms = rng.random_bool(0.5).then_some(ms);
        }
        load
    });
    (load, number(rng))
}

#[test]
fn any_two_engines_compare_as_the_model_says() {
    let mut rng = rng();
    let mut seen = [0_u32; 3];
    for _ in 0..30_000 {
        let (left, right) = (side(&mut rng), side(&mut rng));
        for stage in Stage::ALL {
            let expected = model(stage, &left, &right);
            let found = compared(stage, &left, &right);
            assert_eq!(found, expected, "{stage}: {left:?} {right:?}");
            seen[match found {
                Less => 0,
                Equal => 1,
                Greater => 2,
            }] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}
