//! Decided by the bucket loop: caps, missing engines, open breakers.

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig, Faults, Role};

use crate::support::body::{chat, small};
use crate::support::child::Proxy;
use crate::support::client::{Answer, Client};
use crate::support::fleet::{
    and, bucket, engine, engine_with, entry, faulty, plain, plain_buckets, quiet, seen,
};
use crate::support::{body, eventually, pause};

/// One chat that an engine holds on to.
async fn held(proxy: &Proxy, engine: &Engine, nth: u64) -> Client {
    let mut client = proxy.client().await;
    client.send(&body::with_length(&small(), "")).await;
    seen(engine, nth).await;
    client
}

/// One bucket of all engines. Left out, there would be a second one for pairs, and a missing
/// prefill engine would have the last word.
fn only() -> Value {
    json!([bucket("only", 0, Value::Null, json!({}))])
}

fn stalling() -> Faults {
    Faults {
        stall_before_headers: true,
        ..Faults::default()
    }
}

/// A refusal on a connection of its own, which afterwards does what the refusal said.
async fn refused(proxy: &Proxy, code: &str) -> Answer {
    let mut client = proxy.client().await;
    let answer = client.chat(&small()).await;
    answer.assert_refusal(503, code);
    client.assert_honest(&answer).await;
    answer
}

#[tokio::test]
async fn a_full_engine_is_503_and_free_again_afterwards() {
    let engine = faulty("E1", stalling()).await;
    let capped = bucket("only", 0, Value::Null, json!({"max_inflight_requests": 2}));
    let proxy = Proxy::start(plain_buckets(&[&engine], json!([capped]))).await;
    let first = held(&proxy, &engine, 1).await;
    let second = held(&proxy, &engine, 2).await;
    for _ in 0..3 {
        let answer = refused(&proxy, "policy_selection_failed").await;
        assert_eq!(answer.json()["error"]["message"], "service unavailable");
    }
    assert_eq!(engine.stats().requests, 2, "the cap is exact");
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_inflight_requests", &[("worker_url", "E1")]),
        2.0
    );
    let rejected = [("limit", "max_inflight_requests"), ("bucket", "only")];
    assert_eq!(gauges.sum_of("admission_rejections_total", &rejected), 3.0);
    engine.faults().clear();
    drop((first, second));
    proxy.idle().await;
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn a_full_bucket_gives_way_to_the_next() {
    let (first, second) = (faulty("E1", stalling()).await, engine("E2").await);
    let buckets = json!([
        bucket("a", 0, json!(["E1"]), json!({"max_inflight_requests": 1})),
        bucket("b", 1, json!(["E2"]), json!({})),
    ]);
    let settings = and(
        plain_buckets(&[&first, &second], buckets),
        json!({"response_headers": true}),
    );
    let proxy = Proxy::start(settings).await;
    let holder = held(&proxy, &first, 1).await;
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_engine(200);
    assert_eq!(answer.header("x-edge-bucket"), Some("b"));
    assert_eq!(answer.header("x-edge-engine"), Some("E2"));
    assert_eq!(answer.header("x-edge-reason"), Some("round_robin"));
    drop(holder);
    quiet(&first).await;
    first.faults().clear();
    proxy.idle().await;
    let answer = proxy.chat_bytes(&small()).await;
    assert_eq!(answer.header("x-edge-bucket"), Some("a"));
    proxy.finish().await;
}

#[tokio::test]
async fn a_rejection_wins_over_a_later_empty_bucket() {
    let engine = faulty("E1", stalling()).await;
    let buckets = json!([
        bucket("a", 0, json!(["E1"]), json!({"max_inflight_requests": 1})),
        bucket("b", 1, json!([]), json!({})),
    ]);
    let proxy = Proxy::start(plain_buckets(&[&engine], buckets)).await;
    let holder = held(&proxy, &engine, 1).await;
    refused(&proxy, "policy_selection_failed").await;
    drop(holder);
    proxy.finish().await;
}

#[tokio::test]
async fn without_an_engine_the_last_missing_stage_is_named() {
    let prefill = engine_with(
        "P1",
        EngineConfig {
            role: Role::Prefill,
            bootstrap_port: 0,
            ..EngineConfig::default()
        },
    )
    .await;
    let decode = engine_with(
        "D1",
        EngineConfig {
            role: Role::Decode,
            ..EngineConfig::default()
        },
    )
    .await;
    let idle = engine("E1").await;
    let policy = json!({"type": "round_robin"});
    let pd = |id: &str, rank: u32, prefill: Value, decode: Value| {
        json!({"id": id, "rank": rank, "groups": {"pd": {
            "prefill": {"worker_ids": prefill, "policy": policy},
            "decode": {"worker_ids": decode, "policy": policy},
        }}})
    };
    let pd_engines =
        json!({"static": [entry(&prefill, Role::Prefill), entry(&decode, Role::Decode)]});
    let model =
        |id: &str, buckets: Value| json!({"id": id, "engines": pd_engines, "buckets": buckets});
    // Engine ids are unique over all models, so every case is a start of its own.
    let cases = [
        (
            pd("a", 0, json!([]), Value::Null),
            None,
            "no_prefill_workers_available",
        ),
        (
            pd("a", 0, Value::Null, json!([])),
            None,
            "no_decode_workers_available",
        ),
        (
            pd("a", 0, json!([]), Value::Null),
            Some(pd("b", 1, Value::Null, json!([]))),
            "no_decode_workers_available",
        ),
        (
            pd("a", 0, Value::Null, json!([])),
            Some(pd("b", 1, json!([]), Value::Null)),
            "no_prefill_workers_available",
        ),
    ];
    for (first, second, code) in cases {
        let buckets: Vec<Value> = std::iter::once(first).chain(second).collect();
        let proxy = Proxy::start(json!({"models": [model("m", json!(buckets))]})).await;
        refused(&proxy, code).await;
        let ready = proxy.client().await.call("GET", "/readyz").await;
        assert_eq!(ready.status, 503);
        proxy.finish().await;
    }
    let none = plain_buckets(&[&idle], json!([bucket("a", 0, json!([]), json!({}))]));
    let proxy = Proxy::start(none).await;
    refused(&proxy, "no_healthy_workers").await;
    for engine in [&prefill, &decode, &idle] {
        assert_eq!(engine.stats().requests, 0, "{}", engine.name());
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_breaker_opens_after_three_failures_and_a_probe_closes_it() {
    let faults = Faults {
        status: Some(500),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let settings = and(
        plain_buckets(&[&engine], only()),
        json!({"circuit_breaker": {"failures": 3, "cool_down": "2s"}}),
    );
    let proxy = Proxy::start(settings).await;
    let label = [("worker_url", "E1")];
    for failures in 0..3 {
        let gauges = proxy.gauges().await;
        assert_eq!(gauges.sum_of("worker_cb_state", &label), 0.0, "{failures}");
        proxy.chat_bytes(&small()).await.assert_engine(500);
        proxy.idle().await;
    }
    // The filter takes an open engine out, so the group is empty. `breaker_open` is left to a race.
    let answer = refused(&proxy, "no_healthy_workers").await;
    assert!(answer.header("retry-after").is_some());
    assert_eq!(engine.stats().requests, 3, "nothing reaches an open engine");
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum_of("worker_cb_state", &label), 1.0);
    assert_eq!(gauges.sum_of("worker_health", &label), 0.0);
    assert_eq!(
        proxy.state().await["models"][0]["engines"][0]["breaker"],
        "open"
    );
    let ready = proxy.admin("GET", "/readyz").await;
    assert_eq!(ready.status, 503);
    engine.faults().clear();
    pause(2_100).await;
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.idle().await;
    assert_eq!(proxy.gauges().await.sum_of("worker_cb_state", &label), 0.0);
    proxy.finish().await;
}

#[tokio::test]
async fn only_one_probe_passes_a_half_open_breaker() {
    let faults = Faults {
        status: Some(500),
        times: Some(3),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let settings = and(
        plain_buckets(&[&engine], only()),
        json!({"circuit_breaker": {"failures": 3, "cool_down": "1s"}}),
    );
    let proxy = Proxy::start(settings).await;
    for _ in 0..3 {
        proxy.chat_bytes(&small()).await.assert_engine(500);
    }
    proxy.idle().await;
    engine.faults().set(stalling());
    pause(1_100).await;
    let burst = (0..12).map(|_| async {
        let mut client = proxy.client().await;
        client.send(&body::with_length(&small(), "")).await;
        client
    });
    let mut clients = futures_util::future::join_all(burst).await;
    let mut refusals = 0;
    let mut probes = Vec::new();
    for mut client in clients.drain(..) {
        if client.is_silent(1_000).await {
            probes.push(client);
            continue;
        }
        let answer = client.answer().await;
        let code = answer
            .header("x-router-error-code")
            .expect("a code")
            .to_owned();
        // Who looked before the probe was claimed and came after it gets `breaker_open`.
        assert!(
            matches!(code.as_str(), "no_healthy_workers" | "breaker_open"),
            "{code}"
        );
        answer.assert_refusal(503, &code);
        refusals += 1;
    }
    assert_eq!((refusals, probes.len()), (11, 1));
    assert_eq!(engine.stats().requests, 4, "one probe");
    // A cancelled probe frees its slot: the next one may try.
    engine.faults().clear();
    drop(probes);
    eventually("the next probe passes", async || {
        proxy.chat_bytes(&small()).await.status == 200
    })
    .await;
    proxy.finish().await;
}

#[tokio::test]
async fn busy_answers_and_client_errors_open_no_breaker() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    for status in [503, 429, 400, 404, 422] {
        engine
            .faults()
            .update(|faults| faults.status = Some(status));
        for _ in 0..4 {
            proxy.chat(&chat("x")).await.assert_engine(status);
        }
    }
    engine.faults().clear();
    proxy.chat(&chat("x")).await.assert_engine(200);
    proxy.finish().await;
}
