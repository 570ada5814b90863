//! Asked for permission, or refused for its size.

use http::header;

use super::{assert_arrived, assert_reused, pair};
use crate::support::SOON;
use crate::support::body::{MAX_BODY, chunked, chunks, head, sized, small, with_length};
use crate::support::fleet::newest;
use crate::support::h2c::H2Client;

#[tokio::test]
async fn expect_continue_is_answered_here() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    for size in [300, 70_000, 1 << 20] {
        let body = sized(size);
        let length = format!("content-length: {size}\r\n");
        let framings = [
            (length.as_str(), body.clone()),
            (
                "transfer-encoding: chunked\r\n",
                [&chunks(&body, 65_537)[..], b"0\r\n\r\n"].concat(),
            ),
        ];
        for (framing, wire) in framings {
            let before = engine.stats().requests;
            let start = head(&format!("{framing}expect: 100-continue\r\n\r\n"));
            client.send(start.as_bytes()).await;
            let interim = client.head(SOON).await.expect("an interim answer");
            assert_eq!(interim.status, 100);
            assert_eq!(engine.stats().requests, before, "answered here");
            client.send(&wire).await;
            let answer = client.answer().await;
            assert_arrived(&engine, &body, "after 100");
            assert_eq!(newest(&engine).headers.get(header::EXPECT), None);
            assert_reused(&mut client, &engine, &answer, "after 100").await;
        }
    }
    proxy.finish().await;
}

#[tokio::test]
async fn one_byte_too_much_is_413() {
    let (engine, proxy) = pair().await;
    let body = sized(MAX_BODY + 1);

    // A client that waits for permission gets the refusal at once.
    let mut client = proxy.client().await;
    let start = head(&format!(
        "content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    ));
    client.send(start.as_bytes()).await;
    let answer = client.answer().await;
    answer.assert_refusal(413, "payload_too_large");
    assert!(answer.says_close());

    // Chunked: counted while it is read.
    let mut client = proxy.client().await;
    client
        .try_send(&chunked(&body, 65_537, ""))
        .await
        .expect("read to the byte too much");
    let answer = client.answer().await;
    answer.assert_refusal(413, "payload_too_large");
    client.assert_honest(&answer).await;

    // HTTP/2, with the length and without one.
    let mut client = H2Client::connect(proxy.data).await;
    let answer = client.chat(&body, true).await;
    answer.assert_refusal(413, "payload_too_large");
    client.chat(&small(), true).await.assert_engine(200);

    assert_eq!(engine.stats().requests, 1, "only the small one");
    proxy.finish().await;
}

#[tokio::test]
async fn a_client_that_writes_before_it_reads_still_sees_the_413() {
    let (engine, proxy) = pair().await;
    for excess in [1, 1 << 20] {
        let mut client = proxy.client().await;
        let mut body = sized(MAX_BODY);
        body.resize(MAX_BODY + excess, b' ');
        let request = with_length(&body, "");
        // Most HTTP libraries send everything, ignore a broken pipe, and then read.
        let _ = client.try_send(&request).await;
        let answer = client.try_answer().await;
        let answer = answer.expect("the refusal must not be lost in a connection reset");
        answer.assert_refusal(413, "payload_too_large");
    }
    assert_eq!(engine.stats().requests, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn http2_without_a_length_passes_up_to_the_buffer() {
    let (engine, proxy) = pair().await;
    let mut client = H2Client::connect(proxy.data).await;
    for size in [200, 65_535, 65_536] {
        let body = sized(size);
        client.chat(&body, false).await.assert_engine(200);
        assert_arrived(&engine, &body, &format!("{size} without length"));
    }
    let before = engine.stats().requests;
    for size in [65_537, 200_000, 5 << 20] {
        let answer = client.chat(&sized(size), false).await;
        answer.assert_refusal(411, "length_required");
    }
    assert_eq!(engine.stats().requests, before);
    client.chat(&small(), false).await.assert_engine(200);
    proxy.finish().await;
}
