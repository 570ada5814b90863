//! A remote index: what it answers, and what happens when it does not.

use std::time::Duration;

use serde_json::json;
use sgl_edge::mock::{Engine, EngineConfig, Indexer, IndexerHandle};

use super::follow::{over, prompt, publishing, served};
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::{and, engine_with};

const UNAVAILABLE: i32 = 14;

/// Three engines that fill an indexer, and a proxy that asks it, or `instead` of it somebody else.
async fn fleet(timeout: &str, instead: Option<&str>) -> (Vec<Engine>, Indexer, Proxy) {
    let handle = IndexerHandle::default();
    let listen = ([127, 0, 0, 1], 0).into();
    let indexer = Indexer::start(listen, handle.clone())
        .await
        .expect("a free port");
    let mut engines = Vec::new();
    for name in ["E1", "E2", "E3"] {
        let config = EngineConfig {
            indexer: Some(handle.clone()),
            ..publishing()
        };
        engines.push(engine_with(name, config).await);
    }
    let mut settings = over(&engines.iter().collect::<Vec<_>>());
    let endpoint = format!("http://{}", indexer.address());
    let endpoint = instead.unwrap_or(&endpoint);
    settings["models"][0]["cache"] =
        json!({"provider": "indexer", "indexer": {"endpoint": endpoint, "query_timeout": timeout}});
    let proxy = Proxy::start(and(settings, json!({}))).await;
    eventually("the block size is known", async || {
        proxy.state().await["models"][0]["prefix_index"]["block_size"] == 16
    })
    .await;
    (engines, indexer, proxy)
}

async fn lookups(proxy: &Proxy, result: &str) -> f64 {
    proxy
        .gauges()
        .await
        .sum_of("cache_lookups_total", &[("result", result)])
}

#[tokio::test]
async fn the_engine_that_an_indexer_names_is_picked_and_no_local_index_is_kept() {
    let (_engines, indexer, proxy) = fleet("2s", None).await;
    let (owner, reason, _) = served(&proxy, &prompt(0..100)).await;
    assert_eq!(reason, "no_cache_candidate");
    for _ in 0..5 {
        let (engine, reason, cached) = served(&proxy, &prompt(0..100)).await;
        assert_eq!(
            (engine.as_str(), reason.as_str()),
            (owner.as_str(), "cache_candidate")
        );
        assert_eq!(cached, 96);
    }
    assert_eq!(indexer.handle().queries(), 6);
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("kv_index_blocks"), 0.0);
    super::follow::predictions_held(&proxy, &owner, 6.0).await;
    proxy.finish().await;
}

#[tokio::test]
async fn an_indexer_that_cannot_answer_is_a_miss_told_apart() {
    let (_engines, indexer, proxy) = fleet("100ms", None).await;
    served(&proxy, &prompt(0..100)).await;
    let rows = [
        (Some(UNAVAILABLE), 0, "unreachable"),
        (Some(8), 0, "overloaded"),
        (Some(11), 0, "too_large"),
        (None, 1000, "timeout"),
    ];
    for (code, delay, label) in rows {
        let before = lookups(&proxy, label).await;
        indexer.handle().fail(code, Duration::from_millis(delay));
        let (_, reason, _) = served(&proxy, &prompt(0..100)).await;
        assert_eq!(reason, "no_cache_candidate", "{label}");
        assert!(lookups(&proxy, label).await > before, "{label}");
    }
    indexer.handle().fail(None, Duration::ZERO);
    eventually("it answers again", async || {
        served(&proxy, &prompt(0..100)).await.1 == "cache_candidate"
    })
    .await;
    proxy.finish().await;
}

#[tokio::test]
async fn nobody_at_the_address_is_a_miss() {
    let nobody = format!("http://{}", crate::support::child::free_address());
    let (_engines, indexer, proxy) = fleet("500ms", Some(&nobody)).await;
    for _ in 0..2 {
        let (_, reason, _) = served(&proxy, &prompt(0..100)).await;
        assert_eq!(reason, "no_cache_candidate");
    }
    let (down, late) = (
        lookups(&proxy, "unreachable").await,
        lookups(&proxy, "timeout").await,
    );
    assert!(down + late > 1.0, "{down} {late}");
    assert_eq!(indexer.handle().queries(), 0);
    proxy.finish().await;
}

#[tokio::test]
async fn a_query_that_the_indexer_calls_wrong_is_an_internal_error() {
    let (engines, indexer, proxy) = fleet("2s", None).await;
    let before: u64 = engines.iter().map(|engine| engine.stats().requests).sum();
    indexer.handle().fail(Some(3), Duration::ZERO);
    let answer = proxy.chat(&prompt(0..100)).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.header("x-router-error-code"), Some("internal_error"));
    let after: u64 = engines.iter().map(|engine| engine.stats().requests).sum();
    assert_eq!(after, before);
    proxy.finish().await;
}
