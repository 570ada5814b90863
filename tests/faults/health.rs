//! Active health checks: they filter candidates, patiently, each engine on its own, and open no
//! breaker; a reload changes everything about them; readiness follows.

mod probed;
mod reload;

use std::time::Duration;

use serde_json::{Value, json};
use sgl_edge::mock::{EngineConfig, Faults, Role};
use tokio::time::Instant;

use crate::support::body::{self, chat, small, stream};
use crate::support::child::Proxy;
use crate::support::client::End;
use crate::support::fleet::{and, engine, engine_with, entry, plain_buckets};
use crate::support::{SOON, eventually, pause};
use probed::Probed;

/// Settings of quick checks over one plain bucket with these engines.
fn settings(engines: &[Value], health: Value) -> Value {
    let mut settings = plain_buckets(&[], json!([{"id": "all", "groups": {"plain": {}}}]));
    settings["models"][0]["engines"]["static"] = engines.into();
    let checks = json!({
        "path": "/health", "interval": "200ms", "timeout": "2s",
        "healthy_after": 2, "unhealthy_after": 3,
    });
    and(
        and(settings, json!({"health": checks})),
        json!({"health": health}),
    )
}

/// What the router thinks of an engine.
async fn healthy(proxy: &Proxy, id: &str) -> bool {
    let state = proxy.state().await;
    let models = state["models"].as_array().expect("models");
    let engines = models.iter().flat_map(|model| model["engines"].as_array());
    let mine = engines.flatten().find(|engine| engine["id"] == id);
    mine.expect("the engine")["healthy"]
        .as_bool()
        .expect("a verdict")
}

async fn becomes(proxy: &Proxy, id: &str, wanted: bool) {
    eventually(&format!("{id} healthy: {wanted}"), async || {
        healthy(proxy, id).await == wanted
    })
    .await;
}

/// `/readyz` of both listeners.
async fn ready(proxy: &Proxy) -> u16 {
    let data = proxy.client().await.call("GET", "/readyz").await.status;
    assert_eq!(proxy.admin("GET", "/readyz").await.status, data);
    data
}

async fn breakers(proxy: &Proxy) -> f64 {
    proxy.gauges().await.sum("worker_cb_state")
}

#[tokio::test]
async fn an_ill_engine_leaves_and_returns_after_its_thresholds() {
    let engine = Probed::start().await;
    let proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    assert_eq!(ready(&proxy).await, 200);
    eventually("it is probed", async || engine.probes("/health") >= 3).await;
    proxy.chat_bytes(&small()).await.assert_engine(200);
    let before = engine.probes("/health");
    engine.answer(503);
    becomes(&proxy, "E1", false).await;
    let bad = engine.probes("/health") - before;
    assert!(bad >= 3, "out after {bad} bad answers");
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_refusal(503, "no_healthy_workers");
    assert_eq!(ready(&proxy).await, 503);
    let alive = proxy.client().await.call("GET", "/healthz").await;
    assert_eq!(alive.status, 200, "alive all the same");
    let health = [("worker_url", "E1")];
    assert_eq!(proxy.gauges().await.sum_of("worker_health", &health), 0.0);
    assert_eq!(breakers(&proxy).await, 0.0);
    let before = engine.probes("/health");
    engine.answer(200);
    becomes(&proxy, "E1", true).await;
    let good = engine.probes("/health") - before;
    assert!(good >= 2, "back after {good} good answers");
    assert_eq!(ready(&proxy).await, 200);
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn lost_probes_change_nothing_until_there_are_enough_in_a_row() {
    let engine = Probed::start().await;
    let proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    let flapping = [503, 503, 200].repeat(5);
    engine.script(&flapping);
    while !engine.script_is_over() {
        assert!(healthy(&proxy, "E1").await);
        proxy.chat_bytes(&small()).await.assert_engine(200);
        pause(30).await;
    }
    assert!(healthy(&proxy, "E1").await);
    // And one good answer among bad ones does not bring it back.
    engine.answer(500);
    becomes(&proxy, "E1", false).await;
    engine.script(&[200, 500].repeat(5));
    while !engine.script_is_over() {
        assert!(!healthy(&proxy, "E1").await);
        pause(30).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_slow_check_is_fine_below_its_timeout() {
    let config = EngineConfig {
        health_delay: Duration::from_secs(1),
        ..EngineConfig::default()
    };
    let engine = engine_with("E1", config).await;
    let health = json!({"timeout": "8s", "unhealthy_after": 1});
    let proxy = Proxy::start(settings(&[entry(&engine, Role::Plain)], health)).await;
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        assert!(healthy(&proxy, "E1").await);
        proxy.chat_bytes(&small()).await.assert_engine(200);
        pause(100).await;
    }
    // Above it, it is as bad as a wrong answer.
    engine
        .faults()
        .update(|faults| faults.health_delay_ms = Some(600_000));
    becomes(&proxy, "E1", false).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_hung_engine_does_not_delay_the_verdict_on_another() {
    let (hung, other) = (engine("E1").await, Probed::start().await);
    hung.faults()
        .update(|faults| faults.health_delay_ms = Some(600_000));
    let engines = [entry(&hung, Role::Plain), other.entry("E2")];
    let health = json!({"timeout": "6s", "unhealthy_after": 2});
    let proxy = Proxy::start(settings(&engines, health)).await;
    pause(1_000).await;
    for (status, wanted) in [(503, false), (200, true)] {
        let changed = Instant::now();
        other.answer(status);
        becomes(&proxy, "E2", wanted).await;
        let took = changed.elapsed();
        assert!(took < Duration::from_secs(5), "{wanted} after {took:?}");
    }
    becomes(&proxy, "E1", false).await;
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_that_is_gone_is_ill() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let engines = [entry(&first, Role::Plain), entry(&second, Role::Plain)];
    let proxy = Proxy::start(settings(&engines, json!({}))).await;
    let listen = first.addr();
    first.shutdown().await;
    becomes(&proxy, "E1", false).await;
    // Nobody is sent there, so nobody notices.
    for _ in 0..10 {
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    assert_eq!(ready(&proxy).await, 200);
    let config = EngineConfig {
        listen,
        ..EngineConfig::default()
    };
    let first = engine_with("E1", config).await;
    becomes(&proxy, "E1", true).await;
    eventually("it is picked again", async || {
        proxy.chat_bytes(&small()).await.assert_engine(200);
        first.stats().completed > 0
    })
    .await;
    proxy.finish().await;
}

#[tokio::test]
async fn checks_neither_open_nor_close_a_breaker() {
    let engine = engine("E1").await;
    let more = json!({"circuit_breaker": {"failures": 3, "cool_down": "600s"}});
    let settings = and(settings(&[entry(&engine, Role::Plain)], json!({})), more);
    let proxy = Proxy::start(settings).await;
    let fail = Faults {
        status: Some(500),
        ..Faults::default()
    };
    let round = async |faults: Faults| {
        engine.faults().set(faults);
        proxy.chat_bytes(&small()).await.assert_engine(500);
    };
    round(fail.clone()).await;
    round(fail.clone()).await;
    // Bad and good checks between the second and the third failure in a row.
    engine.faults().update(|faults| faults.health = Some(500));
    becomes(&proxy, "E1", false).await;
    pause(1_000).await;
    assert_eq!(breakers(&proxy).await, 0.0, "a check opened it");
    engine.faults().clear();
    becomes(&proxy, "E1", true).await;
    round(fail).await;
    assert_eq!(breakers(&proxy).await, 1.0, "a check cleared the streak");
    engine.faults().clear();
    pause(1_000).await;
    assert_eq!(breakers(&proxy).await, 1.0, "a check closed it");
    assert!(healthy(&proxy, "E1").await);
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_refusal(503, "no_healthy_workers");
    proxy.finish().await;
}

#[tokio::test]
async fn a_running_stream_is_left_alone() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(settings(&[entry(&engine, Role::Plain)], json!({}))).await;
    engine.faults().set(Faults {
        tokens: Some(40),
        interval_ms: Some(100),
        ..Faults::default()
    });
    let mut client = proxy.client().await;
    let request = body::with_length(stream("one").to_string().as_bytes(), "");
    client.send(&request).await;
    let mut answer = client.head(SOON).await.expect("a stream");
    engine.faults().update(|faults| faults.health = Some(503));
    becomes(&proxy, "E1", false).await;
    client.body(&mut answer).await;
    assert_eq!((answer.status, answer.end), (200, End::Clean));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    proxy.finish().await;
}

#[tokio::test]
async fn a_pair_is_ready_only_with_both_halves() {
    let config = |role| EngineConfig {
        role,
        bootstrap_port: 0,
        ..EngineConfig::default()
    };
    let prefill = engine_with("P1", config(Role::Prefill)).await;
    let decode = engine_with("D1", config(Role::Decode)).await;
    let entries = [entry(&prefill, Role::Prefill), entry(&decode, Role::Decode)];
    let mut settings = settings(&entries, json!({}));
    settings["models"][0]["buckets"] =
        json!([{"id": "all", "groups": {"pd": {"prefill": {}, "decode": {}}}}]);
    let proxy = Proxy::start(settings).await;
    for (ill, code) in [
        (&prefill, "no_prefill_workers_available"),
        (&decode, "no_decode_workers_available"),
    ] {
        assert_eq!(ready(&proxy).await, 200);
        proxy.chat(&chat("x")).await.assert_engine(200);
        let before = (prefill.stats().requests, decode.stats().requests);
        ill.faults().update(|faults| faults.health = Some(503));
        becomes(&proxy, ill.name(), false).await;
        assert_eq!(ready(&proxy).await, 503);
        let answer = proxy.chat(&chat("x")).await;
        answer.assert_refusal(503, code);
        let after = (prefill.stats().requests, decode.stats().requests);
        assert_eq!(after, before, "half a pair was sent");
        ill.faults().clear();
        becomes(&proxy, ill.name(), true).await;
    }
    assert_eq!(ready(&proxy).await, 200);
    proxy.finish().await;
}
