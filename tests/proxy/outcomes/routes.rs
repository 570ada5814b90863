//! Decided by the head of a request: routes, methods, keys.

use serde_json::json;

use crate::support::body::{small, stream};
use crate::support::child::Proxy;
use crate::support::fleet::{and, engine, newest, plain};

#[tokio::test]
async fn unknown_routes_and_methods() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/chat/completions/",
        "/v1/chat",
        "/generate",
        "/metrics",
        "/admin/state",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/models/m",
        "/%2e%2e/v1/models",
        "/healthz/x",
    ] {
        for method in ["GET", "POST"] {
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n");
            client.send(request.as_bytes()).await;
            let answer = client.answer().await;
            answer.assert_refusal(404, "not_found");
            client.assert_kept(&answer).await;
        }
    }
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("FROB", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/readyz", "GET"),
    ] {
        let mut client = proxy.client().await;
        let answer = client.call(method, path).await;
        answer.assert_refusal(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
        client.assert_kept(&answer).await;
    }
    // A query is no part of the route.
    let mut client = proxy.client().await;
    assert_eq!(client.call("GET", "/healthz?x=1").await.status, 200);
    assert_eq!(engine.stats().requests, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn a_refused_method_with_a_body_keeps_or_closes_honestly() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    for start in [
        "PUT /v1/chat/completions HTTP/1.1\r\nhost: e\r\n",
        "POST /nowhere HTTP/1.1\r\nhost: e\r\n",
    ] {
        let mut client = proxy.client().await;
        let body = small();
        let request = format!("{start}content-length: {}\r\n\r\n", body.len());
        client.send(request.as_bytes()).await;
        client.send(&body).await;
        let answer = client.answer().await;
        assert!(matches!(answer.status, 404 | 405));
        client.assert_honest(&answer).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn an_answer_to_head_has_no_body() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    for path in ["/healthz", "/v1/models", "/nowhere", "/v1/chat/completions"] {
        let mut client = proxy.client().await;
        let answer = client.call("HEAD", path).await;
        assert!(matches!(answer.status, 200 | 404 | 405), "{path}");
        // What follows is the next answer, not a body.
        client.assert_honest(&answer).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_large_body_that_nobody_wants_does_not_confuse() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = crate::support::body::sized(5 << 20);
    for path in ["/nowhere", "/v1/models"] {
        let mut client = proxy.client().await;
        let start = format!(
            "POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(start.as_bytes()).await;
        let _ = client.try_send(&body).await;
        let answer = client.answer().await;
        assert!(matches!(answer.status, 404 | 405));
        client.assert_honest(&answer).await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn probes_and_models() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    let health = client.call("GET", "/healthz").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    let ready = client.call("GET", "/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
    let models = client.call("GET", "/v1/models").await;
    assert_eq!(
        models.json(),
        json!({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang"}]})
    );
    for answer in [health, ready, models] {
        assert!(answer.header("x-request-id").is_some());
        assert_eq!(answer.header("x-router-error-code"), None);
    }
    proxy.finish().await;
}

#[tokio::test]
async fn without_a_key_nobody_enters() {
    let engine = engine("E1").await;
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let keys = directory.join(format!("keys-{}", std::process::id()));
    std::fs::write(&keys, "# keys\nalpha\n\nbeta\n").expect("a writable file");
    let settings = and(plain(&[&engine]), json!({"auth": {"api_keys_file": keys}}));
    let proxy = Proxy::start(settings).await;
    std::fs::remove_file(&keys).expect("it was read");
    for header in [
        "",
        "authorization: Bearer gamma\r\n",
        "authorization: Basic alpha\r\n",
        "authorization: Bearer alphabet\r\n",
        "authorization: Bearer \r\n",
        "x-api-key: alpha\r\n",
    ] {
        let mut client = proxy.client().await;
        let answer = client.chat_with(&small(), header).await;
        answer.assert_refusal(401, "unauthorized");
        assert!(answer.header("www-authenticate").is_some());
        assert!(!answer.text().contains("alpha"));
        client.assert_honest(&answer).await;
    }
    assert_eq!(engine.stats().requests, 0);
    let mut client = proxy.client().await;
    for key in ["alpha", "beta"] {
        let header = format!("authorization: Bearer {key}\r\n");
        client.chat_with(&small(), &header).await.assert_engine(200);
        assert_eq!(
            newest(&engine).headers["authorization"],
            format!("Bearer {key}")
        );
        let body = stream("x").to_string();
        client
            .chat_with(body.as_bytes(), &header)
            .await
            .assert_engine(200);
    }
    assert_eq!(client.call("GET", "/v1/models").await.status, 401);
    assert_eq!(client.call("GET", "/healthz").await.status, 200);
    assert_eq!(client.call("GET", "/readyz").await.status, 200);
    client
        .call("GET", "/nowhere")
        .await
        .assert_refusal(404, "not_found");
    proxy.finish().await;
}
