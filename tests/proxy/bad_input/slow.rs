//! Clients that take their time, or fall silent, at every point of a request.

use serde_json::json;

use crate::support::body::{chunks, head, sized, small};
use crate::support::child::Proxy;
use crate::support::fleet::{and, engine, plain, quiet};
use crate::support::h2c::H2Client;
use crate::support::{SOON, pause, within};

#[tokio::test]
async fn a_head_that_does_not_end_is_let_go() {
    let engine = engine("E1").await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_header": "1s"}}),
    );
    let proxy = Proxy::start(settings).await;
    let mut half = proxy.client().await;
    half.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nx-h")
        .await;
    let mut dripping = proxy.client().await;
    let drip = async {
        let head = "GET /healthz HTTP/1.1\r\nhost: a-very-long-name";
        for byte in head.bytes().cycle() {
            if dripping.try_send(&[byte]).await.is_err() {
                break;
            }
            pause(40).await;
        }
    };
    within(SOON, "the dripping one is let go", drip).await;
    assert!(half.is_closed().await);
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn a_head_that_does_not_begin_is_let_go() {
    // Shorter than the preface of HTTP/2, which is looked for first.
    let engine = engine("E1").await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_header": "1s"}}),
    );
    let proxy = Proxy::start(settings).await;
    for start in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"GET / HTTP/1.1\r\n",
    ] {
        let mut client = proxy.client().await;
        client.send(start).await;
        let closed = client.is_closed().await;
        let shown = String::from_utf8_lossy(start);
        assert!(closed, "a connection that sent {shown:?} is kept");
    }
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn the_time_for_a_head_is_no_limit_for_anything_else() {
    let engine = engine("E1").await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_header": "500ms"}}),
    );
    let proxy = Proxy::start(settings).await;
    engine
        .faults()
        .update(|faults| faults.ttft_ms = Some(1_200));
    let mut client = proxy.client().await;
    client.chat(&small()).await.assert_engine(200);
    engine.faults().clear();
    // Idle between two requests, and a body in slow pieces.
    pause(1_200).await;
    client.chat(&small()).await.assert_engine(200);
    let body = small();
    client
        .send(head(&format!("content-length: {}\r\n\r\n", body.len())).as_bytes())
        .await;
    for piece in body.chunks(10) {
        client.send(piece).await;
        pause(200).await;
    }
    client.answer().await.assert_engine(200);
    let mut h2 = H2Client::connect(proxy.data).await;
    h2.chat(&body, true).await.assert_engine(200);
    pause(1_200).await;
    h2.chat(&body, true).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn silence_inside_a_body_is_408() {
    let engine = engine("E1").await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_body_idle": "700ms"}}),
    );
    let proxy = Proxy::start(settings).await;
    let long = sized(100_000);
    for request in [
        head("content-length: 100\r\n\r\n").into_bytes(),
        [
            head("content-length: 100000\r\n\r\n").as_bytes(),
            &long[..90_000],
        ]
        .concat(),
        [
            head("content-length: 100000\r\n\r\n").as_bytes(),
            &long[..10],
        ]
        .concat(),
        head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
        [
            head("transfer-encoding: chunked\r\n\r\n").as_bytes(),
            b"ff\r\n{\"mo",
        ]
        .concat(),
        [
            head("transfer-encoding: chunked\r\n\r\n").as_bytes(),
            b"5\r\n{\"mod\r\n",
        ]
        .concat(),
    ] {
        let mut client = proxy.client().await;
        client.send(&request).await;
        let answer = client.answer().await;
        answer.assert_refusal(408, "request_timeout");
        client.assert_honest(&answer).await;
    }
    let mut h2 = H2Client::connect(proxy.data).await;
    for length in [Some(100), None] {
        let mut exchange = h2.begin(length, false).await;
        exchange
            .upload
            .send_data("{\"mod".into(), false)
            .expect("data");
        exchange
            .answer()
            .await
            .assert_refusal(408, "request_timeout");
    }
    h2.chat(&small(), true).await.assert_engine(200);
    assert_eq!(engine.stats().requests, 1);
    proxy.finish().await;
}

#[tokio::test]
async fn a_missing_last_chunk_is_408_and_not_the_engines_fault() {
    let engine = engine("E1").await;
    let more = json!({
        "timeouts": {"client_body_idle": "700ms"},
        "circuit_breaker": {"failures": 1, "cool_down": "30s"},
    });
    let proxy = Proxy::start(and(plain(&[&engine]), more)).await;
    for size in [200, 70_000] {
        let mut client = proxy.client().await;
        client
            .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
            .await;
        client.send(&chunks(&sized(size), 65_537)).await;
        let answer = client.answer().await;
        answer.assert_refusal(408, "request_timeout");
        client.assert_honest(&answer).await;
    }
    quiet(&engine).await;
    assert_eq!(engine.stats().completed, 0);
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn an_end_that_drips_in_does_not_use_up_the_engines_time() {
    // The JSON is whole and the engine connected, but the engine gets the body only with the last
    // chunk: until then it is the client that is waited for.
    let engine = engine("E1").await;
    let more = json!({
        "timeouts": {"client_body_idle": "5s", "first_byte": "1s"},
        "circuit_breaker": {"failures": 1, "cool_down": "30s"},
    });
    let proxy = Proxy::start(and(plain(&[&engine]), more)).await;
    let mut client = proxy.client().await;
    client
        .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
        .await;
    client.send(&chunks(&small(), 999)).await;
    for _ in 0..8 {
        pause(250).await;
        let _ = client.try_send(b"1\r\n \r\n").await;
    }
    let _ = client.try_send(b"0\r\n\r\n").await;
    let answer = client.try_answer().await.expect("an answer");
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum("worker_cb_state"),
        0.0,
        "a client opened the breaker; it got {} {}",
        answer.status,
        answer.text()
    );
    assert!(matches!(answer.status, 200 | 408), "{}", answer.text());
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn the_time_of_the_upload_is_not_the_engines() {
    // A client that uses up `request` with its upload leaves the engine no time to answer.
    let engine = engine("E1").await;
    engine
        .faults()
        .update(|faults| faults.ttft_ms = Some(2_000));
    let more = json!({
        "timeouts": {"request": "4s"},
        "circuit_breaker": {"failures": 1, "cool_down": "30s"},
    });
    let proxy = Proxy::start(and(plain(&[&engine]), more)).await;
    let body = sized(3_200);
    let mut client = proxy.client().await;
    client
        .send(head("content-length: 3200\r\n\r\n").as_bytes())
        .await;
    for piece in body.chunks(100) {
        client.send(piece).await;
        pause(100).await;
    }
    let answer = client.answer().await;
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum("worker_cb_state"),
        0.0,
        "a slow upload opened the breaker; it got {}",
        answer.text()
    );
    proxy.finish().await;
}

#[tokio::test]
async fn a_dripping_body_ends_with_the_lifetime() {
    let engine = engine("E1").await;
    let settings = and(plain(&[&engine]), json!({"timeouts": {"lifetime": "1s"}}));
    let proxy = Proxy::start(settings).await;
    for framing in [
        "content-length: 5000\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n",
    ] {
        let mut client = proxy.client().await;
        client.send(head(framing).as_bytes()).await;
        let is_chunked = framing.starts_with('t');
        for _ in 0..200 {
            let drip: &[u8] = if is_chunked { b"1\r\n \r\n" } else { b" " };
            if client.try_send(drip).await.is_err() || !client.is_silent(100).await {
                break;
            }
        }
        let answer = client.answer().await;
        assert!(matches!(answer.status, 408 | 504), "{}", answer.text());
    }
    assert_eq!(engine.stats().requests, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn hundreds_of_connections_that_say_nothing_do_no_harm() {
    let engine = engine("E1").await;
    let settings = and(
        plain(&[&engine]),
        json!({"timeouts": {"client_header": "2s"}}),
    );
    let proxy = Proxy::start(settings).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(proxy.client().await);
    }
    for _ in 0..20 {
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    drop(idle);
    proxy.finish().await;
}
