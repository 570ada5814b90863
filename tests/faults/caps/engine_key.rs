//! Engines that demand a key: the router's own calls carry the configured one, clients' requests
//! their own, and neither is used for the other: field-lessons L34.

use std::fs;
use std::path::PathBuf;

use http::Version;
use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig};

use crate::support::body::small;
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::{and, engine_with, newest, plain};

const KEY: &str = "engine-key-2718";
const CLIENT: &str = "authorization: Bearer engine-key-2718\r\n";

async fn locked_engine() -> Engine {
    let config = EngineConfig {
        api_key: Some(KEY.to_owned()),
        enable_http2: true,
        ..EngineConfig::default()
    };
    engine_with("E1", config).await
}

/// Checks that need the key, and the file that holds it.
fn settings(engine: &Engine, key_file: Option<PathBuf>) -> Value {
    let health = json!({
        "path": "/v1/models", "interval": "100ms", "timeout": "2s", "unhealthy_after": 2,
    });
    let mut settings = and(plain(&[engine]), json!({"health": health}));
    settings["models"][0]["buckets"] = json!([{"id": "all", "groups": {"plain": {}}}]);
    settings["models"][0]["engines"]["api_key_file"] = json!(key_file);
    settings
}

fn key_file(engine: &Engine) -> PathBuf {
    let name = format!("faults-engine-key-{}", engine.addr().port());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, format!("# of the engines\n{KEY}\n")).expect("a writable file");
    path
}

async fn engine_state(proxy: &Proxy) -> Value {
    proxy.state().await["models"][0]["engines"][0].clone()
}

#[tokio::test]
async fn with_the_key_a_locked_engine_is_healthy_introspected_and_administered() {
    let engine = locked_engine().await;
    let file = key_file(&engine);
    let proxy = Proxy::start(settings(&engine, Some(file.clone()))).await;
    // HTTP/2 is spoken only after `/server_info` has announced it.
    eventually("introspected", async || {
        let answer = proxy.client().await.chat_with(&small(), CLIENT).await;
        answer.assert_engine(200);
        newest(&engine).version == Version::HTTP_2
    })
    .await;
    assert_eq!(engine_state(&proxy).await["healthy"], true);
    let flushed = proxy.admin("POST", "/flush_cache").await;
    assert_eq!(flushed.status, 200, "{}", flushed.text());
    // A client without a key does not get in on the router's.
    let answer = proxy.chat_bytes(&small()).await;
    assert_eq!(answer.status, 401);
    assert_eq!(
        answer.header("x-router-error-code"),
        None,
        "the engine's own"
    );
    for shown in [proxy.log(), proxy.state().await.to_string()] {
        assert!(!shown.contains(KEY), "the key is shown");
    }
    proxy.finish().await;
    fs::remove_file(file).expect("the file of this test");
}

#[tokio::test]
async fn without_the_key_the_log_names_401_and_no_request_goes_there_until_it_is_given() {
    let engine = locked_engine().await;
    let file = key_file(&engine);
    let mut proxy = Proxy::start(settings(&engine, None)).await;
    eventually("the engine is out", async || {
        engine_state(&proxy).await["healthy"] == false
    })
    .await;
    let answer = proxy.client().await.chat_with(&small(), CLIENT).await;
    answer.assert_refusal(503, "no_healthy_workers");
    let log = proxy.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("401")).collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("engines.api_key_file")),
        "{log}"
    );
    assert_eq!(lines.len(), 1, "not repeated at once: {log}");
    let with_key = settings(&engine, Some(file.clone()));
    proxy.write_config(&json!({"models": with_key["models"]}));
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 200);
    eventually("the engine is back", async || {
        engine_state(&proxy).await["healthy"] == true
    })
    .await;
    let answer = proxy.client().await.chat_with(&small(), CLIENT).await;
    answer.assert_engine(200);
    proxy.finish().await;
    fs::remove_file(file).expect("the file of this test");
}

#[tokio::test]
async fn an_unusable_key_file_stops_the_reload_and_names_its_setting() {
    let engine = locked_engine().await;
    let file = key_file(&engine);
    let mut proxy = Proxy::start(settings(&engine, Some(file.clone()))).await;
    for text in ["", "# none\n", "one\ntwo\n", "caf\u{e9}\u{1}\n"] {
        fs::write(&file, text).expect("a writable file");
        let reload = proxy.admin("POST", "/admin/reload").await;
        assert_eq!(reload.status, 422, "{text:?}");
        let problem = reload.text();
        assert!(
            problem.contains("models[0].engines.api_key_file"),
            "{problem}"
        );
        assert!(!problem.contains("two"), "{problem}");
    }
    proxy.write_config(&json!({}));
    proxy.finish().await;
    fs::remove_file(file).expect("the file of this test");
}
