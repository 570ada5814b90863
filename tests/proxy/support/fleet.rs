//! Mock engines and the configurations over them.

use serde_json::{Value, json};
use sgl_edge::mock::{self, Engine, EngineConfig, Faults, RecordedRequest, Role};

use super::{eventually, leaks};

/// Starts an engine that takes prompts of any length.
pub(crate) async fn engine_with(name: &str, config: EngineConfig) -> Engine {
    let config = EngineConfig {
        name: name.to_owned(),
        context_length: u32::MAX,
        ..config
    };
    let engine = mock::start(config).await.expect("a free port");
    leaks::guard(engine.addr());
    engine
}

/// A plain engine without faults.
pub(crate) async fn engine(name: &str) -> Engine {
    engine_with(name, EngineConfig::default()).await
}

/// A plain engine with faults from the start.
pub(crate) async fn faulty(name: &str, faults: Faults) -> Engine {
    let config = EngineConfig {
        faults,
        ..EngineConfig::default()
    };
    engine_with(name, config).await
}

/// The configuration entry of an engine.
pub(crate) fn entry(engine: &Engine, role: Role) -> Value {
    let port = (role == Role::Prefill).then(|| engine.bootstrap_port());
    json!({
        "id": engine.name(), "url": engine.url(), "role": role.as_str(), "bootstrap_port": port,
    })
}

/// Settings with the one model `m` over plain engines.
pub(crate) fn plain(engines: &[&Engine]) -> Value {
    let entries: Vec<Value> = engines.iter().map(|e| entry(e, Role::Plain)).collect();
    json!({"models": [{"id": "m", "engines": {"static": entries}}]})
}

/// The same with buckets.
pub(crate) fn plain_buckets(engines: &[&Engine], buckets: Value) -> Value {
    let mut settings = plain(engines);
    settings["models"][0]["buckets"] = buckets;
    settings
}

/// A plain bucket.
pub(crate) fn bucket(id: &str, rank: u32, workers: Value, admission: Value) -> Value {
    json!({
        "id": id, "rank": rank,
        "groups": {"plain": {
            "worker_ids": workers,
            "policy": {"type": "round_robin", "admission": admission},
        }},
    })
}

/// `settings` with these over them.
pub(crate) fn and(mut settings: Value, more: Value) -> Value {
    super::child::merge(&mut settings, &more);
    settings
}

/// The newest recorded request of an engine.
pub(crate) fn newest(engine: &Engine) -> RecordedRequest {
    engine.recorded().pop().expect("a recorded request")
}

/// Waits until an engine has this many requests behind it and holds none.
pub(crate) async fn seen(engine: &Engine, requests: u64) {
    eventually("the engine has taken the request", async || {
        engine.stats().requests >= requests
    })
    .await;
}

/// Waits until an engine holds nothing.
pub(crate) async fn quiet(engine: &Engine) {
    eventually("the engine holds nothing", async || {
        engine.stats().inflight == 0
    })
    .await;
}
