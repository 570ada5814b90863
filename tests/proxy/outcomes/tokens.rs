//! `/v1/tokenize` and `/v1/detokenize`: http-and-operations §1. One proxy, because a tokenizer takes
//! seconds to load.

use serde_json::{Value, json};

use crate::support::child::Proxy;
use crate::support::client::Answer;
use crate::support::fleet::{engine, plain};

async fn post(proxy: &Proxy, path: &str, body: &[u8]) -> Answer {
    let mut client = proxy.client().await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send(head.as_bytes()).await;
    client.send(body).await;
    let answer = client.answer().await;
    client.assert_kept(&answer).await;
    answer
}

async fn ask(proxy: &Proxy, path: &str, body: &Value) -> Value {
    let answer = post(proxy, path, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-router-error-code"), None);
    answer.json()
}

#[tokio::test]
async fn texts_become_ids_and_ids_become_texts() {
    let engine = engine("E1").await;
    let mut settings = plain(&[&engine]);
    settings["models"][0]["tokenizer"] =
        concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo").into();
    settings["models"][0]["aliases"] = json!(["a"]);
    let bare = json!({"id": "bare", "engines": {"static": [
        {"id": "B", "url": "http://127.0.0.1:1", "role": "plain"}]}});
    settings["models"]
        .as_array_mut()
        .expect("models")
        .push(bare);
    let proxy = Proxy::start(settings).await;

    conversions(&proxy).await;
    refusals(&proxy).await;
    let long = "word ".repeat(300_000);
    let counted = ask(
        &proxy,
        "/v1/tokenize",
        &json!({"model": "m", "prompt": long}),
    )
    .await;
    assert_eq!(counted["count"], 300_001);

    let gauges = proxy.gauges().await;
    let asked = gauges.sum_of("requests_total", &[("route", "/v1/tokenize")]);
    assert!(asked > 3.0, "{asked}");
    assert_eq!(engine.stats().requests, 0);
    proxy.finish().await;
}

async fn conversions(proxy: &Proxy) {
    let marked = "<|im_start|>user\nHi 人<|im_end|>";
    let ids = json!([151_644, 872, 198, 13_048, 220, 17_340, 151_645]);
    for model in ["m", "a", "m:adapter"] {
        let answer = ask(
            proxy,
            "/v1/tokenize",
            &json!({"model": model, "prompt": marked}),
        )
        .await;
        assert_eq!(answer["model"], model);
        assert_eq!(
            answer["count"],
            answer["tokens"].as_array().map(Vec::len).unwrap_or(0)
        );
        let tokens = answer["tokens"].clone();
        assert_eq!(tokens[0], ids[0]);
        let back = ask(
            proxy,
            "/v1/detokenize",
            &json!({"model": model, "tokens": tokens}),
        )
        .await;
        assert_eq!(back, json!({"model": model, "text": marked}));
        let question = json!({"model": model, "tokens": tokens, "skip_special_tokens": true});
        let back = ask(proxy, "/v1/detokenize", &question).await;
        assert_eq!(back["text"], "user\nHi 人");
    }
    let nothing = ask(proxy, "/v1/tokenize", &json!({"model": "m", "prompt": ""})).await;
    assert_eq!(nothing, json!({"model": "m", "count": 0, "tokens": []}));
}

async fn refusals(proxy: &Proxy) {
    let rows: [(&str, &str, u16, &str); 12] = [
        ("/v1/tokenize", "{", 400, "bad_request"),
        ("/v1/tokenize", "", 400, "bad_request"),
        ("/v1/tokenize", "[]", 422, "unprocessable_entity"),
        (
            "/v1/tokenize",
            r#"{"model":"m"}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/tokenize",
            r#"{"model":"m","prompt":7}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/tokenize",
            r#"{"model":"m","prompt":"x","extra":1}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/tokenize",
            r#"{"model":"none","prompt":"x"}"#,
            404,
            "model_not_found",
        ),
        (
            "/v1/tokenize",
            r#"{"model":"bare","prompt":"x"}"#,
            400,
            "bad_request",
        ),
        (
            "/v1/detokenize",
            r#"{"model":"m","tokens":[-1]}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/detokenize",
            r#"{"model":"m","tokens":"1"}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/detokenize",
            r#"{"model":"m","prompt":"x"}"#,
            422,
            "unprocessable_entity",
        ),
        (
            "/v1/detokenize",
            r#"{"model":"none","tokens":[]}"#,
            404,
            "model_not_found",
        ),
    ];
    for (path, body, status, code) in rows {
        let answer = post(proxy, path, body.as_bytes()).await;
        answer.assert_refusal(status, code);
        assert!(!answer.text().contains("extra"), "{}", answer.text());
    }
    let mut client = proxy.client().await;
    let answer = client.call("GET", "/v1/tokenize").await;
    answer.assert_refusal(405, "method_not_allowed");
    assert_eq!(answer.header("allow"), Some("POST"));
}
