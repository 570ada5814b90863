//! Every worked example of policy-semantics §16, under its number.

use sgl_edge::policies::{AdmissionLimits, CacheAwareParams};

use super::fleet::Fleet;

const USUAL: CacheAwareParams = CacheAwareParams {
    min_matched_tokens: Some(1024),
    min_match_ratio: None,
    candidate_min_workers: 8,
    candidate_ratio: 0.05,
    candidate_max_workers: 32,
    switch_margin_tokens: 1024,
    pressure_guard: true,
    pressure_abs_threshold_tokens: 1024,
    pressure_abs_threshold_ms: None,
    pressure_rel_threshold: 1.5,
    worker_queue_limit: None,
    saturation_queue_floor: None,
    min_load_choices: sgl_edge::policies::PowerOfTwoParams::TWO,
};
const GUARD_OFF: CacheAwareParams = CacheAwareParams {
    pressure_guard: false,
    ..USUAL
};
const BY_MS: CacheAwareParams = CacheAwareParams {
    pressure_abs_threshold_ms: Some(400.0),
    ..USUAL
};
const LIMIT_4: CacheAwareParams = CacheAwareParams {
    worker_queue_limit: Some(4),
    ..USUAL
};
const FLOOR_2: CacheAwareParams = CacheAwareParams {
    saturation_queue_floor: Some(2),
    ..LIMIT_4
};
const ONE: CacheAwareParams = CacheAwareParams {
    candidate_min_workers: 1,
    candidate_max_workers: 1,
    ..USUAL
};
const HALF: CacheAwareParams = CacheAwareParams {
    min_match_ratio: Some(0.5),
    ..USUAL
};

const OPEN: AdmissionLimits = AdmissionLimits {
    max_running_requests: None,
    max_waiting_requests: None,
    max_kv_tokens: None,
    max_pending_prefill_tokens: None,
    max_inflight_requests: None,
};
const WAITING_4: AdmissionLimits = AdmissionLimits {
    max_waiting_requests: Some(4),
    ..OPEN
};
const WAITING_6: AdmissionLimits = AdmissionLimits {
    max_waiting_requests: Some(6),
    ..OPEN
};
const RUNNING_8: AdmissionLimits = AdmissionLimits {
    max_running_requests: Some(8),
    ..OPEN
};
const INFLIGHT_2: AdmissionLimits = AdmissionLimits {
    max_inflight_requests: Some(2),
    ..OPEN
};

#[test]
fn the_defaults_are_the_documented_ones() {
    assert_eq!(CacheAwareParams::default(), USUAL);
    assert_eq!(AdmissionLimits::default(), OPEN);
}

type Row = (
    &'static str,
    &'static str,
    CacheAwareParams,
    AdmissionLimits,
    &'static str,
);

fn holds(rows: &[Row]) {
    for (number, fleet, params, limits, expected) in rows {
        let outcome = Fleet::usual(fleet).pick(*params, *limits);
        assert_eq!(outcome.to_string(), *expected, "example {number}: {fleet}");
    }
}

#[test]
fn examples_1_the_floor_on_matched_tokens() {
    let rows = [
        ("1", 4096, 64, 15, "miss of A B C"),
        ("1b", 4096, 64, 16, "A cache_candidate"),
        ("1c", 1500, 24, 16, "miss of A B C"),
        ("1c", 1500, 24, 17, "A cache_candidate"),
    ];
    for (number, input, query, depth, expected) in rows {
        let fleet = Fleet::new(input, query, &format!("A d{depth}; B; C"));
        let outcome = fleet.pick(USUAL, OPEN);
        assert_eq!(
            outcome.to_string(),
            expected,
            "example {number}, depth {depth}"
        );
    }
    let matched = |input, query, depth| {
        let fleet = Fleet::new(input, query, &format!("A d{depth}; B"));
        let none = CacheAwareParams {
            min_matched_tokens: None,
            ..USUAL
        };
        let hits = fleet.pick(none, OPEN).seen.unwrap().hits;
        (hits[0].matched_tokens, hits[0].uncached_tokens)
    };
    assert_eq!(matched(1500, 24, 16), (1000, 500));
    assert_eq!(matched(1500, 24, 17), (1062, 438));
    assert_eq!(matched(100, 2, 1), (50, 50), "the note on units");
}

#[test]
fn example_1d_the_floor_on_the_ratio() {
    let fleet = Fleet::usual("A d48; B d64");
    let outcome = fleet.pick(HALF, OPEN);
    assert_eq!(outcome.to_string(), "B cache_candidate");
    assert_eq!(outcome.seen.unwrap().hits.len(), 1);
}

#[test]
fn example_2_the_bound_grows_with_the_group() {
    for (engines, bound) in [(5, 5), (200, 10), (400, 20), (1000, 32)] {
        assert_eq!(USUAL.candidates(engines), bound, "{engines} engines");
    }
}

#[test]
fn examples_3_margin_and_guard() {
    holds(&[
        (
            "3",
            "P1 d112 t9000; P2 d96 t2000",
            USUAL,
            OPEN,
            "P2 cache_candidate",
        ),
        (
            "3b",
            "P1 d112 t9000; P2 d95 t2000",
            USUAL,
            OPEN,
            "P1 cache_candidate",
        ),
        (
            "3c",
            "P1 d112 t9000; P2 d96 t7900",
            USUAL,
            OPEN,
            "P1 cache_candidate",
        ),
        (
            "3d",
            "P1 d112 t9000; P2 d96 stale",
            USUAL,
            OPEN,
            "P1 cache_candidate",
        ),
        (
            "3d",
            "P1 d112 t9000; P2 d96 t2000",
            GUARD_OFF,
            OPEN,
            "P1 cache_candidate",
        ),
        (
            "3e",
            "M1 d112 m800 t4000; M2 d104 m300 t6000",
            BY_MS,
            OPEN,
            "M2 cache_candidate",
        ),
        (
            "3e",
            "M1 d112 m800 t4000; M2 d104 m300 t6000",
            USUAL,
            OPEN,
            "M1 cache_candidate",
        ),
        (
            "3f",
            "Q1 d112 t6000; Q2 d104 t3000; Q3 d96 t1000",
            USUAL,
            OPEN,
            "Q3 cache_candidate",
        ),
    ]);
}

#[test]
fn examples_4_the_soft_gate() {
    holds(&[
        (
            "4",
            "O d120 w5; N d60 w3; R w0",
            LIMIT_4,
            OPEN,
            "N cache_candidate",
        ),
        ("4b", "O d120 w5; N w3; R w0", LIMIT_4, OPEN, "miss of N R"),
        (
            "4c",
            "U d120 stale; N d60 w3; R w0",
            LIMIT_4,
            OPEN,
            "U cache_candidate",
        ),
    ]);
}

#[test]
fn examples_5_saturation() {
    let all = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w4";
    let three = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w3";
    let one = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w1";
    let silent = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 stale";
    holds(&[
        ("5", all, LIMIT_4, OPEN, "S1 saturation_pin"),
        ("5b", all, FLOOR_2, OPEN, "S2 saturation_pin"),
        ("5c", three, FLOOR_2, OPEN, "S2 saturation_pin"),
        ("5d", three, LIMIT_4, OPEN, "miss of S3"),
        ("5e", one, FLOOR_2, OPEN, "miss of S3"),
        ("5f", silent, LIMIT_4, OPEN, "miss of S3"),
        ("5f", silent, FLOOR_2, OPEN, "S2 saturation_pin"),
    ]);
}

#[test]
fn examples_6_hard_admission_is_never_bypassed() {
    let all = "S1 d120 w5 t3000 r9; S2 d100 w7 t900 r9; S3 w4 r9";
    holds(&[
        (
            "6",
            "O d120 w5; N d110 w3",
            USUAL,
            WAITING_4,
            "N cache_candidate",
        ),
        (
            "6b",
            "O d120 w5; R",
            USUAL,
            WAITING_4,
            "no admissible engine (O: max_waiting_requests)",
        ),
        (
            "6c",
            "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w4",
            FLOOR_2,
            WAITING_6,
            "S1 saturation_pin",
        ),
        (
            "6d",
            all,
            LIMIT_4,
            RUNNING_8,
            "no admissible engine (S1: max_running_requests, S2: max_running_requests)",
        ),
        (
            "6e",
            "O d120 w5; N d60 w3 i2",
            LIMIT_4,
            INFLIGHT_2,
            "no admissible engine (N: max_inflight_requests)",
        ),
    ]);
}

#[test]
fn example_7_the_bound_comes_before_admission() {
    holds(&[(
        "7",
        "O d120 i2; N d110",
        ONE,
        INFLIGHT_2,
        "no admissible engine (O: max_inflight_requests)",
    )]);
}

#[test]
fn example_8_the_fallback_is_hard_checked() {
    holds(&[(
        "8",
        "R i2",
        USUAL,
        INFLIGHT_2,
        "admission rejected (R: max_inflight_requests)",
    )]);
}
