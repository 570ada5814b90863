//! API keys of the data listener, the token of the admin listener; neither is ever shown.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use sgl_edge::mock::Engine;

use crate::support::body::{small, stream};
use crate::support::child::Proxy;
use crate::support::client::Answer;
use crate::support::fleet::{and, engine, newest, plain};
use crate::support::gauges;

const KEYS: [&str; 3] = ["alpha-key-3141", "beta-key-5926", "gamma-key-5358"];
const TOKEN: &str = "admin-token-9793";

/// The files of the secrets, removed at the end.
struct Files(PathBuf);

impl Files {
    fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What stays is below the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A proxy with two keys and a token, as verbose as it gets.
async fn locked(engine: &Engine) -> (Proxy, Files) {
    let name = format!("faults-keys-{}", engine.addr().port());
    let files = Files(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
    fs::create_dir_all(&files.0).expect("a writable target directory");
    let token = files.0.join("token");
    fs::write(files.keys(), format!("{}\n{}\n", KEYS[0], KEYS[1])).expect("a writable file");
    fs::write(&token, format!("# token\n{TOKEN}\n")).expect("a writable file");
    let settings = json!({
        "auth": {"api_keys_file": files.keys()}, "admin": {"token_file": token},
        "log": {"level": "trace"},
    });
    (Proxy::start(and(plain(&[engine]), settings)).await, files)
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

async fn admin(proxy: &Proxy, method: &str, path: &str, headers: &str) -> Answer {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\n{headers}connection: close\r\n\r\n"
    );
    gauges::admin(proxy.admin, &request).await
}

async fn chat(proxy: &Proxy, key: &str) -> Answer {
    proxy.client().await.chat_with(&small(), &bearer(key)).await
}

/// Nothing the process has printed or shows holds a secret or a prompt.
async fn assert_silent(proxy: &Proxy) {
    let shown = [
        proxy.log(),
        admin(proxy, "GET", "/metrics", "").await.text(),
        admin(proxy, "GET", "/admin/state", &bearer(TOKEN))
            .await
            .text(),
    ];
    for text in shown {
        for secret in KEYS.iter().chain([&TOKEN, &"prompt-text-2384"]) {
            assert!(!text.contains(secret), "{secret} is shown");
        }
    }
}

#[tokio::test]
async fn keys_open_the_data_listener_and_a_reload_changes_them() {
    let engine = engine("E1").await;
    let (mut proxy, files) = locked(&engine).await;
    for key in &KEYS[..2] {
        chat(&proxy, key).await.assert_engine(200);
        assert_eq!(
            newest(&engine).headers["authorization"],
            format!("Bearer {key}")
        );
    }
    let wrong = [KEYS[2], TOKEN, "", "alpha-key-314", "ALPHA-KEY-3141"];
    for key in wrong {
        let answer = chat(&proxy, key).await;
        answer.assert_refusal(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(engine.stats().requests, 2, "a refused one was dispatched");
    // A stream that runs keeps running; the next request needs a key that is valid then.
    fs::write(files.keys(), format!("{}\n", KEYS[2])).expect("a writable file");
    let reload = admin(&proxy, "POST", "/admin/reload", &bearer(TOKEN)).await;
    assert_eq!(reload.status, 200, "{}", reload.text());
    chat(&proxy, KEYS[0])
        .await
        .assert_refusal(401, "unauthorized");
    chat(&proxy, KEYS[2]).await.assert_engine(200);
    // A file without keys would lock everybody out: refused, the old keys stay.
    fs::write(files.keys(), "# none\n").expect("a writable file");
    let reload = admin(&proxy, "POST", "/admin/reload", &bearer(TOKEN)).await;
    assert_eq!(reload.status, 422, "{}", reload.text());
    chat(&proxy, KEYS[2]).await.assert_engine(200);
    let prompt = stream("prompt-text-2384").to_string();
    let mut client = proxy.client().await;
    let answer = client.chat_with(prompt.as_bytes(), &bearer(KEYS[2])).await;
    answer.assert_engine(200);
    assert_silent(&proxy).await;
    proxy.write_config(&json!({"auth": {"api_keys_file": null}}));
    let reload = admin(&proxy, "POST", "/admin/reload", &bearer(TOKEN)).await;
    assert_eq!(reload.status, 200, "{}", reload.text());
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn the_token_opens_the_admin_listener_except_probes_and_metrics() {
    let engine = engine("E1").await;
    let (proxy, _files) = locked(&engine).await;
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(admin(&proxy, "GET", path, "").await.status, 200, "{path}");
    }
    let guarded = [
        ("GET", "/admin/state"),
        ("POST", "/admin/reload"),
        ("POST", "/flush_cache"),
        ("POST", "/abort_request"),
    ];
    for (method, path) in guarded {
        let wrong = [
            "",
            &bearer(KEYS[0]),
            &bearer(""),
            "authorization: Basic x\r\n",
        ];
        for headers in wrong {
            let answer = admin(&proxy, method, path, headers).await;
            assert_eq!(answer.status, 401, "{path} {headers}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert_eq!(answer.json()["error"]["code"], "unauthorized");
        }
    }
    assert_eq!(proxy.gauges().await.sum("config_reloads_total"), 0.0);
    assert_eq!(engine.stats().aborts_received.len(), 0);
    let state = admin(&proxy, "GET", "/admin/state", &bearer(TOKEN)).await;
    assert_eq!(state.status, 200);
    let flush = admin(&proxy, "POST", "/flush_cache", &bearer(TOKEN)).await;
    assert_eq!(flush.status, 200, "{}", flush.text());
    // None of this is on the data listener, with or without the token.
    for (method, path) in guarded.into_iter().chain([("GET", "/metrics")]) {
        for headers in [bearer(TOKEN), bearer(KEYS[0])] {
            let mut client = proxy.client().await;
            let request = format!("{method} {path} HTTP/1.1\r\nhost: edge\r\n{headers}\r\n");
            client.send(request.as_bytes()).await;
            client.answer().await.assert_refusal(404, "not_found");
        }
    }
    assert_silent(&proxy).await;
    proxy.finish().await;
}
