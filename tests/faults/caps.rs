//! The caps of the whole router and its keys: connections, requests in flight to their last byte,
//! who may call what.

mod engine_key;
mod keys;

use serde_json::json;
use sgl_edge::mock::Faults;

use crate::support::body::{small, stream, with_length};
use crate::support::child::Proxy;
use crate::support::client::{Client, End};
use crate::support::fleet::{and, engine, faulty, plain, quiet};
use crate::support::{SOON, eventually, pause};

/// A connection that is counted: it has had an answer and is kept.
async fn counted(proxy: &Proxy) -> Client {
    let mut client = proxy.client().await;
    assert_eq!(client.call("GET", "/healthz").await.status, 200);
    client
}

/// The answer of a connection beyond the cap, which closes.
async fn refused(client: &mut Client) {
    let answer = client.try_answer().await.expect("a refusal");
    assert_eq!((answer.status, answer.end), (503, End::Clean));
    assert_eq!(answer.header("x-router-error-code"), Some("overloaded"));
    let wait = answer.header("retry-after").expect("a hint");
    assert!(wait.parse::<u64>().is_ok_and(|seconds| seconds > 0));
    assert!(answer.says_close());
    assert_eq!(answer.json()["error"]["code"], "overloaded");
    assert!(client.is_closed().await);
}

async fn connections(proxy: &Proxy, count: f64) {
    eventually("the connections are counted", async || {
        proxy.gauges().await.sum("client_connections") == count
    })
    .await;
}

#[tokio::test]
async fn connections_beyond_the_cap_are_told_and_closed() {
    let engine = engine("E1").await;
    let limits = json!({"limits": {"max_connections": 3}});
    let mut proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    // The connections of the start have ended.
    connections(&proxy, 0.0).await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(counted(&proxy).await);
    }
    connections(&proxy, 3.0).await;
    for _ in 0..5 {
        refused(&mut proxy.client().await).await;
    }
    // Also what begins as HTTP/2, and also beside the admin listener, which has no cap.
    let mut client = proxy.client().await;
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    refused(&mut client).await;
    assert_eq!(proxy.admin("GET", "/healthz").await.status, 200);
    // The three go on working.
    for client in &mut kept {
        client.chat(&small()).await.assert_engine(200);
    }
    assert_eq!(engine.stats().requests, 3);
    // One leaves, one may come; it leaves in the middle of a stream.
    engine.faults().set(Faults {
        tokens: Some(10_000),
        interval_ms: Some(50),
        ..Faults::default()
    });
    let mut leaving = kept.pop().expect("three");
    let request = with_length(stream("x").to_string().as_bytes(), "");
    leaving.send(&request).await;
    leaving.head(SOON).await.expect("a stream");
    drop(leaving);
    connections(&proxy, 2.0).await;
    quiet(&engine).await;
    kept.push(counted(&proxy).await);
    refused(&mut proxy.client().await).await;
    // A reload changes the cap for the next connection, and closes none.
    proxy.write_config(&json!({"limits": {"max_connections": 4}}));
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    kept.push(counted(&proxy).await);
    refused(&mut proxy.client().await).await;
    drop(kept);
    engine.faults().clear();
    connections(&proxy, 0.0).await;
    proxy.finish().await;
}

/// The refusal must survive a request that is already on its way: closing a socket with unread
/// bytes resets it, and the reset overtakes what was written.
#[tokio::test]
async fn a_refused_connection_hears_so_even_if_it_has_sent_its_request() {
    let engine = engine("E1").await;
    let limits = json!({"limits": {"max_connections": 1}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    connections(&proxy, 0.0).await;
    let _kept = counted(&proxy).await;
    let request = with_length(&small(), "");
    let mut deaf = 0;
    for _ in 0..30 {
        let mut client = proxy.client().await;
        // Refused, so that it may be too late.
        let _ = client.try_send(&request).await;
        pause(20).await;
        match client.try_answer().await {
            Some(answer) => assert_eq!(answer.status, 503),
            None => deaf += 1,
        }
    }
    assert_eq!(deaf, 0, "of 30 saw a reset instead of 503 with Retry-After");
    assert_eq!(engine.stats().requests, 0);
}

fn slow() -> Faults {
    Faults {
        tokens: Some(10_000),
        interval_ms: Some(50),
        ..Faults::default()
    }
}

/// A stream whose head has come.
async fn begun(proxy: &Proxy) -> Client {
    let mut client = proxy.client().await;
    let request = with_length(stream("x").to_string().as_bytes(), "");
    client.send(&request).await;
    assert_eq!(client.head(SOON).await.expect("a stream").status, 200);
    client
}

#[tokio::test]
async fn requests_in_flight_count_to_their_last_byte() {
    let engine = faulty("E1", slow()).await;
    let limits = json!({"limits": {"max_inflight_requests": 2}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    for _ in 0..3 {
        let (first, second) = (begun(&proxy).await, begun(&proxy).await);
        for _ in 0..5 {
            let answer = proxy.chat_bytes(&small()).await;
            answer.assert_refusal(503, "overloaded");
            pause(50).await;
        }
        drop(first);
        // The place of one that left is free at once.
        let mut third = None;
        eventually("the place is free", async || {
            let gauges = proxy.gauges().await;
            gauges.sum("inflight_requests") == 1.0
        })
        .await;
        third.replace(begun(&proxy).await);
        let answer = proxy.chat_bytes(&small()).await;
        answer.assert_refusal(503, "overloaded");
        drop((second, third));
        proxy.idle().await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn after_many_cancelled_requests_the_cap_is_what_it_was() {
    let engine = faulty("E1", slow()).await;
    let limits = json!({"limits": {"max_inflight_requests": 2}});
    let proxy = Proxy::start(and(plain(&[&engine]), limits)).await;
    let request = with_length(stream("x").to_string().as_bytes(), "");
    for nth in 0..300 {
        let mut client = proxy.client().await;
        client.send(&request).await;
        if nth % 3 == 0 {
            pause(3).await;
        }
        if nth % 2 == 0 {
            // An option of every socket.
            let _ = client.socket.set_zero_linger();
        }
    }
    proxy.idle().await;
    let both = (begun(&proxy).await, begun(&proxy).await);
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_refusal(503, "overloaded");
    drop(both);
    quiet(&engine).await;
    engine.faults().clear();
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}
