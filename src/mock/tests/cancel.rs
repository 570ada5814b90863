//! Requests that end before their answer does: ids, aborts and clients that leave.

use std::pin::pin;

use serde_json::json;

use super::client::{
    answer, chat_bytes, engine, eventually, post, read_until, receive, send, user, with,
};

#[tokio::test]
async fn a_live_id_cannot_be_used_twice() {
    let engine = engine().await;
    let body = with(user("x"), json!({"rid": "same", "stream": true}));
    let mut first = send(
        engine.addr(),
        &chat_bytes(&body, "x-sgl-mock-stall-after-tokens: 1\r\n"),
    )
    .await;
    read_until(&mut first, "content\":\"x\"").await;
    let second = answer(&engine, &body, "").await;
    assert_eq!(second.status, 400);
    assert!(second.body.contains("same"));
    drop(first);
    eventually("the client was missed", || engine.stats().aborted == 1).await;
    assert_eq!(answer(&engine, &body, "").await.status, 200);
}

#[tokio::test]
async fn abort_matches_prefixes_and_ends_normally() {
    let engine = engine().await;
    let mut streams = Vec::new();
    for rid in ["ab1", "ab2", "other"] {
        let body = with(user("x"), json!({"rid": rid, "stream": true}));
        let stall = "x-sgl-mock-stall-after-tokens: 1\r\n";
        let mut socket = send(engine.addr(), &chat_bytes(&body, stall)).await;
        read_until(&mut socket, "content\":\"x\"").await;
        streams.push(socket);
    }
    for ignored in [r#"{"rid":""}"#, r#"{"rid":"unknown","abort_all":false}"#] {
        let reply = post(&engine, "/abort_request", ignored).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    }
    assert_eq!(engine.stats().inflight, 3);
    post(&engine, "/abort_request", r#"{"rid":"ab"}"#).await;
    let other = streams.pop().unwrap();
    for socket in streams {
        let rest = receive_tail(socket).await;
        assert!(rest.contains("\"finish_reason\":\"abort\""), "{rest}");
        assert!(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{rest}");
    }
    assert_eq!(engine.stats().inflight, 1);
    post(&engine, "/abort_request", r#"{"abort_all":true}"#).await;
    assert!(receive_tail(other).await.contains("[DONE]"));
    let stats = engine.stats();
    assert_eq!(stats.aborts_received, ["", "unknown", "ab", "*"]);
    assert_eq!((stats.completed, stats.aborted), (3, 0));
}

async fn receive_tail(mut socket: tokio::net::TcpStream) -> String {
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut socket, &mut rest)
        .await
        .unwrap();
    rest
}

#[tokio::test]
async fn an_abort_before_the_first_token_still_gives_an_answer() {
    let engine = engine().await;
    let body = with(user("x"), json!({"rid": "early"}));
    let socket = send(
        engine.addr(),
        &chat_bytes(&body, "x-sgl-mock-ttft-ms: 3600000\r\n"),
    )
    .await;
    eventually("the request computes", || engine.recorded().len() == 1).await;
    // The id is live only a moment after the recording, so ask until it is heard.
    let mut reply = pin!(receive(socket));
    let reply = loop {
        tokio::select! {
            reply = &mut reply => break reply.unwrap().json(),
            _ = post(&engine, "/abort_request", r#"{"rid":"early"}"#) => {}
        }
    };
    assert_eq!(reply["choices"][0]["finish_reason"], "abort");
    assert_eq!(reply["choices"][0]["message"]["content"], "");
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_in_every_phase() {
    let engine = engine().await;
    let stream = with(user("a b c d"), json!({"stream": true}));
    for (body, fault, needle) in [
        (&user("x"), "stall-before-headers: true", None),
        (&user("x"), "ttft-ms: 3600000", None),
        (&user("x"), "stall-after-tokens: 1", None),
        (&stream, "stall-after-tokens: 3", Some(" c")),
        (&stream, "interval-ms: 3600000", Some("\"a\"")),
    ] {
        engine.reset();
        let bytes = chat_bytes(body, &format!("x-sgl-mock-{fault}\r\n"));
        let mut socket = send(engine.addr(), &bytes).await;
        match needle {
            Some(needle) => drop(read_until(&mut socket, needle).await),
            None => eventually("it is held", || engine.recorded().len() == 1).await,
        }
        drop(socket);
        eventually(fault, || engine.stats().aborted == 1).await;
        let stats = engine.stats();
        assert_eq!((stats.inflight, stats.completed, stats.errors), (0, 0, 0));
    }
    assert_eq!(engine.stats().aborted_after_tokens, [1]);
}

#[tokio::test]
async fn a_client_that_leaves_inside_its_body_is_counted() {
    let engine = engine().await;
    let mut bytes = chat_bytes(&user("x"), "");
    bytes.truncate(bytes.len() - 5);
    let socket = send(engine.addr(), &bytes).await;
    eventually("the head arrived", || engine.stats().requests == 1).await;
    drop(socket);
    eventually("it was missed", || engine.stats().aborted == 1).await;
}
