//! Names, labels and sums after a scripted mix of requests.

use serde_json::json;
use sgl_edge::mock::Faults;

use crate::support::body::{self, chat, small, stream, with};
use crate::support::child::Proxy;
use crate::support::client::Client;
use crate::support::fleet::{and, bucket, engine, faulty, plain, plain_buckets, seen};
use crate::support::gauges::Gauges;

/// Every name and its labels, sorted.
const NAMES: [(&str, &[&str]); 27] = [
    ("requests_total", &["method", "route"]),
    ("responses_total", &["method", "route", "status_code"]),
    (
        "worker_requests_total",
        &["mode", "model_id", "outcome", "worker_url"],
    ),
    (
        "stream_outcome_total",
        &["model_id", "outcome", "worker_url"],
    ),
    ("bucket_attempts_total", &["bucket", "model", "outcome"]),
    (
        "admission_rejections_total",
        &["bucket", "limit", "model", "stage"],
    ),
    ("policy_decisions_total", &["policy", "reason"]),
    ("config_reloads_total", &["outcome"]),
    ("request_duration_seconds_bucket", &["le", "model_id"]),
    ("request_duration_seconds_count", &["model_id"]),
    ("ttft_seconds_bucket", &["le", "model_id"]),
    ("ttft_seconds_count", &["model_id"]),
    ("selection_seconds_count", &[]),
    ("tokenize_seconds_count", &[]),
    ("tokenize_skipped_total", &["model_id"]),
    ("tokenize_queue_depth", &[]),
    ("tokenizer_backend", &["backend", "model_id"]),
    ("tokenizer_cache_held_bytes", &["model_id"]),
    ("tokenizer_cache_pieces_total", &["model_id", "result"]),
    ("tokenizer_cache_bytes_total", &["model_id", "result"]),
    ("config_generation", &[]),
    ("inflight_requests", &[]),
    ("buffered_body_bytes", &[]),
    ("workers", &["mode"]),
    ("worker_health", &["worker_url"]),
    ("worker_cb_state", &["worker_url"]),
    ("worker_inflight_requests", &["worker_url"]),
];

/// Requests of every kind; how many were sent to the data listener.
async fn mix(proxy: &Proxy, client: &mut Client) -> u32 {
    for body in [chat("x"), stream("x"), chat("y")] {
        let answer = client.chat(body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200);
    }
    client
        .chat(b"nonsense")
        .await
        .assert_refusal(400, "bad_request");
    let unknown = with(chat("x"), json!({"model": "evil\"model{}"}));
    client
        .chat(unknown.to_string().as_bytes())
        .await
        .assert_refusal(404, "model_not_found");
    client
        .call("GET", "/evil/path")
        .await
        .assert_refusal(404, "not_found");
    client
        .call("EVIL", "/evil")
        .await
        .assert_refusal(404, "not_found");
    client
        .call("GET", "/v1/chat/completions")
        .await
        .assert_refusal(405, "method_not_allowed");
    for path in ["/healthz", "/readyz", "/v1/models"] {
        assert_eq!(client.call("GET", path).await.status, 200);
    }
    let huge = body::head("content-length: 99999999\r\n\r\n");
    let mut other = proxy.client().await;
    other.send(huge.as_bytes()).await;
    other
        .answer()
        .await
        .assert_refusal(413, "payload_too_large");
    12
}

#[tokio::test]
async fn names_labels_and_sums_after_a_mix() {
    let engine = engine("E1").await;
    let capped = bucket("only", 0, json!(null), json!({"max_inflight_requests": 1}));
    let mut settings = plain_buckets(&[&engine], json!([capped]));
    settings["models"][0]["tokenizer"] =
        concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo").into();
    let proxy = Proxy::start(settings).await;
    let mut client = proxy.client().await;
    let mut sent = mix(&proxy, &mut client).await;
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("requests_total"), f64::from(sent));
    assert_eq!(gauges.sum("responses_total"), f64::from(sent));

    // One in flight and one refused because of it.
    engine
        .faults()
        .update(|faults| faults.stall_before_headers = true);
    let before = engine.stats().requests;
    let mut holder = proxy.client().await;
    holder.send(&body::with_length(&small(), "")).await;
    seen(&engine, before + 1).await;
    proxy
        .chat_bytes(&small())
        .await
        .assert_refusal(503, "policy_selection_failed");
    sent += 2;
    crate::support::eventually("requests = responses + in flight", async || {
        let gauges = proxy.gauges().await;
        let (requests, responses) = (gauges.sum("requests_total"), gauges.sum("responses_total"));
        requests == f64::from(sent)
            && requests == responses + 1.0
            && gauges.sum("inflight_requests") == 1.0
    })
    .await;
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_inflight_requests", &[("worker_url", "E1")]),
        1.0
    );
    assert_eq!(gauges.sum("buffered_body_bytes"), small().len() as f64);
    drop(holder);
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    check_names(&gauges);
    check_numbers(&gauges);
    proxy.finish().await;
}

fn check_names(gauges: &Gauges) {
    for (name, labels) in NAMES {
        assert!(gauges.has(name, &[]), "{name} is missing");
        assert_eq!(gauges.label_names(name), labels, "{name}");
    }
    for evil in ["evil", "EVIL", "FROB", "127.0.0.1"] {
        assert!(
            !gauges.text.contains(evil),
            "a client made `{evil}` a label"
        );
    }
    // Text format: every family is described once.
    let mut helped = std::collections::HashSet::new();
    for line in gauges
        .text
        .lines()
        .filter(|line| line.starts_with("# TYPE "))
    {
        assert!(helped.insert(line.to_owned()), "twice: {line}");
    }
    assert!(helped.len() >= 17, "{}", helped.len());
}

fn check_numbers(gauges: &Gauges) {
    let of = |name: &str, labels: &[(&str, &str)]| gauges.sum_of(name, labels);
    let chat = ("route", "/v1/chat/completions");
    for (status, count) in [
        ("200", 3.0),
        ("400", 1.0),
        ("404", 1.0),
        ("405", 1.0),
        ("413", 1.0),
    ] {
        assert_eq!(
            of("responses_total", &[chat, ("status_code", status)]),
            count,
            "{status}"
        );
    }
    assert_eq!(of("requests_total", &[("route", "unmatched")]), 2.0);
    assert_eq!(of("requests_total", &[("method", "other")]), 1.0);
    for (outcome, count) in [("success", 3.0), ("cancelled", 1.0)] {
        let labels = [
            ("worker_url", "E1"),
            ("model_id", "m"),
            ("mode", "plain"),
            ("outcome", outcome),
        ];
        assert_eq!(of("worker_requests_total", &labels), count, "{outcome}");
    }
    assert_eq!(of("stream_outcome_total", &[("outcome", "ok")]), 1.0);
    assert_eq!(of("ttft_seconds_count", &[("model_id", "m")]), 1.0);
    assert_eq!(
        of(
            "bucket_attempts_total",
            &[("bucket", "only"), ("outcome", "selected")]
        ),
        4.0
    );
    assert_eq!(of("bucket_attempts_total", &[("outcome", "rejected")]), 1.0);
    assert_eq!(
        of(
            "policy_decisions_total",
            &[("policy", "round_robin"), ("reason", "round_robin")]
        ),
        4.0
    );
    assert_eq!(of("selection_seconds_count", &[]), 5.0);
    assert_eq!(of("config_reloads_total", &[("outcome", "success")]), 1.0);
    assert_eq!(of("config_generation", &[]), 2.0);
    for (mode, count) in [("plain", 1.0), ("prefill", 0.0), ("decode", 0.0)] {
        assert!(gauges.has("workers", &[("mode", mode)]), "always present");
        assert_eq!(of("workers", &[("mode", mode)]), count);
    }
}

#[tokio::test]
async fn gauges_of_a_removed_engine_vanish() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let mut proxy = Proxy::start(plain(&[&first, &second])).await;
    for _ in 0..4 {
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    let names = [
        "worker_health",
        "worker_cb_state",
        "worker_inflight_requests",
    ];
    let gauges = proxy.gauges().await;
    for name in names {
        assert!(gauges.has(name, &[("worker_url", "E1")]), "{name}");
    }
    proxy.write_config(&plain(&[&second]));
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    let gauges = proxy.gauges().await;
    for name in names {
        assert!(
            !gauges.has(name, &[("worker_url", "E1")]),
            "{name} of a removed engine"
        );
        assert!(gauges.has(name, &[("worker_url", "E2")]), "{name}");
    }
    assert_eq!(gauges.sum_of("workers", &[("mode", "plain")]), 1.0);
    proxy.finish().await;
}

#[tokio::test]
async fn outcomes_of_engines_are_told_apart() {
    let engine = faulty("E1", Faults::default()).await;
    let settings = and(plain(&[&engine]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    for (status, outcome) in [
        (400, "client_error"),
        (429, "backpressure"),
        (503, "backpressure"),
        (500, "error"),
    ] {
        let before = proxy.gauges().await;
        engine
            .faults()
            .update(|faults| faults.status = Some(status));
        proxy.chat(&chat("x")).await.assert_engine(status);
        proxy.idle().await;
        let after = proxy.gauges().await;
        let labels = [("outcome", outcome)];
        let name = "worker_requests_total";
        assert_eq!(
            after.sum_of(name, &labels),
            before.sum_of(name, &labels) + 1.0,
            "{status}"
        );
        assert_eq!(after.sum(name), before.sum(name) + 1.0, "{status}");
    }
    proxy.finish().await;
}

#[tokio::test]
async fn the_admin_listener_refuses_what_it_does_not_know() {
    let engine = engine("E1").await;
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let token = directory.join(format!("token-{}", std::process::id()));
    std::fs::write(&token, "secret\n").expect("a writable directory");
    let settings = and(plain(&[&engine]), json!({"admin": {"token_file": token}}));
    let proxy = Proxy::start(settings).await;
    std::fs::remove_file(&token).expect("it was read");
    for (method, path, status) in [
        ("GET", "/metrics", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/admin/state", 401),
        ("POST", "/admin/reload", 401),
        ("GET", "/nowhere", 404),
        ("POST", "/metrics", 405),
    ] {
        assert_eq!(
            proxy.admin(method, path).await.status,
            status,
            "{method} {path}"
        );
    }
    let request = "GET /admin/state HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\
        authorization: Bearer secret\r\n\r\n";
    let state = crate::support::gauges::admin(proxy.admin, request).await;
    assert_eq!(state.status, 200);
    assert_eq!(state.json()["config"]["generation"], 1);
    proxy.finish().await;
}
