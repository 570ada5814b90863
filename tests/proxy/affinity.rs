//! Sessions, routing keys and latency targets through real requests.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sgl_edge::mock::Engine;

use crate::support::body::small;
use crate::support::child::Proxy;
use crate::support::client::{Answer, Client};
use crate::support::eventually;
use crate::support::fleet::{and, engine, plain, plain_buckets};

async fn engines() -> Vec<Engine> {
    let mut engines = Vec::new();
    for id in ["E1", "E2", "E3", "E4"] {
        engines.push(engine(id).await);
    }
    engines
}

fn settings(engines: &[Engine], policy: Value, affinity: Value) -> Value {
    let engines: Vec<&Engine> = engines.iter().collect();
    let buckets = json!([{"id": "b", "groups": {"plain": {"policy": policy}}}]);
    let mut settings = plain_buckets(&engines, buckets);
    settings["models"][0]["affinity"] = affinity;
    and(settings, json!({"response_headers": true}))
}

async fn ask(proxy: &Proxy, headers: &str) -> Answer {
    proxy.client().await.chat_with(&small(), headers).await
}

/// Engine and reason of an answer.
fn placed(answer: &Answer) -> (String, String) {
    answer.assert_engine(200);
    let header = |name| answer.header(name).expect("response_headers").to_owned();
    (header("x-edge-engine"), header("x-edge-reason"))
}

#[tokio::test]
async fn two_hundred_first_requests_of_one_session_end_on_one_engine() {
    let engines = engines().await;
    let policy = json!({"type": "session_aware"});
    let proxy = Proxy::start(settings(&engines, policy, json!({}))).await;
    let asks = (0..200).map(|_| async {
        let mut client = Client::connect(proxy.data).await;
        placed(&client.chat_with(&small(), "x-session-id: alice\r\n").await)
    });
    let answers = futures_util::future::join_all(asks).await;
    let engines: BTreeSet<&str> = answers.iter().map(|(engine, _)| engine.as_str()).collect();
    assert_eq!(engines.len(), 1, "{answers:?}");
    let assigned = answers.iter().filter(|(_, reason)| reason == "assigned");
    assert_eq!(assigned.count(), 1);
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("affinity_bindings", &[("kind", "session")]),
        1.0
    );
    let state = proxy.state().await;
    let affinity = &state["models"][0]["affinity"];
    assert_eq!(
        (&affinity["session"], &affinity["sticky"]),
        (&json!(1), &json!(0))
    );
    assert!(affinity["bytes"].as_u64() > Some(0), "{affinity}");
    proxy.finish().await;
}

#[tokio::test]
async fn bindings_outlive_a_reload_and_idle_ones_are_swept() {
    let engines = engines().await;
    let policy = json!({"type": "sticky", "fallback": "round_robin"});
    let affinity = json!({"routing_key_header": "x-tenant"});
    let mut proxy = Proxy::start(settings(&engines, policy.clone(), affinity)).await;
    let mut before = Vec::new();
    for key in ["a", "b", "c", "d"] {
        let (engine, reason) = placed(&ask(&proxy, &format!("X-Tenant: {key}\r\n")).await);
        assert_eq!(reason, "sticky_assigned");
        before.push((key, engine));
    }
    let distinct: BTreeSet<_> = before.iter().map(|(_, engine)| engine).collect();
    assert_eq!(distinct.len(), 4, "a rotation");
    assert_eq!(placed(&ask(&proxy, "").await).1, "no_routing_key");
    proxy.write_config(&json!({"timeouts": {"request": "200s"}}));
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    for (key, engine) in &before {
        let again = placed(&ask(&proxy, &format!("x-tenant: {key}\r\n")).await);
        assert_eq!(again, (engine.clone(), "sticky_hit".to_owned()));
    }
    // A short idle time takes effect at once, without a restart.
    let affinity = json!({
        "routing_key_header": "x-tenant", "sticky_idle": "1ms", "sticky_eviction_interval": "1ms",
    });
    proxy.write_config(&settings(&engines, policy, affinity));
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    eventually("idle bindings are removed", async || {
        let gauges = proxy.gauges().await;
        gauges.sum_of("affinity_bindings", &[("kind", "sticky")]) == 0.0
            && gauges.sum_of("affinity_expired_total", &[("kind", "sticky")]) == 4.0
    })
    .await;
    let gauges = proxy.gauges().await;
    for (outcome, count) in [("assigned", 4.0), ("hit", 4.0), ("no_routing_key", 1.0)] {
        assert_eq!(
            gauges.sum_of("sticky_total", &[("outcome", outcome)]),
            count,
            "{outcome}"
        );
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_session_whose_engine_fails_moves_and_stays_where_it_went() {
    let engines = engines().await;
    let policy = json!({"type": "session_aware"});
    let proxy = Proxy::start(and(
        settings(&engines, policy, json!({})),
        json!({"circuit_breaker": {"failures": 1, "cool_down": "600s"}}),
    ))
    .await;
    let session = "x-session-id: bob\r\n";
    let (bound, _) = placed(&ask(&proxy, session).await);
    let at = engines
        .iter()
        .find(|engine| engine.name() == bound)
        .expect("one of them");
    at.faults().update(|faults| faults.status = Some(500));
    ask(&proxy, session).await.assert_engine(500);
    let (moved, reason) = placed(&ask(&proxy, session).await);
    assert_ne!(moved, bound);
    assert_eq!(reason, "assigned");
    let again = placed(&ask(&proxy, session).await);
    assert_eq!(again, (moved, "session_primary".to_owned()));
    proxy.finish().await;
}

#[tokio::test]
async fn latency_targets_choose_among_buckets_and_malformed_ones_are_refused() {
    let engines = engines().await;
    let engines: Vec<&Engine> = engines.iter().collect();
    let bucket = |id: &str, rank: u32, engine: &str, ttft: f64, tps: f64| {
        json!({
            "id": id, "rank": rank, "ttft_ms": ttft, "tokens_per_second": tps,
            "groups": {"plain": {"worker_ids": [engine]}},
        })
    };
    let mut settings = plain_buckets(
        &engines,
        json!([
            bucket("slow", 0, "E1", 400.0, 30.0),
            bucket("swift", 1, "E2", 80.0, 60.0)
        ]),
    );
    settings["models"][0]["slo"] = json!({"ttft": "slo_first"});
    let proxy = Proxy::start(and(settings, json!({"response_headers": true}))).await;
    let rows = [
        ("", "slow"),
        ("x-sgl-ttft-slo-ms: 100\r\n", "swift"),
        ("X-Sgl-Ttft-Slo-Ms: 1000\r\n", "slow"),
        // Not enabled, so not read.
        ("x-sgl-tps-slo: fast\r\n", "slow"),
    ];
    for (headers, bucket) in rows {
        let answer = ask(&proxy, headers).await;
        answer.assert_engine(200);
        assert_eq!(answer.header("x-edge-bucket"), Some(bucket), "{headers}");
    }
    for wrong in ["0", "-1", "1.5", "soon", ""] {
        let answer = ask(&proxy, &format!("x-sgl-ttft-slo-ms: {wrong}\r\n")).await;
        answer.assert_refusal(400, "bad_request");
        assert!(
            answer.text().contains("x-sgl-ttft-slo-ms"),
            "{}",
            answer.text()
        );
    }
    proxy.finish().await;
}

#[tokio::test]
async fn headers_that_no_policy_uses_change_nothing() {
    let engines = engines().await;
    let engines: Vec<&Engine> = engines.iter().collect();
    let proxy = Proxy::start(and(plain(&engines), json!({"response_headers": true}))).await;
    let headers = "x-session-id: alice\r\nx-sgl-routing-key: tenant\r\nx-sgl-ttft-slo-ms: soon\r\n";
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        let (engine, reason) = placed(&ask(&proxy, headers).await);
        assert_eq!(reason, "power_of_two");
        seen.insert(engine);
    }
    assert!(seen.len() > 1, "{seen:?}");
    proxy.finish().await;
}
