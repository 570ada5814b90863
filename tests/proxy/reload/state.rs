//! What a reload keeps: running requests, counts, breakers.

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, Faults};

use super::{generation, hang_up};
use crate::support::body::{self, chat, small, stream};
use crate::support::child::Proxy;
use crate::support::client::{Client, End};
use crate::support::fleet::{and, engine, faulty, plain};
use crate::support::{SOON, eventually};

fn slow() -> Faults {
    Faults {
        tokens: Some(30),
        interval_ms: Some(100),
        ..Faults::default()
    }
}

/// A stream of which the first chunk has come.
async fn begun(proxy: &Proxy) -> (Client, crate::support::client::Answer) {
    let mut client = proxy.client().await;
    let body = stream("one").to_string();
    client.send(&body::with_length(body.as_bytes(), "")).await;
    let mut head = client.head(SOON).await.expect("a stream");
    assert_eq!(head.status, 200);
    head.body = client.chunk().await.expect("a chunk");
    (client, head)
}

async fn assert_whole(mut stream: (Client, crate::support::client::Answer)) {
    stream.0.body(&mut stream.1).await;
    assert_eq!(stream.1.end, End::Clean);
    assert!(stream.1.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(stream.1.text().matches(" one").count(), 29);
}

async fn inflight(proxy: &Proxy, engine: &Engine) -> f64 {
    let gauges = proxy.gauges().await;
    gauges.sum_of("worker_inflight_requests", &[("worker_url", engine.name())])
}

#[tokio::test]
async fn a_removed_engine_gets_nothing_new_and_finishes_what_it_has() {
    let (first, second) = (faulty("E1", slow()).await, engine("E2").await);
    let mut proxy = Proxy::start(plain(&[&first])).await;
    let running = begun(&proxy).await;
    proxy.write_config(&plain(&[&second]));
    hang_up(&proxy).await;
    for _ in 0..20 {
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    assert_eq!((first.stats().requests, second.stats().requests), (1, 20));
    assert!(
        !proxy
            .gauges()
            .await
            .text
            .contains("inflight_requests{worker_url=\"E1\"}")
    );
    assert_eq!(
        proxy.gauges().await.sum("inflight_requests"),
        1.0,
        "it still runs"
    );
    assert_whole(running).await;
    // And back again: the count begins where it is, not below.
    proxy.write_config(&plain(&[&first, &second]));
    hang_up(&proxy).await;
    proxy.idle().await;
    assert_eq!(inflight(&proxy, &first).await, 0.0);
    proxy.finish().await;
}

#[tokio::test]
async fn a_stream_of_the_old_generation_goes_on_and_stays_counted() {
    let engine = faulty("E1", slow()).await;
    let mut proxy = Proxy::start(plain(&[&engine])).await;
    let first = begun(&proxy).await;
    for round in 0..3 {
        proxy.write_config(&json!({"response_headers": round % 2 == 0}));
        hang_up(&proxy).await;
        assert_eq!(inflight(&proxy, &engine).await, 1.0, "kept over the reload");
    }
    let second = begun(&proxy).await;
    assert_eq!(inflight(&proxy, &engine).await, 2.0, "old and new together");
    assert_whole(first).await;
    assert_whole(second).await;
    assert_eq!(generation(&proxy).await, 4.0);
    proxy.finish().await;
}

#[tokio::test]
async fn a_running_request_keeps_the_limits_it_began_with() {
    let engine = faulty("E1", slow()).await;
    let mut proxy = Proxy::start(plain(&[&engine])).await;
    let old = begun(&proxy).await;
    proxy.write_config(&json!({"timeouts": {"lifetime": "600ms"}}));
    hang_up(&proxy).await;
    let answer = proxy.chat(&stream("x")).await;
    assert_eq!(
        (answer.status, answer.end),
        (200, End::Cut),
        "the new limit"
    );
    assert_whole(old).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_cap_holds_over_a_reload() {
    let engine = faulty(
        "E1",
        Faults {
            stall_before_headers: true,
            ..Faults::default()
        },
    )
    .await;
    let capped = json!([{"id": "b", "groups": {"plain": {"policy": {
        "type": "random", "admission": {"max_inflight_requests": 1}}}}}]);
    let mut settings = plain(&[&engine]);
    settings["models"][0]["buckets"] = capped;
    let mut proxy = Proxy::start(settings).await;
    let mut holder = proxy.client().await;
    holder.send(&body::with_length(&small(), "")).await;
    crate::support::fleet::seen(&engine, 1).await;
    proxy.write_config(&json!({"response_headers": true}));
    hang_up(&proxy).await;
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_refusal(503, "policy_selection_failed");
    drop(holder);
    proxy.idle().await;
    proxy.finish().await;
}

#[tokio::test]
async fn an_open_breaker_stays_open() {
    let (ill, well) = (
        faulty(
            "E1",
            Faults {
                status: Some(500),
                ..Faults::default()
            },
        )
        .await,
        engine("E2").await,
    );
    let mut proxy = Proxy::start(plain(&[&ill])).await;
    for _ in 0..3 {
        proxy.chat(&chat("x")).await.assert_engine(500);
    }
    proxy.idle().await;
    proxy.write_config(&plain(&[&ill, &well]));
    hang_up(&proxy).await;
    for _ in 0..10 {
        proxy.chat(&chat("x")).await.assert_engine(200);
    }
    assert_eq!(ill.stats().requests, 3, "it was open and is open");
    proxy.finish().await;
}

#[tokio::test]
async fn models_come_and_go() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let mut proxy = Proxy::start(plain(&[&first])).await;
    let other = |id: &str, engine: &Engine| -> Value {
        json!({"models": [{"id": id, "engines": {"static": [
            {"id": engine.name(), "url": engine.url(), "role": "plain"}]}}]})
    };
    proxy.write_config(&other("n", &second));
    hang_up(&proxy).await;
    let answer = proxy.chat(&chat("x")).await;
    answer.assert_refusal(404, "model_not_found");
    let body = body::with(chat("x"), json!({"model": "n"}));
    proxy.chat(&body).await.assert_engine(200);
    let models = proxy.client().await.call("GET", "/v1/models").await;
    assert_eq!(models.json()["data"][0]["id"], "n");
    proxy.finish().await;
}

#[tokio::test]
async fn keys_and_limits_are_reloaded() {
    let engine = engine("E1").await;
    let mut proxy = Proxy::start(plain(&[&engine])).await;
    let keys = proxy.directory.join("keys");
    std::fs::write(&keys, "alpha\n").expect("a writable directory");
    let more = json!({"auth": {"api_keys_file": keys}, "limits": {"max_body": "100"}});
    proxy.write_config(&and(json!({}), more));
    let mut open = proxy.client().await;
    open.chat(&small()).await.assert_engine(200);
    hang_up(&proxy).await;
    // Also on a connection that is older than the key.
    open.chat(&small())
        .await
        .assert_refusal(401, "unauthorized");
    let mut client = proxy.client().await;
    let key = "authorization: Bearer alpha\r\n";
    client.chat_with(&small(), key).await.assert_engine(200);
    let answer = client.chat_with(&body::sized(101), key).await;
    answer.assert_refusal(413, "payload_too_large");
    eventually("idle", async || {
        proxy.gauges().await.sum("buffered_body_bytes") == 0.0
    })
    .await;
    proxy.finish().await;
}
