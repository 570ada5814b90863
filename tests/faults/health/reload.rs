//! A reload changes the checks: path, interval, thresholds, the set of engines, on and off.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::probed::Probed;
use super::{becomes, healthy, settings};
use crate::support::body::small;
use crate::support::child::Proxy;
use crate::support::{eventually, pause};

async fn reload(proxy: &mut Proxy, patch: Value) {
    proxy.write_config(&patch);
    let answer = proxy.admin("POST", "/admin/reload").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Probes of a path within a while, after what was under way has ended.
async fn probes_within(engine: &Probed, path: &str, milliseconds: u64) -> u32 {
    pause(500).await;
    let before = engine.probes(path);
    pause(milliseconds).await;
    engine.probes(path) - before
}

#[tokio::test]
async fn path_and_interval() {
    let engine = Probed::start().await;
    let mut proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    eventually("it is probed", async || engine.probes("/health") >= 3).await;
    reload(&mut proxy, json!({"health": {"path": "/ready"}})).await;
    eventually("the new path", async || engine.probes("/ready") >= 3).await;
    assert_eq!(
        probes_within(&engine, "/health", 1_000).await,
        0,
        "the old path"
    );
    // Fifty times slower.
    reload(&mut proxy, json!({"health": {"interval": "10s"}})).await;
    let slow = probes_within(&engine, "/ready", 3_000).await;
    assert!(slow <= 1, "{slow} probes in 3 s, every 10 s");
    reload(&mut proxy, json!({"health": {"interval": "200ms"}})).await;
    let quick = probes_within(&engine, "/ready", 3_000).await;
    assert!(
        (4..=16).contains(&quick),
        "{quick} probes in 3 s, every 0.2 s"
    );
    proxy.finish().await;
}

#[tokio::test]
async fn thresholds_and_timeout() {
    let engine = Probed::start().await;
    let mut proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    reload(&mut proxy, json!({"health": {"unhealthy_after": 1_000}})).await;
    engine.answer(503);
    let before = engine.probes("/health");
    eventually("many bad answers", async || {
        engine.probes("/health") > before + 8
    })
    .await;
    assert!(healthy(&proxy, "E1").await, "a thousand are allowed");
    reload(&mut proxy, json!({"health": {"unhealthy_after": 2}})).await;
    becomes(&proxy, "E1", false).await;
    reload(&mut proxy, json!({"health": {"healthy_after": 1_000}})).await;
    engine.answer(200);
    let before = engine.probes("/health");
    eventually("many good answers", async || {
        engine.probes("/health") > before + 8
    })
    .await;
    assert!(!healthy(&proxy, "E1").await, "a thousand are wanted");
    reload(&mut proxy, json!({"health": {"healthy_after": 1}})).await;
    becomes(&proxy, "E1", true).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_removed_engine_is_not_probed_any_more() {
    let (first, second) = (Probed::start().await, Probed::start().await);
    let both = [first.entry("E1"), second.entry("E2")];
    let mut proxy = Proxy::start(settings(&both, json!({}))).await;
    for engine in [&first, &second] {
        eventually("it is probed", async || engine.probes("/health") >= 2).await;
    }
    let models = |engines: &[Value]| json!({"models": settings(engines, json!({}))["models"]});
    reload(&mut proxy, models(&both[..1])).await;
    assert_eq!(probes_within(&second, "/health", 1_500).await, 0, "removed");
    assert!(probes_within(&first, "/health", 1_500).await >= 2, "stays");
    reload(&mut proxy, models(&both)).await;
    assert!(
        probes_within(&second, "/health", 1_500).await >= 2,
        "is back"
    );
    // Its verdict is not the one of before it was removed.
    second.answer(503);
    becomes(&proxy, "E2", false).await;
    reload(&mut proxy, models(&both[..1])).await;
    pause(500).await;
    second.answer(200);
    reload(&mut proxy, models(&both)).await;
    becomes(&proxy, "E2", true).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_verdict_survives_a_reload_without_a_gap() {
    let engine = Probed::start().await;
    let mut proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    engine.answer(503);
    becomes(&proxy, "E1", false).await;
    for generation in 0..5 {
        let context = json!({"limits": {"max_inflight_requests": 100 + generation}});
        reload(&mut proxy, context).await;
        for _ in 0..5 {
            assert!(!healthy(&proxy, "E1").await, "a gap after a reload");
        }
        let answer = proxy.chat_bytes(&small()).await;
        answer.assert_refusal(503, "no_healthy_workers");
    }
    proxy.finish().await;
}

#[tokio::test]
async fn off_and_on() {
    let engine = Probed::start().await;
    let mut proxy = Proxy::start(settings(&[engine.entry("E1")], json!({}))).await;
    engine.answer(503);
    becomes(&proxy, "E1", false).await;
    reload(&mut proxy, json!({"health": null})).await;
    becomes(&proxy, "E1", true).await;
    assert_eq!(probes_within(&engine, "/health", 1_000).await, 0, "off");
    assert!(healthy(&proxy, "E1").await, "off");
    proxy.chat_bytes(&small()).await.assert_engine(200);
    // On again, over an engine that is well by now: it counts as healthy until checks fail.
    engine.answer(200);
    let checks = settings(&[], json!({"healthy_after": 5}));
    reload(&mut proxy, json!({"health": checks["health"]})).await;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert!(healthy(&proxy, "E1").await, "out because of an old verdict");
        pause(20).await;
    }
    proxy.finish().await;
}
