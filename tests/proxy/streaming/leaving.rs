//! The client goes away: the engine's work ends, the guards are released, nobody is blamed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sgl_edge::mock::{Engine, Faults};

use crate::support::body::{self, chat, chunks, head, sized, stream};
use crate::support::child::Proxy;
use crate::support::fleet::{and, engine, faulty, plain, quiet, seen};
use crate::support::h2c::H2Client;
use crate::support::{LARGE, SOON, eventually, pause, within};

fn slow() -> Faults {
    Faults {
        tokens: Some(10_000),
        interval_ms: Some(30),
        ..Faults::default()
    }
}

async fn assert_ended(proxy: &Proxy, engine: &Engine, aborted: u64) {
    eventually("the engine sees it", async || {
        engine.stats().aborted == aborted && engine.stats().inflight == 0
    })
    .await;
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("worker_cb_state"), 0.0, "nobody is blamed");
    let outcomes = |outcome| gauges.sum_of("worker_requests_total", &[("outcome", outcome)]);
    assert_eq!(outcomes("error"), 0.0);
    assert_eq!(outcomes("cancelled"), aborted as f64);
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let engine = faulty("E1", slow()).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    // More often than a breaker forgives.
    for nth in 1..=5 {
        let mut client = proxy.client().await;
        let request = stream("x").to_string();
        client
            .send(&body::with_length(request.as_bytes(), ""))
            .await;
        client.head(SOON).await.expect("a stream");
        client.chunk().await.expect("a chunk");
        drop(client);
        assert_ended(&proxy, &engine, nth).await;
    }
    let gauges = proxy.gauges().await;
    let left = [("outcome", "client_disconnect")];
    assert_eq!(gauges.sum_of("stream_outcome_total", &left), 5.0);
    engine.faults().clear();
    proxy.chat(&chat("x")).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn before_the_head_of_a_stream_or_of_json() {
    let faults = Faults {
        stall_before_headers: true,
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let long = sized(300_000);
    let requests = [
        body::with_length(stream("x").to_string().as_bytes(), ""),
        body::with_length(chat("x").to_string().as_bytes(), ""),
        body::chunked(chat("x").to_string().as_bytes(), 1_000, ""),
        body::chunked(&long, 65_537, ""),
        body::with_length(&long, ""),
    ];
    for (nth, request) in (1..).zip(requests) {
        let mut client = proxy.client().await;
        client.send(&request).await;
        seen(&engine, nth).await;
        drop(client);
        assert_ended(&proxy, &engine, nth).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn during_its_own_upload() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let part = sized(200_000);
    for head in [
        head("content-length: 300000\r\n\r\n"),
        head("transfer-encoding: chunked\r\n\r\n"),
    ] {
        for sent in [0, 10, 70_000] {
            let mut client = proxy.client().await;
            client.send(head.as_bytes()).await;
            let bytes = if head.contains("chunked") {
                chunks(&part, 70_000)
            } else {
                part.clone()
            };
            client.send(&bytes[..sent]).await;
            pause(50).await;
            drop(client);
        }
    }
    // The JSON is whole, the last chunk never comes.
    let mut client = proxy.client().await;
    let whole = chat("x").to_string();
    let request = [
        head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
        chunks(whole.as_bytes(), 999),
    ];
    client.send(&request.concat()).await;
    pause(200).await;
    drop(client);
    quiet(&engine).await;
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("worker_cb_state"), 0.0);
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        0.0
    );
    assert_eq!(engine.stats().completed, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn one_http2_stream_of_several() {
    let engine = faulty("E1", slow()).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = H2Client::connect(proxy.data).await;
    let request = stream("x").to_string();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut exchange = client.begin(Some(request.len()), false).await;
        exchange.send(request.as_bytes()).await;
        let response = within(SOON, "a head", exchange.response)
            .await
            .expect("one");
        open.push(response.into_body());
    }
    drop(open.remove(1));
    eventually("one is left", async || engine.stats().aborted == 1).await;
    for stream in &mut open {
        let piece = within(SOON, "data", stream.data()).await;
        assert!(matches!(piece, Some(Ok(_))), "the others go on");
    }
    drop((open, client));
    assert_ended(&proxy, &engine, 3).await;
    proxy.finish().await;
}

/// What one client does before it leaves.
async fn leave_somewhere(proxy: &Proxy, step: u32, wait: u64, request: Value) {
    let mut client = proxy.client().await;
    let bytes = request.to_string().into_bytes();
    match step {
        0 => {}
        1 => {
            client
                .send(b"POST /v1/chat/completions HTTP/1.1\r\nho")
                .await
        }
        2 => {
            client
                .send(head("content-length: 900\r\n\r\n").as_bytes())
                .await
        }
        3 => {
            let coded = [
                head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
                chunks(&bytes, 40),
            ];
            client.send(&coded.concat()).await;
        }
        4 => client.send(&body::with_length(&bytes, "")).await,
        5 => {
            client.send(&body::with_length(&bytes, "")).await;
            client.head(SOON).await.expect("an answer");
        }
        6 => {
            client.send(&body::chunked(&bytes, 7, "")).await;
            client.head(SOON).await.expect("an answer");
        }
        _ => {
            let answer = client.chat(&bytes).await;
            assert_eq!(answer.status, 200);
        }
    }
    pause(wait).await;
    if wait.is_multiple_of(2) {
        // As a killed client: with a reset.
        let _ = client.socket.set_zero_linger();
    }
}

#[tokio::test]
async fn anywhere_at_random_leaves_every_gauge_at_zero() {
    let faults = Faults {
        tokens: Some(20),
        interval_ms: Some(5),
        ttft_ms: Some(20),
        ..Faults::default()
    };
    let (first, second) = (
        faulty("E1", faults.clone()).await,
        faulty("E2", faults).await,
    );
    let settings = and(plain(&[&first, &second]), json!({"log": {"level": "warn"}}));
    let proxy = Proxy::start(settings).await;
    let mut draw = StdRng::seed_from_u64(20_260_101);
    for _ in 0..5 {
        let work: Vec<_> = (0..60)
            .map(|_| {
                let (step, wait) = (draw.random_range(0..9), draw.random_range(0..60));
                let request = if draw.random() {
                    stream("x")
                } else {
                    chat("x")
                };
                leave_somewhere(&proxy, step, wait, request)
            })
            .collect();
        within(LARGE, "300 clients", futures_util::future::join_all(work)).await;
    }
    for engine in [&first, &second] {
        quiet(engine).await;
        assert_eq!(engine.stats().errors, 0);
    }
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("worker_cb_state"), 0.0);
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        0.0
    );
    proxy.chat(&chat("x")).await.assert_engine(200);
    proxy.finish().await;
}
