//! Decided by the caps of the whole router: requests in flight, bytes of bodies held.

use serde_json::json;
use sgl_edge::mock::Faults;

use crate::support::body::{self, MAX_BODY, chunks, head, sized, small};
use crate::support::child::Proxy;
use crate::support::client::Client;
use crate::support::fleet::{and, engine, faulty, plain, seen};
use crate::support::h2c::H2Client;

fn stalled() -> Faults {
    Faults {
        stall_before_headers: true,
        ..Faults::default()
    }
}

async fn send(proxy: &Proxy, request: &[u8]) -> Client {
    let mut client = proxy.client().await;
    client.send(request).await;
    client
}

#[tokio::test]
async fn beyond_the_requests_in_flight_it_is_overloaded() {
    let engine = faulty("E1", stalled()).await;
    let settings = and(
        plain(&[&engine]),
        json!({"limits": {"max_inflight_requests": 2}}),
    );
    let proxy = Proxy::start(settings).await;
    let first = send(&proxy, &body::with_length(&small(), "")).await;
    // A request counts from its head on, long before it is dispatched.
    let slow = send(&proxy, head("content-length: 100\r\n\r\n").as_bytes()).await;
    seen(&engine, 1).await;
    crate::support::eventually("both are counted", async || {
        proxy.gauges().await.sum("inflight_requests") == 2.0
    })
    .await;
    let mut client = proxy.client().await;
    let answer = client.chat(&small()).await;
    answer.assert_refusal(503, "overloaded");
    client.assert_honest(&answer).await;
    let mut h2 = H2Client::connect(proxy.data).await;
    h2.chat(&small(), true)
        .await
        .assert_refusal(503, "overloaded");
    // Probes and the list of models are not chats.
    for path in ["/healthz", "/readyz", "/v1/models"] {
        assert_eq!(proxy.client().await.call("GET", path).await.status, 200);
    }
    assert_eq!(engine.stats().requests, 1);
    drop((first, slow));
    proxy.idle().await;
    engine.faults().clear();
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn beyond_the_bytes_held_it_is_overloaded() {
    let engine = faulty("E1", stalled()).await;
    let limits = json!({"limits": {"max_body": "1MiB", "max_buffered_body": "1MiB"}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    let large = sized(700_000);
    let holder = send(&proxy, &body::with_length(&large, "")).await;
    seen(&engine, 1).await;
    for request in [
        body::with_length(&large, ""),
        body::chunked(&large, 65_536, ""),
    ] {
        let mut client = proxy.client().await;
        // Refused before it has been read.
        let _ = client.try_send(&request).await;
        let answer = client.answer().await;
        answer.assert_refusal(503, "overloaded");
    }
    let mut h2 = H2Client::connect(proxy.data).await;
    h2.chat(&large, true)
        .await
        .assert_refusal(503, "overloaded");
    let little = small();
    let h2_small = h2.chat(&little, false);
    // What fits is taken (and held by the engine, so nobody waits for its answer).
    let short = std::time::Duration::from_millis(200);
    assert!(tokio::time::timeout(short, h2_small).await.is_err());
    seen(&engine, 2).await;
    drop((holder, h2));
    engine.faults().clear();
    proxy.idle().await;
    proxy.chat_bytes(&large).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn a_stream_holds_no_more_of_its_prompt_than_pingora_does() {
    let stalled = Faults {
        stall_after_tokens: Some(1),
        ..Faults::default()
    };
    let engine = faulty("E1", stalled).await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut large = sized(700_000);
    let at = large.len() - 1;
    large.splice(at..at, br#","stream":true"#.iter().copied());
    let streams = [
        send(&proxy, &body::with_length(&large, "")).await,
        send(&proxy, &body::chunked(&large, 65_536, "")).await,
    ];
    crate::support::eventually("the prompts are let go", async || {
        let gauges = proxy.gauges().await;
        gauges.sum("inflight_requests") == 2.0
            && gauges.sum("buffered_body_bytes") == 2.0 * 65_536.0
    })
    .await;
    drop(streams);
    proxy.finish().await;
}

#[tokio::test]
async fn bytes_of_http2_bodies_without_a_length_are_counted_too() {
    let engine = faulty("E1", stalled()).await;
    let limits = json!({"limits": {"max_body": "100KiB", "max_buffered_body": "100KiB"}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    let mut h2 = H2Client::connect(proxy.data).await;
    let mut first = h2.begin(None, false).await;
    first.send(&sized(60_000)).await;
    seen(&engine, 1).await;
    assert_eq!(proxy.gauges().await.sum("buffered_body_bytes"), 60_000.0);
    let mut second = h2.begin(None, false).await;
    second.send(&sized(60_000)).await;
    second.answer().await.assert_refusal(503, "overloaded");
    drop(first);
    engine.faults().clear();
    proxy.finish().await;
}

#[tokio::test]
async fn a_smaller_limit_of_the_body_holds_for_every_framing() {
    let engine = engine("E1").await;
    let limits = json!({"limits": {"max_body": "1000"}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    let (fits, over) = (sized(1000), sized(1001));
    for (body, status) in [(&fits, 200), (&over, 413)] {
        for request in [body::with_length(body, ""), body::chunked(body, 300, "")] {
            let mut client = send(&proxy, &request).await;
            let answer = client.answer().await;
            assert_eq!(answer.status, status);
            client.assert_honest(&answer).await;
        }
        let mut h2 = H2Client::connect(proxy.data).await;
        for with_length in [true, false] {
            assert_eq!(h2.chat(body, with_length).await.status, status);
        }
    }
    // Blanks after the JSON are part of the body, also those that come in a chunk of their own.
    let start = head("transfer-encoding: chunked\r\n\r\n");
    let blanks = vec![b' '; 5_000];
    let coded = [
        chunks(&fits, 5_000),
        chunks(&blanks, 5_000),
        b"0\r\n\r\n".to_vec(),
    ]
    .concat();
    let mut client = send(&proxy, &[start.as_bytes(), &coded].concat()).await;
    let answer = client.answer().await;
    assert!(matches!(answer.status, 413 | 200), "{}", answer.status);
    client.assert_honest(&answer).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_refused_upload_is_not_read_without_end() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    let start = head("content-length: 100000000000\r\n\r\n");
    client.send(start.as_bytes()).await;
    client
        .answer()
        .await
        .assert_refusal(413, "payload_too_large");
    let megabyte = vec![b'x'; 1 << 20];
    let mut taken = 0;
    while taken < 512 && client.try_send(&megabyte).await.is_ok() {
        taken += 1;
    }
    assert!(taken < 512, "512 MiB were read after the refusal");
    assert!(
        taken << 20 <= 4 * MAX_BODY,
        "{taken} MiB were read after the refusal"
    );
    proxy.finish().await;
}
