//! Streams leave chunk by chunk, never look whole when they are not, and end with their client.

mod leaving;

use serde_json::json;
use sgl_edge::mock::Faults;

use crate::support::body::{self, chat, small, stream};
use crate::support::child::Proxy;
use crate::support::client::{Client, End};
use crate::support::fleet::{and, engine, faulty, plain, quiet, seen};
use crate::support::h2c::H2Client;
use crate::support::raw_engine::{self, Step, say};
use crate::support::{SOON, eventually, pause, within};

/// Reads chunks until one of them holds `needle`.
async fn read_until(client: &mut Client, needle: &str) -> String {
    let mut text = String::new();
    while !text.contains(needle) {
        let chunk = client.chunk().await.expect("the stream goes on");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

#[tokio::test]
async fn a_chunk_arrives_before_the_next_is_made() {
    let faults = Faults {
        tokens: Some(3),
        interval_ms: Some(2_000),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    let request = stream("one").to_string();
    client
        .send(&body::with_length(request.as_bytes(), ""))
        .await;
    let head = client.head(SOON).await.expect("a head");
    assert_eq!(head.status, 200);
    assert_eq!(head.header("transfer-encoding"), Some("chunked"));
    let kind = head.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    for token in 1..=2 {
        read_until(&mut client, "one").await;
        assert_eq!(engine.stats().tokens_out, token, "token {token} came late");
    }
    drop(client);
    proxy.finish().await;
}

#[tokio::test]
async fn over_http2_a_chunk_arrives_before_the_next_is_made() {
    let faults = Faults {
        tokens: Some(2),
        interval_ms: Some(2_000),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = H2Client::connect(proxy.data).await;
    let request = stream("one").to_string();
    let mut exchange = client.begin(Some(request.len()), false).await;
    exchange.send(request.as_bytes()).await;
    let response = within(SOON, "a head", exchange.response)
        .await
        .expect("one");
    let mut stream = response.into_body();
    let mut text = String::new();
    while !text.contains("one") {
        let piece = within(SOON, "data", stream.data()).await;
        text.push_str(&String::from_utf8_lossy(
            &piece.expect("more").expect("data"),
        ));
    }
    assert_eq!(engine.stats().tokens_out, 1);
    drop((stream, client));
    quiet(&engine).await;
    proxy.finish().await;
}

#[tokio::test]
async fn the_head_waits_for_the_engines() {
    let faults = Faults {
        ttft_ms: Some(2_500),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    for request in [stream("x"), chat("x")] {
        let mut client = proxy.client().await;
        let bytes = body::with_length(request.to_string().as_bytes(), "");
        let before = engine.stats().requests;
        client.send(&bytes).await;
        seen(&engine, before + 1).await;
        assert!(client.is_silent(500).await, "an answer before the engine's");
        client.answer().await.assert_engine(200);
    }
    proxy.finish().await;
}

#[tokio::test]
async fn bytes_and_borders_stay_as_the_engine_sent_them() {
    let pieces = [
        "data: {\"a\":1}\n\ndata: {\"b",
        "\":2}\n\n",
        ": a comment\n\n",
        "event: odd\r\ndata: \u{e9}\u{1f600}\r\n\r\n",
        "data: [DONE]\n\n",
        "after the end",
    ];
    let mut script = vec![say(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )];
    for piece in pieces {
        script.push(say(&format!("{:x}\r\n{piece}\r\n", piece.len())));
        script.push(Step::Wait(60));
    }
    script.extend([say("0\r\n\r\n"), Step::Again]);
    let engine = raw_engine::start(script).await;
    let proxy = Proxy::start(engine.settings()).await;
    let mut client = proxy.client().await;
    for _ in 0..2 {
        let answer = client.chat(stream("x").to_string().as_bytes()).await;
        answer.assert_engine(200);
        assert_eq!(answer.text(), pieces.concat());
        client.assert_kept(&answer).await;
    }
    let mut h2 = H2Client::connect(proxy.data).await;
    let answer = h2.chat(stream("x").to_string().as_bytes(), true).await;
    assert_eq!(answer.text(), pieces.concat());
    proxy.finish().await;
}

#[tokio::test]
async fn a_cut_stream_does_not_look_whole() {
    let engine = engine("E1").await;
    let settings = and(plain(&[&engine]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    for faults in [
        Faults {
            cut_after_tokens: Some(3),
            tokens: Some(9),
            ..Faults::default()
        },
        Faults {
            reset_after_tokens: Some(3),
            tokens: Some(9),
            ..Faults::default()
        },
    ] {
        engine.faults().set(faults.clone());
        let mut client = proxy.client().await;
        let answer = client.chat(stream("one").to_string().as_bytes()).await;
        assert_eq!((answer.status, answer.end), (200, End::Cut), "{faults:?}");
        assert!(!answer.text().contains("[DONE]"));
        assert!(client.is_closed().await);
        let mut h2 = H2Client::connect(proxy.data).await;
        let answer = h2.chat(stream("one").to_string().as_bytes(), true).await;
        assert_eq!((answer.status, answer.end), (200, End::Cut), "{faults:?}");
        // Only that stream: the connection goes on.
        engine.faults().clear();
        h2.chat(&small(), true).await.assert_engine(200);
    }
    let gauges = proxy.gauges().await;
    let cut = [("outcome", "upstream_error")];
    assert_eq!(gauges.sum_of("stream_outcome_total", &cut), 4.0);
    let blamed = [("outcome", "error")];
    assert_eq!(gauges.sum_of("worker_requests_total", &blamed), 4.0);
    proxy.finish().await;
}

#[tokio::test]
async fn an_error_event_passes_and_is_counted() {
    let faults = Faults {
        error_event_after_tokens: Some(1),
        tokens: Some(5),
        ..Faults::default()
    };
    let engine = faulty("E1", faults).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let answer = proxy.chat(&stream("x")).await;
    answer.assert_engine(200);
    assert!(answer.text().contains("data: {\"error\":"));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    let seen = [("outcome", "stream_error_event")];
    assert_eq!(gauges.sum_of("stream_outcome_total", &seen), 1.0);
    proxy.finish().await;
}

#[tokio::test]
async fn a_long_stream_of_large_events_arrives_whole() {
    let engine = faulty(
        "E1",
        Faults {
            big_reply_bytes: 8 << 20,
            tokens: Some(2_000),
            ..Faults::default()
        },
    )
    .await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    for request in [stream("one"), chat("one")] {
        let answer = client.chat(request.to_string().as_bytes()).await;
        answer.assert_engine(200);
        assert!(answer.body.len() > 8 << 20);
        assert_eq!(answer.text().matches(" one").count(), 1_999);
        client.assert_kept(&answer).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let engine = faulty(
        "E1",
        Faults {
            big_reply_bytes: 64 << 20,
            ..Faults::default()
        },
    )
    .await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_write": "1s"}}),
    );
    let proxy = Proxy::start(settings).await;
    let mut client = proxy.client().await;
    let request = stream("x").to_string();
    client
        .send(&body::with_length(request.as_bytes(), ""))
        .await;
    seen(&engine, 1).await;
    pause(500).await;
    quiet(&engine).await;
    proxy.idle().await;
    assert_eq!(engine.stats().aborted, 1);
    eventually("the client is not the engine's fault", async || {
        let gauges = proxy.gauges().await;
        gauges.sum_of("worker_requests_total", &[("outcome", "cancelled")]) == 1.0
    })
    .await;
    drop(client);
    proxy.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_the_engines_silence() {
    // While the client's buffers are full nothing is read from the engine.
    let engine = faulty(
        "E1",
        Faults {
            big_reply_bytes: 64 << 20,
            ..Faults::default()
        },
    )
    .await;
    let more = json!({
        "timeouts": {"stream_idle": "1s", "client_write": "4s"},
        "circuit_breaker": {"failures": 1, "cool_down": "30s"},
    });
    let proxy = Proxy::start(and(plain(&[&engine]), more)).await;
    let mut client = proxy.client().await;
    let request = stream("x").to_string();
    client
        .send(&body::with_length(request.as_bytes(), ""))
        .await;
    seen(&engine, 1).await;
    quiet(&engine).await;
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum("worker_cb_state"),
        0.0,
        "a client that does not read opened the breaker"
    );
    drop(client);
    proxy.finish().await;
}
