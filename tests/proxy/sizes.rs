//! Bodies of every size and framing arrive byte for byte, and the connection serves on.
//!
//! The regression test of the trap that Pingora forwards an early-read body only out of a buffer
//! of 64 KiB (src/proxy/body.rs).

mod borders;
mod refused;

use std::collections::HashSet;

use http::header;
use serde_json::json;
use sgl_edge::mock::{Engine, Framing};

use crate::support::body::{self, MAX_BODY, chunked, sized, small, with_length};
use crate::support::child::Proxy;
use crate::support::client::{Answer, Client};
use crate::support::fleet::{engine, newest, plain};
use crate::support::h2c::H2Client;
use crate::support::{LARGE, within};

/// The sizes of the matrix, bytes, above the two that cannot be a chat.
const SIZES: [usize; 6] = [65_535, 65_536, 65_537, 1 << 20, 5 << 20, MAX_BODY];

async fn pair() -> (Engine, Proxy) {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    (engine, proxy)
}

/// The newest request at the engine is `body`, framed by one right length.
#[track_caller]
fn assert_arrived(engine: &Engine, body: &[u8], what: &str) {
    let request = newest(engine);
    assert!(
        request.body == body,
        "{what}: {} bytes arrived of {}",
        request.body.len(),
        body.len()
    );
    let lengths = request.headers.get_all(header::CONTENT_LENGTH).iter();
    let lengths: Vec<_> = lengths.map(|value| value.to_str().expect("text")).collect();
    assert_eq!(lengths, [body.len().to_string()], "{what}");
    assert_eq!(
        request.framing,
        Framing::ContentLength(body.len() as u64),
        "{what}: no transfer-encoding"
    );
}

/// A small second request on the same connection.
async fn assert_reused(client: &mut Client, engine: &Engine, answer: &Answer, what: &str) {
    answer.assert_engine(200);
    assert!(!answer.says_close(), "{what}");
    client.chat(&small()).await.assert_engine(200);
    assert_arrived(engine, &small(), what);
}

/// Every chat that the engine remembers came over one connection.
fn assert_one_connection(engine: &Engine) {
    let chats = engine.recorded();
    let connections: HashSet<u64> = chats.iter().map(|chat| chat.connection).collect();
    assert_eq!(connections.len(), 1, "the engine's connection too");
}

#[tokio::test]
async fn with_a_length_every_size_arrives() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    for size in SIZES {
        let body = sized(size);
        let answer = client.chat(&body).await;
        assert_arrived(&engine, &body, &format!("{size} with length"));
        assert_reused(&mut client, &engine, &answer, "with length").await;
    }
    assert_one_connection(&engine);
    proxy.finish().await;
}

#[tokio::test]
async fn chunked_every_size_arrives() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    for size in SIZES {
        let body = sized(size);
        client.send(&chunked(&body, 65_537, "")).await;
        let answer = client.answer().await;
        assert_arrived(&engine, &body, &format!("{size} chunked"));
        assert_reused(&mut client, &engine, &answer, "chunked").await;
    }
    assert_one_connection(&engine);
    proxy.finish().await;
}

#[tokio::test]
async fn over_http2_every_size_arrives() {
    let (engine, proxy) = pair().await;
    let mut client = H2Client::connect(proxy.data).await;
    for size in SIZES {
        let body = sized(size);
        let answer = client.chat(&body, true).await;
        answer.assert_engine(200);
        assert_arrived(&engine, &body, &format!("{size} over HTTP/2"));
        client.chat(&small(), true).await.assert_engine(200);
        assert_arrived(&engine, &small(), "second stream");
    }
    proxy.finish().await;
}

#[tokio::test]
async fn twenty_mib_arrive_at_a_mock_engine() {
    let (engine, proxy) = pair().await;
    let body = sized(20 << 20);
    proxy.chat_bytes(&body).await.assert_engine(200);
    assert_arrived(&engine, &body, "20 MiB");
    proxy.finish().await;
}

#[tokio::test]
async fn nothing_and_one_byte_are_refused_and_the_connection_stays() {
    let (engine, proxy) = pair().await;
    for tiny in [&b""[..], b"{", b"7", b" "] {
        for request in [with_length(tiny, ""), chunked(tiny, 1, "")] {
            let mut client = proxy.client().await;
            client.send(&request).await;
            let answer = client.answer().await;
            answer.assert_refusal(400, "bad_request");
            assert!(!answer.says_close(), "{tiny:?}");
            client.chat(&small()).await.assert_engine(200);
        }
        let mut client = H2Client::connect(proxy.data).await;
        for with_length in [true, false] {
            let answer = client.chat(tiny, with_length).await;
            answer.assert_refusal(400, "bad_request");
        }
        client.chat(&small(), true).await.assert_engine(200);
    }
    assert_eq!(engine.stats().requests, 4 * 3, "refused ones stay here");
    proxy.finish().await;
}

#[tokio::test]
async fn http2_streams_do_not_mix_their_bodies() {
    let (engine, proxy) = pair().await;
    let client = H2Client::connect(proxy.data).await;
    let sizes = (0..12).map(|i| 60_000 + i * 3_001);
    let work = sizes.map(|size| {
        let mut client = client.clone();
        async move {
            let body = sized(size);
            client.chat(&body, true).await.assert_engine(200);
        }
    });
    within(
        LARGE,
        "twelve streams",
        futures_util::future::join_all(work),
    )
    .await;
    let mut arrived: Vec<usize> = engine.recorded().iter().map(|r| r.body.len()).collect();
    arrived.sort_unstable();
    assert_eq!(
        arrived,
        (0..12).map(|i| 60_000 + i * 3_001).collect::<Vec<_>>()
    );
    assert!(
        engine
            .recorded()
            .iter()
            .all(|r| r.body == sized(r.body.len()))
    );
    proxy.finish().await;
}

#[tokio::test]
async fn a_long_prompt_that_is_tokenized_arrives() {
    let engine = engine("E1").await;
    let mut settings = plain(&[&engine]);
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
    settings["models"][0]["tokenizer"] = tokenizer.into();
    // Limits that bytes alone cannot decide, so that every prompt is counted.
    let bucket = |max: u64| json!({"id": max.to_string(), "limits": {"min": 0, "max": max}, "groups": {"plain": {}}});
    settings["models"][0]["buckets"] = json!([bucket(1_000), bucket(100_000), bucket(1_000_000)]);
    let proxy = Proxy::start(settings).await;
    for size in [2_000, 70_000, 600_000] {
        let body = body::sized(size);
        proxy.chat_bytes(&body).await.assert_engine(200);
        assert_arrived(&engine, &body, "tokenized");
    }
    assert_eq!(proxy.gauges().await.sum("tokenize_seconds_count"), 3.0);
    proxy.finish().await;
}
