//! Which headers pass, in both directions.

use serde_json::json;
use sgl_edge::mock::Faults;

use crate::support::body::{small, stream};
use crate::support::child::Proxy;
use crate::support::fleet::{and, engine, faulty, newest, plain};
use crate::support::h2c::H2Client;
use crate::support::raw_engine::{self, Step, say};

#[tokio::test]
async fn only_the_whitelist_reaches_an_engine() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let sent = [
        "authorization: Bearer k",
        "x-request-id: r",
        "x-request-id-hop: h",
        "x-correlation-id: c",
        "traceparent: 00-1-2-03",
        "tracestate: a=b",
        "x-sgl-routing-key: k1",
        "X-SGL-Other: o",
        // None of these:
        "cookie: secret=1",
        "content-type: text/plain",
        "accept: */*",
        "accept-encoding: gzip",
        "user-agent: me",
        "x-request-id2: no",
        "x-sglfoo: no",
        "x-data-parallel-rank: 3",
        "x-sgl-decode-url: http://evil",
        "x-forwarded-for: 1.2.3.4",
        "x-override-rid: evil",
        "x-edge-bucket: evil",
        "x-router-error-code: evil",
        "origin: http://x",
        "te: trailers",
        "connection: keep-alive, x-sgl-hop",
        "x-sgl-hop: nominated",
        "upgrade: h2c",
        "proxy-authorization: Basic x",
        "expect-ct: x",
        "content-encoding: identity",
    ];
    let passed = [
        "authorization",
        "x-request-id",
        "x-request-id-hop",
        "x-correlation-id",
        "traceparent",
        "tracestate",
        "x-sgl-routing-key",
        "x-sgl-other",
        "content-type",
        "content-length",
        "host",
    ];
    let headers: String = sent.iter().map(|line| format!("{line}\r\n")).collect();
    proxy
        .client()
        .await
        .chat_with(&small(), &headers)
        .await
        .assert_engine(200);
    let request = newest(&engine);
    for name in request.headers.keys() {
        let name = name.as_str();
        let known = passed.contains(&name) || matches!(name, "connection" | "x-sgl-hop");
        assert!(known, "{name} reaches the engine");
    }
    for name in passed {
        assert_eq!(request.headers.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.headers["host"], engine.addr().to_string());
    assert_eq!(request.path, "/v1/chat/completions");

    let body = stream("x").to_string();
    let mut client = proxy.client().await;
    client
        .chat_with(body.as_bytes(), "accept: application/json\r\n")
        .await
        .assert_engine(200);
    assert_eq!(newest(&engine).headers["accept"], "text/event-stream");
    proxy.finish().await;
}

#[tokio::test]
async fn what_a_connection_header_names_does_not_reach_an_engine() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let headers = "connection: keep-alive, x-sgl-hop\r\nx-sgl-hop: nominated\r\n";
    proxy
        .client()
        .await
        .chat_with(&small(), headers)
        .await
        .assert_engine(200);
    assert_eq!(newest(&engine).headers.get("x-sgl-hop"), None);
    proxy.finish().await;
}

#[tokio::test]
async fn the_query_of_a_client_stays_here() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    let request = format!(
        "POST /v1/chat/completions?api-version=1 HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut client = proxy.client().await;
    client.send(&[request.as_bytes(), &body].concat()).await;
    client.answer().await.assert_engine(200);
    assert_eq!(newest(&engine).path, "/v1/chat/completions");
    proxy.finish().await;
}

#[tokio::test]
async fn hop_by_hop_and_our_own_names_do_not_come_back() {
    let engine = raw_engine::start(vec![
        say(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
             server: uvicorn\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\n\
             x-hop: 1\r\nproxy-authenticate: x\r\ntrailer: x\r\nupgrade: h2c\r\n\
             x-router-error-code: evil\r\nx-sgl-decode-url: http://127.0.0.1:1\r\n\
             x-edge-engine: evil\r\nx-request-id: theirs\r\nx-kept: yes\r\nset-cookie: a=1\r\n\r\n{}",
        ),
        Step::Again,
    ])
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    let mut client = proxy.client().await;
    let answer = client.chat_with(&small(), "x-request-id: mine\r\n").await;
    answer.assert_engine(200);
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    assert_eq!(answer.header("x-kept"), Some("yes"));
    let dropped = [
        "server",
        "keep-alive",
        "x-hop",
        "proxy-authenticate",
        "trailer",
        "upgrade",
        "x-sgl-decode-url",
        "x-edge-engine",
    ];
    for name in dropped {
        assert_eq!(answer.header(name), None, "{name} reaches the client");
    }
    let connection = answer.header("connection").unwrap_or_default();
    assert!(!connection.contains("x-hop"), "{connection}");
    client.assert_kept(&answer).await;
    // An engine's connection is its own matter.
    let mut h2 = H2Client::connect(proxy.data).await;
    h2.chat(&small(), true).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_that_closes_does_not_close_the_client() {
    let engine = raw_engine::start(vec![say(
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    )])
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    let mut client = proxy.client().await;
    for _ in 0..3 {
        let answer = client.chat(&small()).await;
        answer.assert_engine(200);
        assert!(
            !answer.says_close(),
            "the engine's connection is its own matter"
        );
    }
    assert_eq!(engine.seen(), 3);
    proxy.finish().await;
}

#[tokio::test]
async fn edge_headers_only_when_asked_for() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let names = ["x-edge-bucket", "x-edge-engine", "x-edge-reason"];
    let answer = proxy.chat_bytes(&small()).await;
    assert!(names.iter().all(|name| answer.header(name).is_none()));
    drop(proxy);
    let failing = faulty(
        "E2",
        Faults {
            close_before_headers: true,
            ..Faults::default()
        },
    )
    .await;
    for (engine, status) in [(&engine, 200), (&failing, 502)] {
        let settings = and(plain(&[engine]), json!({"response_headers": true}));
        let proxy = Proxy::start(settings).await;
        let answer = proxy.chat_bytes(&small()).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-edge-engine"), Some(engine.name()));
        assert!(names.iter().all(|name| answer.header(name).is_some()));
        let nobody = proxy.chat_bytes(b"{").await;
        assert!(names.iter().all(|name| nobody.header(name).is_none()));
        proxy.finish().await;
    }
}

#[tokio::test]
async fn a_client_that_closes_is_obeyed() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    let answer = client.chat_with(&small(), "connection: close\r\n").await;
    answer.assert_engine(200);
    assert!(client.is_closed().await);
    // HTTP/1.0 has no chunks and closes by default.
    let mut client = proxy.client().await;
    let body = small();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send(&[request.as_bytes(), &body].concat()).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("transfer-encoding"), None);
    proxy.finish().await;
}
