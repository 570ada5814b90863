//! `POST /admin/explain` and `sgl-edge explain`: what a request would get, and that asking changes
//! nothing. Shapes: `explain.md`.

mod offline;

use serde_json::{Value, json};

use crate::support::body::{chat, small, with};
use crate::support::child::Proxy;
use crate::support::client::Answer;
use crate::support::fleet::{and, bucket, engine, plain_buckets};
use crate::support::gauges;

/// Asks the admin listener; `headers` are whole lines.
async fn ask_at(proxy: &Proxy, path: &str, body: &[u8], headers: &str) -> Answer {
    let body = std::str::from_utf8(body).expect("text");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n{body}",
        body.len()
    );
    gauges::admin(proxy.admin, &request).await
}

async fn ask(proxy: &Proxy, body: &Value, headers: &str) -> Value {
    let answer = ask_at(
        proxy,
        "/admin/explain",
        body.to_string().as_bytes(),
        headers,
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn picked(explained: &Value) -> &Value {
    &explained["outcome"]["engines"]["plain"]
}

/// Two buckets over two engines; the small one with a cap.
async fn fleet(policy: Value) -> (Proxy, [sgl_edge::mock::Engine; 2]) {
    let engines = [engine("E1").await, engine("E2").await];
    let mut small = bucket("small", 0, Value::Null, json!({}));
    small["limits"] = json!({"max": 100});
    small["groups"]["plain"]["policy"] = policy;
    let large = bucket("large", 0, json!(["E2"]), json!({}));
    let settings = plain_buckets(&[&engines[0], &engines[1]], json!([small, large]));
    // Nothing but requests may move a number.
    let mut settings = and(settings, json!({"response_headers": true, "health": null}));
    settings["models"][0]["load_poll_interval"] = Value::Null;
    (Proxy::start(settings).await, engines)
}

#[tokio::test]
async fn explaining_twice_and_then_sending_gives_one_engine_three_times() {
    let (proxy, _engines) = fleet(json!({"type": "round_robin"})).await;
    for expected in ["E1", "E2", "E1"] {
        for _ in 0..2 {
            let explained = ask(&proxy, &chat("ping"), "").await;
            assert_eq!(picked(&explained), expected, "{explained}");
        }
        let answer = proxy.chat_bytes(&small()).await;
        answer.assert_engine(200);
        assert_eq!(answer.header("x-edge-engine"), Some(expected));
    }
    proxy.finish().await;
}

#[tokio::test]
async fn the_explanation_shows_facts_buckets_candidates_and_admission() {
    let policy = json!({"type": "round_robin", "admission": {"max_inflight_requests": 5}});
    let (proxy, _engines) = fleet(policy).await;
    let explained = ask(&proxy, &with(chat("ping"), json!({"max_tokens": 7})), "").await;
    let tokens = explained["request"]["input_tokens"]
        .as_u64()
        .expect("a count");
    let expected = json!({
        "model": "m",
        "request": {
            "input_tokens": tokens, "token_source": "estimate", "tokenizing_skipped": false,
            "output_tokens": 7, "expected_peak_tokens": tokens + 7,
            "session_key": null, "routing_key": null, "ttft_slo_ms": null, "tps_slo": null,
        },
        "buckets": [
            {"id": "small", "rank": 0, "capacity": 100, "kept": true, "why": null},
            {"id": "large", "rank": 0, "capacity": null, "kept": true, "why": null},
        ],
        "attempts": [{"bucket": "small", "outcome": "selected", "groups": [{
            "stage": "plain", "policy": "round_robin",
            "engines": [
                {"id": "E1", "candidate": true, "why": null, "inflight": 0, "report": null},
                {"id": "E2", "candidate": true, "why": null, "inflight": 0, "report": null},
            ],
            "compared": {"cursor": 0},
            "admission": [
                {"engine": "E1", "allowed": true, "limit": null},
                {"engine": "E2", "allowed": true, "limit": null},
            ],
            "outcome": "picked", "engine": "E1", "reason": "round_robin",
        }]}],
        "outcome": {
            "status": 200, "code": null, "message": null, "bucket": "small",
            "engines": {"plain": "E1"},
        },
    });
    assert_eq!(explained, expected);
    proxy.finish().await;
}

#[tokio::test]
async fn a_bucket_that_is_too_small_comes_last_with_its_reason() {
    let (proxy, _engines) = fleet(json!({"type": "round_robin"})).await;
    let explained = ask(&proxy, &chat(&"x".repeat(4000)), "").await;
    let buckets = explained["buckets"].as_array().expect("a list");
    assert_eq!(buckets[0]["id"], "large");
    assert_eq!(buckets[1]["id"], "small");
    assert_eq!(buckets[1]["kept"], false);
    let why = buckets[1]["why"].as_str().expect("a reason");
    assert!(why.ends_with("is above limits.max 100"), "{why}");
    assert_eq!(explained["outcome"]["bucket"], "large");
    proxy.finish().await;
}

#[tokio::test]
async fn explaining_binds_no_session_and_counts_nothing() {
    let (proxy, engines) = fleet(json!({"type": "session_aware"})).await;
    let before = metrics(&proxy).await;
    let header = "x-edge-header-x-session-id: alice\r\n";
    for _ in 0..3 {
        let explained = ask(&proxy, &chat("ping"), header).await;
        assert_eq!(explained["request"]["session_key"], "alice");
        let compared = &explained["attempts"][0]["groups"][0]["compared"];
        assert_eq!(compared["binding"], Value::Null, "{explained}");
        assert_eq!(compared["fallback"]["policy"], "power_of_two");
    }
    assert_eq!(metrics(&proxy).await, before);
    let answer = proxy
        .client()
        .await
        .chat_with(&small(), "x-session-id: alice\r\n")
        .await;
    answer.assert_engine(200);
    let bound = answer
        .header("x-edge-engine")
        .expect("an engine")
        .to_owned();
    for _ in 0..3 {
        let explained = ask(&proxy, &chat("ping"), header).await;
        let compared = &explained["attempts"][0]["groups"][0]["compared"];
        assert_eq!(compared, &json!({"binding": bound, "fallback": null}));
        assert_eq!(picked(&explained), &json!(bound));
    }
    let sent: u64 = engines.iter().map(|engine| engine.stats().requests).sum();
    assert_eq!(sent, 1, "an explanation was dispatched");
    proxy.finish().await;
}

/// What a scrape shows, without what time alone changes.
async fn metrics(proxy: &Proxy) -> Vec<String> {
    let text = proxy.gauges().await.text;
    let lines = text.lines().filter(|line| line.starts_with("sgl_router_"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn a_refusal_is_explained_with_what_the_client_would_get() {
    let (proxy, engines) = fleet(json!({"type": "round_robin"})).await;
    let rows = [
        (
            json!({"model": "nope", "messages": []}),
            404,
            "model_not_found",
        ),
        (json!({"messages": []}), 400, "bad_request"),
        (json!([1]), 400, "bad_request"),
        (
            with(chat("x"), json!({"stream": "yes"})),
            400,
            "bad_request",
        ),
    ];
    for (body, status, code) in rows {
        let explained = ask(&proxy, &body, "").await;
        assert_eq!(explained["request"], Value::Null, "{explained}");
        assert_eq!(explained["outcome"]["status"], status);
        assert_eq!(explained["outcome"]["code"], code);
        assert_eq!(explained["outcome"]["engines"], Value::Null);
        let answer = proxy.chat(&body).await;
        answer.assert_refusal(status, code);
        assert_eq!(
            answer.json()["error"]["message"],
            explained["outcome"]["message"]
        );
    }
    drop(engines);
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_that_is_out_is_shown_with_the_reason() {
    let (proxy, [first, second]) = fleet(json!({"type": "round_robin"})).await;
    first.faults().update(|faults| faults.status = Some(500));
    for _ in 0..6 {
        proxy.chat_bytes(&small()).await;
    }
    let explained = ask(&proxy, &chat("ping"), "").await;
    let engines = &explained["attempts"][0]["groups"][0]["engines"];
    assert_eq!(engines[0]["why"], "breaker_open", "{explained}");
    assert_eq!(engines[0]["candidate"], false);
    assert_eq!(picked(&explained), "E2");
    drop(second);
    proxy.finish().await;
}

#[tokio::test]
async fn only_those_who_ask_see_the_prompt_and_only_with_the_token() {
    let (proxy, _engines) = fleet(json!({"type": "round_robin"})).await;
    let body = json!({"model": "m", "messages": [], "input_ids": [5, 6, 7]});
    let explained = ask(&proxy, &body, "").await;
    assert_eq!(explained["request"]["token_source"], "input_ids");
    assert!(explained["request"].get("ids").is_none(), "{explained}");
    let path = "/admin/explain?prompt=true";
    let answer = ask_at(&proxy, path, body.to_string().as_bytes(), "").await;
    assert_eq!(answer.json()["request"]["ids"], json!([5, 6, 7]));
    assert_eq!(answer.json()["request"]["prompt"], Value::Null);
    assert_eq!(proxy.admin("GET", "/admin/explain").await.status, 405);
    proxy.finish().await;
}
