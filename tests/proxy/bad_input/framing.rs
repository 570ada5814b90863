//! Bodies whose end two readers could see at different places.

use crate::support::body::{self, chunks, head, small};
use crate::support::child::Proxy;
use crate::support::fleet::{engine, newest, plain, quiet};
use crate::support::h2c::H2Client;
use crate::support::{SOON, within};

#[tokio::test]
async fn lengths_that_are_no_length() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    let length = body.len();
    for lines in [
        "content-length: +2".to_owned(),
        "content-length: -1".to_owned(),
        "content-length: 0x10".to_owned(),
        "content-length: ".to_owned(),
        "content-length: 1 2".to_owned(),
        "content-length: 2,3".to_owned(),
        "content-length: 99999999999999999999999".to_owned(),
        format!("content-length: {length}\r\ncontent-length: {}", length + 1),
        format!("content-length: {length}\r\n content-length: 5"),
        "transfer-encoding: gzip".to_owned(),
        "transfer-encoding: chunked, gzip".to_owned(),
        "transfer-encoding: xchunked".to_owned(),
    ] {
        let mut client = proxy.client().await;
        client
            .send(head(&format!("{lines}\r\n\r\n")).as_bytes())
            .await;
        let _ = client.try_send(&body).await;
        let answer = client.try_answer().await;
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        assert!(
            matches!(status, 0 | 400 | 411 | 413 | 501),
            "{lines}: {status}"
        );
        assert!(client.is_closed().await, "{lines}: goes on");
        proxy.chat_bytes(&body).await.assert_engine(200);
        assert_eq!(newest(&engine).body, body);
    }
    proxy.finish().await;
}

#[tokio::test]
async fn two_framings_never_smuggle_a_second_request() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    let smuggled = "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nx-request-id: smuggled\r\n";
    for framing in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding:\tchunked\r\ncontent-length: 5\r\n",
        "Transfer-Encoding : chunked\r\ncontent-length: 5\r\n",
    ] {
        let mut client = proxy.client().await;
        let coded = [
            head(&format!("{framing}\r\n")).into_bytes(),
            chunks(&body, 1_000),
            b"0\r\n\r\n".to_vec(),
            format!("{smuggled}content-length: {}\r\n\r\n", body.len()).into_bytes(),
            body.clone(),
        ];
        let _ = client.try_send(&coded.concat()).await;
        while let Some(answer) = client.try_answer().await {
            assert_ne!(answer.header("x-request-id"), Some("smuggled"), "{framing}");
            if answer.says_close() {
                break;
            }
        }
        drop(client);
        quiet(&engine).await;
        for request in engine.recorded() {
            assert_ne!(request.headers["x-request-id"], "smuggled", "{framing}");
            assert_eq!(request.body, body, "{framing}");
        }
    }
    // Equal lengths twice are one length, or refused.
    let mut client = proxy.client().await;
    let twice = format!(
        "content-length: {0}\r\ncontent-length: {0}\r\n\r\n",
        body.len()
    );
    client
        .send(&[head(&twice).as_bytes(), &body].concat())
        .await;
    let answer = client.answer().await;
    assert!(matches!(answer.status, 200 | 400));
    client.assert_honest(&answer).await;
    proxy.finish().await;
}

#[tokio::test]
async fn chunks_that_are_no_chunks() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = String::from_utf8(small()).expect("text");
    let size = body.len();
    for coded in [
        format!("zz\r\n{body}\r\n0\r\n\r\n"),
        format!("-5\r\n{body}\r\n0\r\n\r\n"),
        format!("0x{size:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("ffffffffffffffffff\r\n{body}\r\n0\r\n\r\n"),
        format!("{:x}\r\n{body}\r\n0\r\n\r\n", size - 3),
        format!("{:x}\r\n{body}XX0\r\n\r\n", size),
        format!(" {size:x}\r\n{body}\r\nnonsense\r\n\r\n"),
    ] {
        let mut client = proxy.client().await;
        client
            .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
            .await;
        let _ = client.try_send(coded.as_bytes()).await;
        let answer = client.try_answer().await;
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let shown = coded.lines().next().unwrap_or_default();
        assert!(matches!(status, 0 | 400), "`{shown}`: {status}");
        if let Some(answer) = answer {
            answer.assert_refusal(400, "bad_request");
        }
        assert!(client.is_closed().await, "`{shown}` goes on");
    }
    quiet(&engine).await;
    assert_eq!(engine.stats().completed, 0, "none of them is served");
    proxy.chat_bytes(&small()).await.assert_engine(200);
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        0.0
    );
    proxy.finish().await;
}

/// Pingora takes an empty size line for the last chunk and reads what follows as its trailer, to
/// the blank line: lenient, but in step, so nothing of it is ever taken for a request.
#[tokio::test]
async fn after_an_empty_chunk_size_the_connection_is_in_step() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = String::from_utf8(small()).expect("text");
    let mut client = proxy.client().await;
    client
        .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
        .await;
    let coded = format!("\r\n{body}\r\n0\r\n\r\n");
    let _ = client.try_send(coded.as_bytes()).await;
    let answer = client.try_answer().await.expect("an answer");
    answer.assert_refusal(400, "bad_request");
    assert_eq!(engine.stats().requests, 0);
    client.chat(&small()).await.assert_engine(200);
    assert_eq!(engine.stats().requests, 1);
    proxy.finish().await;
}

#[tokio::test]
async fn uploads_that_end_early() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    let requests = [
        [
            head(&format!("content-length: {}\r\n\r\n", body.len() + 10)).into_bytes(),
            body.clone(),
        ],
        [
            head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
            b"ff\r\n{\"model\"".to_vec(),
        ],
        [
            head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
            chunks(&body, 999),
        ],
    ];
    for request in requests {
        let mut client = proxy.client().await;
        client.send(&request.concat()).await;
        tokio::io::AsyncWriteExt::shutdown(&mut client.socket)
            .await
            .expect("a half-closed socket");
        let answer = client.try_answer().await;
        let status = answer.map_or(0, |answer| answer.status);
        assert!(matches!(status, 0 | 400), "{status}");
    }
    quiet(&engine).await;
    assert_eq!(engine.stats().completed, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn something_behind_the_json_in_a_chunk_of_its_own() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    for trailing in ["x", "{}", "{\"model\":\"m\"}", "\n\n,", "\0"] {
        let mut client = proxy.client().await;
        client
            .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
            .await;
        client.send(&chunks(&body, 999)).await;
        crate::support::pause(100).await;
        let rest = [chunks(trailing.as_bytes(), 99), b"0\r\n\r\n".to_vec()].concat();
        let _ = client.try_send(&rest).await;
        let answer = client.answer().await;
        answer.assert_refusal(400, "bad_request");
        client.assert_honest(&answer).await;
    }
    quiet(&engine).await;
    assert_eq!(engine.stats().completed, 0, "half-sent ones are let go");
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("worker_cb_state"), 0.0);
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        0.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn http2_lengths_that_lie() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    for length in [body.len() + 5, body.len() - 5] {
        let mut client = H2Client::connect(proxy.data).await;
        let mut exchange = client.begin(Some(length), false).await;
        exchange.send(&body).await;
        // A stream error, or a refusal; the engine gets nothing.
        if let Ok(response) = within(SOON, "an end", exchange.response).await {
            assert_eq!(response.status(), 400, "{length}");
        }
    }
    proxy.chat_bytes(&body).await.assert_engine(200);
    quiet(&engine).await;
    assert_eq!(engine.stats().completed, 1);
    proxy.finish().await;
}

#[tokio::test]
async fn after_a_framing_error_nothing_is_read_as_a_request() {
    // What comes later may be the rest of the body in the eyes of whoever stands in front.
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    let next = body::with_length(&body, "x-request-id: smuggled\r\n");
    for bad in [&b"zz\r\n"[..], b"5\r\n{\"modXX", b"3\r\n{\"m__3\r\n"] {
        let mut client = proxy.client().await;
        client
            .send(head("transfer-encoding: chunked\r\n\r\n").as_bytes())
            .await;
        client.send(bad).await;
        let refused = client.answer().await;
        refused.assert_refusal(400, "bad_request");
        let _ = client.try_send(&next).await;
        let second = client.try_answer().await;
        assert!(
            second.is_none(),
            "a second answer: {:?}",
            second.map(|answer| (answer.status, answer.headers))
        );
    }
    assert_eq!(
        engine.stats().requests,
        0,
        "a smuggled request is dispatched"
    );
    proxy.finish().await;
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_one_after_the_other() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let ahead = [
        body::with_length(&small(), "x-request-id: one\r\n"),
        body::with_length(b"{}", "x-request-id: two\r\n"),
        body::with_length(&small(), "x-request-id: three\r\n"),
    ];
    let mut client = proxy.client().await;
    client.send(&ahead.concat()).await;
    for (id, status) in [("one", 200), ("two", 400), ("three", 200)] {
        let answer = client.try_answer().await.expect("an answer to each");
        assert_eq!(
            (answer.header("x-request-id"), answer.status),
            (Some(id), status)
        );
    }
    client.chat(&small()).await.assert_engine(200);
    proxy.finish().await;
}

/// Heads that Pingora refuses before any hook of ours runs are answered like every other refusal.
#[tokio::test]
async fn heads_that_never_reach_a_hook_get_the_envelope_too() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let many: String = (0..300).map(|i| format!("x-{i}: y\r\n")).collect();
    let chat = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n";
    let rows = [
        (
            format!("{chat}content-length: +2\r\n\r\n{{}}"),
            400,
            "bad_request",
        ),
        (
            format!("{chat}transfer-encoding: gzip\r\n\r\n{{}}"),
            400,
            "bad_request",
        ),
        (format!("{chat}{many}\r\n"), 400, "bad_request"),
        (
            "CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
            405,
            "method_not_allowed",
        ),
        (
            "GET /v1/models HTTP/1.1\r\n\r\n\r\n".to_owned(),
            400,
            "bad_request",
        ),
    ];
    for (head, status, code) in rows {
        let mut client = proxy.client().await;
        client.send(head.as_bytes()).await;
        let answer = client.try_answer().await.expect("an answer");
        answer.assert_refusal(status, code);
        assert_eq!(answer.header("server"), None);
    }
    assert_eq!(engine.stats().requests, 0);
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}
