//! Decided by the clock: silence before headers, a stalled answer, a lifetime.

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, Faults};

use crate::support::body::{chat, stream};
use crate::support::child::Proxy;
use crate::support::client::End;
use crate::support::fleet::{and, engine, faulty, plain, quiet};
use crate::support::h2c::H2Client;
use crate::support::raw_engine::{self, Step, say};

async fn with_timeouts(engine: &Engine, timeouts: Value) -> Proxy {
    let more = json!({"timeouts": timeouts, "circuit_breaker": null});
    Proxy::start(and(plain(&[engine]), more)).await
}

fn stalled() -> Faults {
    Faults {
        stall_before_headers: true,
        ..Faults::default()
    }
}

async fn refused(proxy: &Proxy, body: &Value, code: &str) {
    let mut client = proxy.client().await;
    let answer = client.chat(body.to_string().as_bytes()).await;
    answer.assert_refusal(504, code);
    client.assert_honest(&answer).await;
}

#[tokio::test]
async fn silence_before_headers_is_504() {
    let engine = faulty("E1", stalled()).await;
    let proxy = with_timeouts(&engine, json!({"first_byte": "700ms"})).await;
    for body in [chat("x"), stream("x")] {
        refused(&proxy, &body, "upstream_timeout").await;
    }
    let mut client = H2Client::connect(proxy.data).await;
    let answer = client.chat(chat("x").to_string().as_bytes(), true).await;
    answer.assert_refusal(504, "upstream_timeout");
    quiet(&engine).await;
    assert_eq!(engine.stats().aborted, 3, "the engine is let go");
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        3.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn a_whole_answer_takes_at_most_the_request_time() {
    let engine = faulty("E1", stalled()).await;
    let proxy = with_timeouts(&engine, json!({"request": "700ms"})).await;
    refused(&proxy, &chat("x"), "upstream_timeout").await;
    quiet(&engine).await;
    // A stream has its own limits.
    engine.faults().set(Faults {
        ttft_ms: Some(1_500),
        ..Faults::default()
    });
    proxy.chat(&stream("x")).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn an_answer_that_stalls_after_its_head_is_cut() {
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        let engine = raw_engine::start(vec![
            say(&format!(
                "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nhello\r\n"
            )),
            Step::Hold,
        ])
        .await;
        let timeouts = json!({"timeouts": {"request": "700ms"}});
        let proxy = Proxy::start(and(engine.settings(), timeouts)).await;
        let mut client = proxy.client().await;
        let answer = client.chat(chat("x").to_string().as_bytes()).await;
        if answer.status != 504 {
            assert_eq!((answer.status, answer.end), (200, End::Cut), "{framing}");
            assert!(client.is_closed().await);
        }
        proxy.finish().await;
    }
}

#[tokio::test]
async fn nothing_lives_longer_than_the_lifetime() {
    let engine = faulty("E1", stalled()).await;
    let proxy = with_timeouts(&engine, json!({"lifetime": "700ms"})).await;
    for body in [chat("x"), stream("x")] {
        refused(&proxy, &body, "stale_request_expired").await;
    }
    quiet(&engine).await;
    // Also not a stream that never falls silent; it breaks off.
    engine.faults().set(Faults {
        tokens: Some(10_000),
        interval_ms: Some(100),
        ..Faults::default()
    });
    let answer = proxy.chat(&stream("x")).await;
    assert_eq!((answer.status, answer.end), (200, End::Cut));
    assert!(!answer.text().contains("[DONE]"));
    quiet(&engine).await;
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("stale_requests_total", &[("outcome", "expired")]),
        3.0
    );
    assert_eq!(
        gauges.sum_of("stream_outcome_total", &[("outcome", "expired")]),
        1.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn a_silent_stream_is_cut_and_does_not_look_whole() {
    let engine = engine("E1").await;
    let proxy = with_timeouts(&engine, json!({"stream_idle": "700ms"})).await;
    engine.faults().set(Faults {
        stall_after_tokens: Some(2),
        tokens: Some(9),
        ..Faults::default()
    });
    let answer = proxy.chat(&stream("x")).await;
    assert_eq!((answer.status, answer.end), (200, End::Cut));
    assert!(answer.text().matches("data: ").count() >= 2);
    assert!(!answer.text().contains("[DONE]"));
    let mut client = H2Client::connect(proxy.data).await;
    let answer = client.chat(stream("x").to_string().as_bytes(), true).await;
    assert_eq!((answer.status, answer.end), (200, End::Cut));
    quiet(&engine).await;
    // A slow stream that goes on is left alone, however long it takes in all.
    engine.faults().set(Faults {
        tokens: Some(8),
        interval_ms: Some(250),
        ..Faults::default()
    });
    proxy.chat(&stream("x")).await.assert_engine(200);
    let gauges = proxy.gauges().await;
    let cut = [("outcome", "upstream_error")];
    assert_eq!(gauges.sum_of("stream_outcome_total", &cut), 2.0);
    proxy.finish().await;
}

#[tokio::test]
async fn an_address_that_swallows_connects_is_502_or_504_in_time() {
    // A listener whose queue is full takes no more connections and refuses none.
    let full = tokio::net::TcpSocket::new_v4().expect("a socket");
    full.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let full = full.listen(1).expect("a listener");
    let address = full.local_addr().expect("an address");
    let mut fillers = Vec::new();
    for _ in 0..4 {
        let connect = tokio::net::TcpStream::connect(address);
        let short = std::time::Duration::from_millis(300);
        fillers.push(tokio::time::timeout(short, connect).await);
    }
    let settings = json!({
        "models": [{"id": "m", "engines": {"static": [
            {"id": "E1", "url": format!("http://{address}"), "role": "plain"}]}}],
        "timeouts": {"connect": "700ms"},
    });
    let proxy = Proxy::start(settings).await;
    let mut client = proxy.client().await;
    let answer = client.chat(chat("x").to_string().as_bytes()).await;
    answer.assert_refusal(502, "upstream_unreachable");
    client.assert_honest(&answer).await;
    proxy.finish().await;
}
