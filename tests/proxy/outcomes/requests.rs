//! Decided by the body of a request: its JSON, its model, its length.

use serde_json::json;

use crate::support::body::{chat, small, with};
use crate::support::child::Proxy;
use crate::support::fleet::{bucket, engine, newest, plain, plain_buckets};
use crate::support::h2c::H2Client;

#[tokio::test]
async fn bad_requests_and_unknown_models() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    let mut h2 = H2Client::connect(proxy.data).await;
    let messages = json!([{"role": "user", "content": "x"}]);
    let rows = [
        (json!({"messages": messages}), "model"),
        (json!({"messages": messages, "model": null}), "model"),
        (json!({"messages": messages, "model": 3}), "model"),
        (with(chat("x"), json!({"stream": "true"})), "stream"),
        (with(chat("x"), json!({"stream": 1})), "stream"),
        (with(chat("x"), json!({"max_tokens": -1})), "max_tokens"),
        (with(chat("x"), json!({"max_tokens": 1.5})), "max_tokens"),
        (
            with(chat("x"), json!({"max_completion_tokens": "7"})),
            "max_completion_tokens",
        ),
        (
            with(chat("x"), json!({"max_tokens": u64::MAX})),
            "too large",
        ),
    ];
    for (body, named) in rows {
        let body = body.to_string();
        let answer = client.chat(body.as_bytes()).await;
        answer.assert_refusal(400, "bad_request");
        assert!(answer.text().contains(named), "{body}: {}", answer.text());
        client.assert_kept(&answer).await;
        let answer = h2.chat(body.as_bytes(), true).await;
        answer.assert_refusal(400, "bad_request");
    }
    for name in ["other", "M", "m ", "", "other:lora"] {
        let body = with(chat("x"), json!({"model": name})).to_string();
        let answer = client.chat(body.as_bytes()).await;
        answer.assert_refusal(404, "model_not_found");
        assert!(answer.text().contains(&format!("`{name}`")));
        client.assert_kept(&answer).await;
    }
    assert_eq!(engine.stats().requests, 0, "none of them is dispatched");
    proxy.finish().await;
}

#[tokio::test]
async fn no_bucket_for_the_length_is_a_bad_request() {
    let engine = engine("E1").await;
    let mut narrow = bucket("narrow", 0, json!(null), json!({}));
    narrow["limits"] = json!({"min": 0, "max": 50});
    narrow["max_context_tokens"] = 100.into();
    let proxy = Proxy::start(plain_buckets(&[&engine], json!([narrow]))).await;
    let mut client = proxy.client().await;
    client.chat(&small()).await.assert_engine(200);
    let long = chat(&"word ".repeat(100)).to_string();
    let hungry = with(chat("x"), json!({"max_tokens": 99})).to_string();
    for body in [long, hungry] {
        let answer = proxy.chat_bytes(body.as_bytes()).await;
        answer.assert_refusal(400, "bad_request");
        assert!(answer.text().contains("bucket"), "{}", answer.text());
        let mut client = proxy.client().await;
        let answer = client.chat(body.as_bytes()).await;
        client.assert_honest(&answer).await;
    }
    assert_eq!(engine.stats().requests, 1);
    proxy.finish().await;
}

#[tokio::test]
async fn an_alias_arrives_under_its_real_name_and_an_adapter_as_sent() {
    let engine = engine("E1").await;
    let mut settings = plain(&[&engine]);
    settings["models"][0]["aliases"] = json!(["short", "gpt \"4\""]);
    let proxy = Proxy::start(settings).await;
    let body = r#" {"x":1e400, "model" : "short","messages":[{"role":"user","content":"model"}],"y":[1, 2]}"#;
    // The mock cannot read 1e400 and says so, but it got every byte.
    proxy.chat_bytes(body.as_bytes()).await.assert_engine(400);
    let renamed = body.replace(r#""short""#, r#""m""#);
    assert_eq!(newest(&engine).body, renamed.as_bytes());
    let quoted = with(chat("x"), json!({"model": "gpt \"4\""})).to_string();
    proxy.chat_bytes(quoted.as_bytes()).await.assert_engine(200);
    assert_eq!(newest(&engine).body, chat("x").to_string().as_bytes());
    let adapter = with(chat("x"), json!({"model": "m:adapter"})).to_string();
    proxy
        .chat_bytes(adapter.as_bytes())
        .await
        .assert_engine(200);
    assert_eq!(newest(&engine).body, adapter.as_bytes());
    let models = proxy.client().await.call("GET", "/v1/models").await;
    assert!(!models.text().contains("short"), "aliases are not listed");
    proxy.finish().await;
}

#[tokio::test]
async fn what_the_router_does_not_know_survives() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut body =
        r#"{"messages":[{"role":"user","content":"x","unknown":{"a":[1,{"b":null}]}}],"#.to_owned();
    for i in 0..40 {
        body.push_str(&format!(
            r#""field_{i}":{{"n{i}":[{i},[{{"deep":{{"deeper":"\u00e9\ud83d\ude00"}}}}]]}},"#
        ));
    }
    body.push_str(r#""big":123456789012345678901234567890,"#);
    body.push_str(r#""precise":0.1000000000000000055511151231257827,"small":1e-30,"neg":-0,"#);
    body.push_str(r#""twice":1,"twice":{"x":2},"temperature":0.5,"temperature":0.7,"#);
    body.push_str(r#""":"empty key","\u006dodel2":"x","tab":"\t\/", "model":"m"}"#);
    for streaming in [false, true] {
        let body = if streaming {
            body.replacen('{', r#"{"stream":true,"#, 1)
        } else {
            body.clone()
        };
        proxy.chat_bytes(body.as_bytes()).await.assert_engine(200);
        let arrived = newest(&engine).body;
        let arrived = String::from_utf8_lossy(&arrived);
        assert_eq!(without_rid(&arrived), (body, streaming));
    }
    proxy.finish().await;
}

/// A body without the id that the router may have added as its last field, and whether it had.
fn without_rid(body: &str) -> (String, bool) {
    let Some((client, added)) = body.rsplit_once(r#","rid":""#) else {
        return (body.to_owned(), false);
    };
    let id = added.strip_suffix("\"}").expect("the last field");
    assert!(
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    (format!("{client}}}"), true)
}

#[tokio::test]
async fn request_ids_are_echoed_or_made() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let long = "x".repeat(256);
    let rows = [
        ("x-request-id: my-id-1", Some("my-id-1")),
        ("X-Request-ID:   spaced  ", Some("spaced")),
        ("x-correlation-id: corr", Some("corr")),
        ("x-trace-id: trace", Some("trace")),
        ("request-id: plain", Some("plain")),
        ("x-request-id: first\r\nx-trace-id: second", Some("first")),
        (&format!("x-request-id: {long}"), Some(long.as_str())),
        (&format!("x-request-id: {long}x"), None),
        ("x-request-id: with space", None),
        ("x-request-id: \u{e9}", None),
        ("x-request-id: ", None),
        ("x-other: 1", None),
    ];
    let mut minted = std::collections::HashSet::new();
    for (header, expected) in rows {
        let mut client = proxy.client().await;
        let answer = client.chat_with(&small(), &format!("{header}\r\n")).await;
        answer.assert_engine(200);
        let echoed = answer.header("x-request-id").expect("an id").to_owned();
        let at_engine = newest(&engine);
        let ids: Vec<_> = at_engine.headers.get_all("x-request-id").iter().collect();
        assert_eq!(
            ids,
            [echoed.as_str()],
            "{header}: one id, the same on both sides"
        );
        match expected {
            Some(expected) => assert_eq!(echoed, expected, "{header}"),
            None => {
                assert!(echoed.len() > 20 && echoed.len() < 64, "{header}: {echoed}");
                assert!(minted.insert(echoed), "{header}: made twice");
            }
        }
        let refused = client
            .chat_with(b"nonsense", &format!("{header}\r\n"))
            .await;
        refused.assert_refusal(400, "bad_request");
        assert!(expected.is_none_or(|id| refused.header("x-request-id") == Some(id)));
    }
    proxy.finish().await;
}
