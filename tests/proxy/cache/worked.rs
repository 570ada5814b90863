//! The worked examples of policy-semantics §16 through HTTP, under their numbers: real engines'
//! caches, load reports on real sockets, the program in between.
//!
//! Not here: example 2 beyond its first row, because a bound of 10, 20 and 32 candidates takes 200
//! to 1000 engines that hold something; `tests/selection` holds it over the same policy.

mod stage;

use serde_json::{Value, json};

use stage::Stage;

/// Number, engines, parameters over the defaults, hard limits, outcome.
type Row = (&'static str, &'static str, Value, Value, &'static str);

async fn hold(rows: Vec<Row>) {
    let mut stage = Stage::new().await;
    for (number, engines, params, admission, expected) in rows {
        let outcome = stage.play(8192, engines, params, admission).await;
        assert_eq!(outcome, expected, "example {number}: {engines}");
    }
    stage.finish().await;
}

fn none() -> Value {
    json!({})
}

fn limit_4() -> Value {
    json!({"worker_queue_limit": 4})
}

fn floor_2() -> Value {
    json!({"worker_queue_limit": 4, "saturation_queue_floor": 2})
}

#[tokio::test]
async fn examples_1_and_2_what_counts_as_a_hit() {
    let mut stage = Stage::new().await;
    let half = || json!({"min_match_ratio": 0.5});
    let rows = [
        ("1", 4096, "A d15; B; C", none(), "cache_miss of A B C"),
        ("1b", 4096, "A d16; B; C", none(), "A cache_hit"),
        ("1c", 1500, "A d16; B; C", none(), "cache_miss of A B C"),
        ("1c", 1500, "A d17; B; C", none(), "A cache_hit"),
        ("1d", 8192, "A d48; B d64", half(), "B cache_hit"),
        ("1d", 8192, "A d48; B d63", half(), "cache_miss of A B"),
        ("2", 8192, "A d100; B d110; C d120", none(), "C cache_hit"),
    ];
    for (number, input, engines, params, expected) in rows {
        let outcome = stage.play(input, engines, params, none()).await;
        assert_eq!(outcome, expected, "example {number}: {engines}");
    }
    stage.finish().await;
}

#[tokio::test]
async fn examples_3_margin_and_guard() {
    let off = json!({"pressure_guard": false});
    let by_ms = json!({"pressure_abs_threshold_ms": 400});
    let estimates = "M1 d112 t4000 m800; M2 d104 t6000 m300";
    let three = "Q1 d112 t6000; Q2 d104 t3000; Q3 d96 t1000";
    hold(vec![
        (
            "3",
            "P1 d112 t9000; P2 d96 t2000",
            none(),
            none(),
            "P2 cache_hit",
        ),
        (
            "3b",
            "P1 d112 t9000; P2 d95 t2000",
            none(),
            none(),
            "P1 cache_hit",
        ),
        (
            "3c",
            "P1 d112 t9000; P2 d96 t7900",
            none(),
            none(),
            "P1 cache_hit",
        ),
        (
            "3d",
            "P1 d112 t9000; P2 d96 stale",
            none(),
            none(),
            "P1 cache_hit",
        ),
        (
            "3d",
            "P1 d112 t9000; P2 d96 t2000",
            off,
            none(),
            "P1 cache_hit",
        ),
        ("3e", estimates, by_ms, none(), "M2 cache_hit"),
        ("3e", estimates, none(), none(), "M1 cache_hit"),
        ("3f", three, none(), none(), "Q3 cache_hit"),
    ])
    .await;
}

#[tokio::test]
async fn examples_4_the_soft_gate() {
    let alone = "O d120 w5; N w3; R w0";
    hold(vec![
        (
            "4",
            "O d120 w5; N d60 w3; R w0",
            limit_4(),
            none(),
            "N cache_hit",
        ),
        ("4b", alone, limit_4(), none(), "cache_worker_queued of N R"),
        (
            "4c",
            "U d120 stale; N d60 w3; R w0",
            limit_4(),
            none(),
            "U cache_hit",
        ),
    ])
    .await;
}

#[tokio::test]
async fn examples_5_saturation() {
    let all = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w4";
    let three = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w3";
    let one = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w1";
    let silent = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 stale";
    hold(vec![
        ("5", all, limit_4(), none(), "S1 all_queued"),
        ("5b", all, floor_2(), none(), "S2 all_queued"),
        ("5c", three, floor_2(), none(), "S2 all_queued"),
        ("5d", three, limit_4(), none(), "cache_worker_queued of S3"),
        ("5e", one, floor_2(), none(), "cache_worker_queued of S3"),
        ("5f", silent, limit_4(), none(), "cache_worker_queued of S3"),
        ("5f", silent, floor_2(), none(), "S2 all_queued"),
    ])
    .await;
}

#[tokio::test]
async fn examples_6_to_8_hard_admission() {
    let all = "S1 d120 w5 t3000; S2 d100 w7 t900; S3 w4";
    let running = "S1 d120 w5 t3000 r9; S2 d100 w7 t900 r9; S3 w4 r9";
    let one = json!({"candidate_max_workers": 1, "candidate_min_workers": 1});
    let waiting = |most: u32| json!({"max_waiting_requests": most});
    let (run, inflight) = (
        json!({"max_running_requests": 8}),
        json!({"max_inflight_requests": 2}),
    );
    let both = "refused: S1 max_running_requests, S2 max_running_requests";
    let only_n = "refused: N max_inflight_requests";
    let only_o = "refused: O max_inflight_requests";
    let fallback = "refused: R max_inflight_requests";
    hold(vec![
        (
            "6",
            "O d120 w5; N d110 w3",
            none(),
            waiting(4),
            "N cache_hit",
        ),
        (
            "6b",
            "O d120 w5; R",
            none(),
            waiting(4),
            "refused: O max_waiting_requests",
        ),
        ("6c", all, floor_2(), waiting(6), "S1 all_queued"),
        ("6d", running, limit_4(), run, both),
        (
            "6e",
            "O d120 w5; N d60 w3 i2",
            limit_4(),
            inflight.clone(),
            only_n,
        ),
        ("7", "O d120 i2; N d110", one, inflight.clone(), only_o),
        ("8", "R i2", none(), inflight, fallback),
    ])
    .await;
}
