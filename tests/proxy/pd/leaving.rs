//! The client leaves: decode ends at once, prefill in its own time, nobody is blamed.

use std::time::Duration;

use serde_json::{Value, json};
use sgl_edge::mock::Faults;

use super::{Pair, decode, prefill, settings};
use crate::support::body::{self, chat, stream};
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::{and, quiet, seen};

/// A pair whose prefill gives up a broken meeting after two seconds.
async fn pair(more: Value) -> Pair {
    let prefill = prefill("P1", Duration::from_secs(2)).await;
    let decode = decode("D1").await;
    let proxy = Proxy::start(and(settings(&[&prefill], &[&decode]), more)).await;
    Pair {
        prefill,
        decode,
        proxy,
    }
}

/// Sends a chat, waits until both engines work on it, and leaves.
async fn come_and_go(pair: &Pair, body: &Value, nth: u64) {
    let mut client = pair.proxy.client().await;
    client
        .send(&body::with_length(body.to_string().as_bytes(), ""))
        .await;
    seen(&pair.prefill, nth).await;
    seen(&pair.decode, nth).await;
    drop(client);
    eventually("decode is left", async || {
        pair.decode.stats().aborted == nth
    })
    .await;
}

#[tokio::test]
async fn leaving_during_prefill_ends_decode_and_the_gauges_return() {
    let pair = pair(json!({})).await;
    pair.prefill
        .faults()
        .update(|faults| faults.ttft_ms = Some(1_000));
    come_and_go(&pair, &chat("x"), 1).await;
    come_and_go(&pair, &stream("x"), 2).await;
    quiet(&pair.prefill).await;
    pair.prefill.faults().clear();
    pair.proxy.idle().await;
    pair.proxy.chat(&chat("x")).await.assert_engine(200);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn leaving_during_decode_ends_decode() {
    let pair = pair(json!({})).await;
    pair.decode.faults().set(Faults {
        tokens: Some(1_000),
        interval_ms: Some(50),
        ..Faults::default()
    });
    for nth in 1..=4 {
        let mut client = pair.proxy.client().await;
        let body = stream("x").to_string();
        client.send(&body::with_length(body.as_bytes(), "")).await;
        let head = client.head(crate::support::SOON).await.expect("a stream");
        assert_eq!(head.status, 200);
        client.chunk().await.expect("a first chunk");
        drop(client);
        eventually("decode is left", async || {
            pair.decode.stats().aborted == nth
        })
        .await;
    }
    pair.proxy.idle().await;
    assert_eq!(pair.prefill.stats().completed, 4, "prefill had finished");
    let gauges = pair.proxy.gauges().await;
    assert_eq!(gauges.sum("worker_cb_state"), 0.0);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn clients_that_leave_do_not_open_the_breaker_of_the_prefill_engine() {
    // Decode ends with the client, so the cache is never fetched and prefill reports a failed
    // transfer (engine-wire §3.2: 500). That is the client's doing, three times over.
    let pair = pair(json!({})).await;
    for nth in 1..=3 {
        pair.prefill
            .faults()
            .update(|faults| faults.ttft_ms = Some(500));
        come_and_go(&pair, &chat("x"), nth).await;
        quiet(&pair.prefill).await;
    }
    pair.prefill.faults().clear();
    pair.proxy.idle().await;
    let gauges = pair.proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_cb_state", &[("worker_url", "P1")]),
        0.0,
        "the breaker of the prefill engine is open"
    );
    pair.proxy.chat(&chat("x")).await.assert_engine(200);
    pair.proxy.finish().await;
}
