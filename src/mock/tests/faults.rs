//! Every way to break.

use serde_json::json;

use super::client::{
    answer, chat, chat_bytes, engine, eventually, get, post, read_until, send, user, with,
};
use crate::mock::{EngineConfig, Faults, start};

#[tokio::test]
async fn unknown_and_ill_typed_faults_are_refused_everywhere() {
    let engine = engine().await;
    for patch in [r#"{"statos":500}"#, r#"{"status":"x"}"#, "[]", "{"] {
        assert_eq!(
            post(&engine, "/mock/faults", patch).await.status,
            400,
            "{patch}"
        );
    }
    for header in ["x-sgl-mock-statos: 500\r\n", "x-sgl-mock-status: x\r\n"] {
        assert_eq!(
            answer(&engine, &user("x"), header).await.status,
            400,
            "{header}"
        );
    }
    assert!(Faults::default().set_text("tokens", "-1").is_err());
    assert_eq!(engine.faults().get(), Faults::default());
}

#[tokio::test]
async fn faults_merge_and_null_restores_the_default() {
    let engine = engine().await;
    post(&engine, "/mock/faults", r#"{"status":429,"ttft_ms":5}"#).await;
    let merged = post(
        &engine,
        "/mock/faults",
        r#"{"status":null,"lie_length":true}"#,
    )
    .await;
    let expected = Faults {
        ttft_ms: Some(5),
        lie_length: true,
        ..Faults::default()
    };
    assert_eq!(merged.status, 200);
    assert_eq!(engine.faults().get(), expected);
    assert_eq!(get(&engine, "/mock/faults").await.json()["ttft_ms"], 5);
    post(&engine, "/mock/reset", "").await;
    assert_eq!(engine.faults().get(), Faults::default());
}

#[tokio::test]
async fn status_is_answered_as_often_as_asked() {
    let faults = Faults {
        status: Some(429),
        times: Some(2),
        reply_headers: [("retry-after".to_owned(), "7".to_owned())].into(),
        ..Faults::default()
    };
    let config = EngineConfig {
        faults,
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    for _ in 0..2 {
        let reply = answer(&engine, &user("x"), "").await;
        assert_eq!(
            (reply.status, reply.json()["code"].as_u64()),
            (429, Some(429))
        );
        assert!(reply.head.contains("retry-after: 7"));
    }
    assert_eq!(answer(&engine, &user("x"), "").await.status, 200);
    assert_eq!(engine.stats().errors, 2);
}

#[tokio::test]
async fn connections_end_before_the_headers() {
    let engine = engine().await;
    for fault in ["close-before-headers", "reset-before-headers"] {
        let header = format!("x-sgl-mock-{fault}: true\r\n");
        assert!(
            chat(&engine, &user("x"), &header).await.is_none(),
            "{fault}"
        );
    }
    eventually("both are counted", || engine.stats().errors == 2).await;
    eventually("both are closed", || engine.stats().connections_open == 0).await;
}

#[tokio::test]
async fn a_reset_is_a_reset_and_a_close_is_none() {
    let engine = engine().await;
    for (fault, is_reset) in [("close", false), ("reset", true)] {
        let header = format!("x-sgl-mock-{fault}-before-headers: true\r\n");
        let mut socket = send(engine.addr(), &chat_bytes(&user("x"), &header)).await;
        let read = tokio::io::AsyncReadExt::read(&mut socket, &mut [0; 1]).await;
        assert_eq!(read.is_err(), is_reset, "{fault}: {read:?}");
    }
}

#[tokio::test]
async fn answers_break_off_after_tokens() {
    let engine = engine().await;
    let stream = with(user("a b c"), json!({"stream": true}));
    for fault in ["cut", "reset"] {
        let header = format!("x-sgl-mock-{fault}-after-tokens: 2\r\n");
        let reply = answer(&engine, &stream, &header).await;
        assert_eq!((reply.status, reply.whole), (200, false), "{fault}");
        assert_eq!(reply.streamed_text(), "a b", "{fault}");
        assert_eq!(reply.streamed_finish(), None);
        let reply = answer(&engine, &user("a b c"), &header).await;
        assert_eq!((reply.status, reply.whole), (200, false), "{fault}");
        assert!(reply.body.starts_with("{\"id\""), "{fault}");
    }
    assert_eq!((engine.stats().errors, engine.stats().aborted), (4, 0));
}

#[tokio::test]
async fn an_error_event_ends_a_stream_and_a_status_an_answer() {
    let engine = engine().await;
    let header = "x-sgl-mock-error-event-after-tokens: 1\r\nx-sgl-mock-error-code: 500\r\n";
    let stream = with(user("a b c"), json!({"stream": true}));
    let reply = answer(&engine, &stream, header).await;
    let events = reply.events();
    assert!(reply.whole);
    assert_eq!(reply.streamed_text(), "a");
    assert!(
        events[2].contains("\"error\":{\"object\":\"error\""),
        "{}",
        events[2]
    );
    assert_eq!(events[3], "[DONE]");
    assert_eq!(answer(&engine, &user("a b c"), header).await.status, 500);
}

#[tokio::test]
async fn the_length_can_be_a_lie() {
    let engine = engine().await;
    for stream in [false, true] {
        let body = with(user("a b"), json!({"stream": stream}));
        let reply = answer(&engine, &body, "x-sgl-mock-lie-length: true\r\n").await;
        assert!(!reply.whole);
        assert!(reply.body.contains("\"stop\""), "{}", reply.body);
    }
}

#[tokio::test]
async fn replies_can_be_empty_big_many_or_relabelled() {
    let engine = engine().await;
    let reply = answer(&engine, &user("x"), "x-sgl-mock-empty-reply: true\r\n").await;
    assert_eq!(
        (reply.status, reply.body.as_str(), reply.whole),
        (200, "", true)
    );
    for stream in [false, true] {
        let body = with(user("x"), json!({"stream": stream}));
        let big = answer(&engine, &body, "x-sgl-mock-big-reply-bytes: 1000000\r\n").await;
        assert!(big.whole && big.body.len() > 1_000_000);
        let many = answer(&engine, &body, "x-sgl-mock-tokens: 4\r\n").await;
        assert!(many.whole && many.body.contains(if stream { " x" } else { "x x x x" }));
    }
    let label =
        "x-sgl-mock-reply-headers: {\"content-type\":\"application/json; charset=utf-8\"}\r\n";
    let reply = answer(&engine, &user("x"), label).await;
    assert!(
        reply
            .head
            .contains("content-type: application/json; charset=utf-8\r\n")
    );
}

#[tokio::test]
async fn comments_come_before_the_first_chunk() {
    let engine = engine().await;
    let stream = with(user("x"), json!({"stream": true}));
    let reply = answer(&engine, &stream, "x-sgl-mock-heartbeats: 2\r\n").await;
    assert!(
        reply
            .body
            .starts_with(": keep-alive\n\n: keep-alive\n\ndata: {")
    );
    assert_eq!(reply.streamed_text(), "x");
}

#[tokio::test]
async fn a_connection_can_close_after_its_answer_without_a_word() {
    let engine = engine().await;
    for stream in [false, true] {
        let body = with(user("x"), json!({"stream": stream}));
        let bytes = chat_bytes(&body, "x-sgl-mock-close-after-response: true\r\n");
        let keep_alive = String::from_utf8(bytes)
            .unwrap()
            .replace("connection: close\r\n", "");
        let socket = send(engine.addr(), keep_alive.as_bytes()).await;
        let reply = super::client::receive(socket).await.unwrap();
        assert!(reply.whole);
        assert!(!reply.head.contains("connection:"), "{}", reply.head);
    }
    assert_eq!(engine.stats().completed, 2);
}

#[tokio::test]
async fn idle_connections_can_be_closed_but_busy_ones_stay() {
    let engine = engine().await;
    let stall = chat_bytes(
        &with(user("x"), json!({"stream": true})),
        "x-sgl-mock-stall-after-tokens: 1\r\n",
    );
    let mut busy = send(engine.addr(), &stall).await;
    read_until(&mut busy, "content\":\"x\"").await;
    let mut idle = send(engine.addr(), b"GET /ready HTTP/1.1\r\nhost: e\r\n\r\n").await;
    read_until(&mut idle, "\r\n\r\n").await;
    engine
        .faults()
        .update(|faults| faults.close_idle_after_ms = Some(1));
    let read = tokio::io::AsyncReadExt::read(&mut idle, &mut [0; 1]).await;
    assert_eq!(read.unwrap(), 0);
    assert_eq!(engine.stats().inflight, 1);
}

#[tokio::test]
async fn a_listener_can_vanish_and_return() {
    let engine = engine().await;
    let mut control = send(engine.addr(), b"GET /ready HTTP/1.1\r\nhost: e\r\n\r\n").await;
    read_until(&mut control, "\r\n\r\n").await;
    engine
        .faults()
        .update(|faults| faults.refuse_connections = true);
    engine.faults().settled().await;
    let refused = tokio::net::TcpStream::connect(engine.addr())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // Nobody else is given the port meanwhile.
    let thief = tokio::net::TcpSocket::new_v4().unwrap();
    let taken = thief.bind(engine.addr()).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let heal = b"POST /mock/reset HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut control, heal)
        .await
        .unwrap();
    read_until(&mut control, "200 OK").await;
    assert_eq!(answer(&engine, &user("x"), "").await.status, 200);
    engine.faults().update(|faults| {
        faults.refuse_connections = true;
        faults.refuse_for_ms = Some(1);
    });
    eventually("it heals itself", || {
        !engine.faults().get().refuse_connections
    })
    .await;
    engine.faults().settled().await;
    assert_eq!(answer(&engine, &user("x"), "").await.status, 200);
}

#[tokio::test]
async fn header_faults_can_be_meant_for_another_engine() {
    let engine = engine().await;
    for (wanted, status) in [("decode", 200), ("D1", 200), ("plain", 503), ("mock", 503)] {
        let headers = format!("x-sgl-mock-for: {wanted}\r\nx-sgl-mock-status: 503\r\n");
        assert_eq!(
            answer(&engine, &user("x"), &headers).await.status,
            status,
            "{wanted}"
        );
    }
}

#[tokio::test]
async fn a_body_can_be_read_slowly() {
    let engine = engine().await;
    let slow = "x-sgl-mock-slow-body-read: 1\r\n";
    let big = user(&"word ".repeat(50_000));
    let reply = answer(&engine, &with(big, json!({"max_tokens": 1})), slow).await;
    assert_eq!(reply.status, 200);
}
