//! The chat route of a healthy engine.

use serde_json::{Value, json};

use super::client::{answer, chat_bytes, engine, eventually, post, read_until, send, user, with};
use crate::mock::{EngineConfig, Framing, fnv64, start};

#[tokio::test]
async fn an_answer_has_every_field_in_the_order_of_the_wire() {
    let engine = engine().await;
    let reply = answer(&engine, &user("grüße 世界 🦀"), "").await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("x-mock-engine: mock"), "{}", reply.head);
    let reply = reply.json();
    let keys: Vec<_> = reply.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "id", "object", "created", "model", "choices", "usage", "metadata"
        ]
    );
    assert_eq!(
        reply["choices"],
        json!([{
            "index": 0,
            "message": {
                "role": "assistant", "content": "grüße 世界 🦀",
                "reasoning_content": null, "tool_calls": null,
            },
            "logprobs": null, "finish_reason": "stop", "matched_stop": 2,
        }])
    );
    assert_eq!(reply["id"].as_str().unwrap().len(), 32);
    assert_eq!(reply["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn limits_choices_parts_and_ids_are_honoured() {
    let engine = engine().await;
    let parts = json!([{"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]);
    let body = json!({
        "messages": [{"role": "user", "content": parts}], "n": 2, "rid": "mine",
        "max_tokens": 9, "max_completion_tokens": 2, "input_ids": [1, 2, 3, 4, 5],
    });
    let reply = answer(&engine, &body, "").await.json();
    assert_eq!(reply["id"], "mine");
    assert_eq!(reply["model"], "demo");
    assert_eq!(reply["usage"]["prompt_tokens"], 5);
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    for choice in reply["choices"].as_array().unwrap() {
        assert_eq!(choice["message"]["content"], "one two");
        assert_eq!(choice["finish_reason"], "length");
    }
}

#[tokio::test]
async fn stream_events_come_in_the_order_of_the_wire() {
    let engine = engine().await;
    let more = json!({"stream": true, "rid": "r", "stream_options": {"include_usage": true}});
    let reply = answer(&engine, &with(user("hi you"), more), "").await;
    assert!(reply.head.contains("content-type: text/event-stream"));
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let created: Value = serde_json::from_str(&events[0]).unwrap();
    let head = format!(
        r#"{{"id":"r","object":"chat.completion.chunk","created":{},"model":"m","choices":["#,
        created["created"]
    );
    let choice = |delta: &str, finish: &str| {
        format!(
            r#"{head}{{"index":0,"delta":{{"reasoning_content":null{delta}}},"logprobs":null,{finish}}}]}}"#
        )
    };
    let open = r#""finish_reason":null,"matched_stop":null"#;
    let usage = r#""usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}"#;
    assert_eq!(
        events,
        [
            choice(r#","role":"assistant","content":"""#, open),
            choice(r#","content":"hi""#, open),
            choice(r#","content":" you""#, open),
            choice("", r#""finish_reason":"stop","matched_stop":2"#),
            format!("{head}],{usage}}}"),
        ]
    );
}

#[tokio::test]
async fn headers_are_held_back_until_the_first_token() {
    let engine = engine().await;
    let body = with(user("hi"), json!({"stream": true}));
    let slow = chat_bytes(&body, "x-sgl-mock-ttft-ms: 3600000\r\n");
    let waiting = send(engine.addr(), &slow).await;
    eventually("it is being computed", || engine.stats().streams == 1).await;
    // A request that came later is answered while the first has not even a status line.
    assert_eq!(answer(&engine, &body, "").await.streamed_text(), "hi");
    let read = waiting.try_read(&mut [0]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn tool_calls_are_made_when_required_named_or_asked_for() {
    let engine = engine().await;
    let tools = json!([
        {"type": "function", "function": {"name": "first", "parameters": {}}},
        {"type": "function", "function": {"name": "second", "parameters": {}}},
    ]);
    let named = json!({"type": "function", "function": {"name": "second"}});
    for (text, choice, expected) in [
        ("x", json!("required"), Some("first")),
        ("x", named, Some("second")),
        ("use a tool", json!("auto"), Some("first")),
        ("use a tool", json!("none"), None),
        ("x", json!("auto"), None),
    ] {
        let body = with(user(text), json!({"tools": tools, "tool_choice": choice}));
        let reply = answer(&engine, &body, "").await.json();
        let call = &reply["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(
            call["function"]["name"].as_str(),
            expected,
            "{text} {choice}"
        );
        if expected.is_some() {
            assert_eq!(call["function"]["arguments"], "{}");
            assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
        }
    }
    let body = with(user("x"), json!({"tool_choice": "required"}));
    assert_eq!(answer(&engine, &body, "").await.status, 400);
}

#[tokio::test]
async fn bad_bodies_are_refused_in_the_flat_shape() {
    let engine = engine().await;
    let no_messages = json!({"model": "m"});
    let empty = json!({"messages": []});
    let bad_stream = with(user("x"), json!({"stream": "maybe"}));
    let no_tokens = with(user("x"), json!({"max_tokens": 0}));
    let too_long = with(user("x"), json!({"input_ids": vec![1; 131_073]}));
    for body in [no_messages, empty, bad_stream, no_tokens, too_long] {
        let reply = answer(&engine, &body, "").await;
        assert_eq!(reply.status, 400, "{body}");
        let error = reply.json();
        assert_eq!(error["object"], "error");
        assert_eq!(error["code"], 400);
    }
    let untyped = post(&engine, "/v1/chat/completions", &user("x").to_string()).await;
    assert_eq!(untyped.json()["type"], "Bad Request");
    assert_eq!(engine.stats().errors, 6);
}

#[tokio::test]
async fn bodies_are_recorded_byte_for_byte_with_their_framing() {
    let engine = engine().await;
    let odd = br#"{ "messages":[{"role":"user","content":"\u0041"}], "n" : 1 }"#;
    let head = "POST /v1/chat/completions?q=1 HTTP/1.1\r\nhost: e\r\nx-a: 1\r\n\
                content-type: application/json; charset=utf-8\r\n";
    let plain = format!("{head}content-length: {}\r\n\r\n", odd.len());
    let mut first = send(engine.addr(), &[plain.as_bytes(), odd].concat()).await;
    read_until(&mut first, "metadata").await;
    let chunked = format!(
        "{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n",
        odd.len()
    );
    let second = [chunked.as_bytes(), odd, b"\r\n0\r\n\r\n"].concat();
    tokio::io::AsyncWriteExt::write_all(&mut first, &second)
        .await
        .unwrap();
    read_until(&mut first, "metadata").await;
    let recorded = engine.recorded();
    assert_eq!(recorded.len(), 2);
    for request in &recorded {
        assert_eq!(&request.body[..], odd);
        assert_eq!(request.connection, 1);
        assert_eq!(request.path, "/v1/chat/completions?q=1");
        assert_eq!(request.headers["x-a"], "1");
        assert_eq!(request.fnv64(), fnv64(odd));
    }
    assert_eq!(
        recorded[0].framing,
        Framing::ContentLength(odd.len() as u64)
    );
    assert_eq!(recorded[1].framing, Framing::Chunked);
    assert_eq!(engine.stats().bytes_in, 2 * odd.len() as u64);
}

#[tokio::test]
async fn a_full_queue_is_503_and_an_event_inside_a_stream() {
    let config = EngineConfig {
        max_running_requests: 1,
        max_queued_requests: Some(0),
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    let stream = with(user("x"), json!({"stream": true}));
    let stall = chat_bytes(&stream, "x-sgl-mock-stall-after-tokens: 1\r\n");
    let mut first = send(engine.addr(), &stall).await;
    read_until(&mut first, "content\":\"x\"").await;
    let refused = answer(&engine, &user("x"), "").await;
    assert_eq!(
        (refused.status, refused.json()["type"].as_str()),
        (503, Some("503"))
    );
    let refused = answer(&engine, &stream, "").await;
    let error: Value = serde_json::from_str(&refused.events()[0]).unwrap();
    assert_eq!(refused.status, 200);
    assert_eq!(error["error"]["type"], "SERVICE_UNAVAILABLE");
    assert_eq!(refused.events()[1], "[DONE]");
}

#[tokio::test]
async fn an_instant_engine_answers_both_forms_and_counts_its_requests() {
    let config = EngineConfig {
        instant: true,
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    let whole = answer(&engine, &user("x"), "").await;
    assert_eq!(whole.status, 200);
    assert_eq!(whole.json()["object"], "chat.completion");
    let body = with(user("x"), json!({"stream": true, "max_tokens": 29}));
    let stream = answer(&engine, &body, "").await;
    let events = stream.events();
    assert_eq!(events.len(), 32, "role, tokens, finish, done: {events:?}");
    assert_eq!(events[31], "[DONE]");
    assert_eq!(stream.streamed_finish().as_deref(), Some("stop"));
    assert_eq!(stream.streamed_text(), " token".repeat(29));
    let broken = post(&engine, "/v1/chat/completions", r#"{"stream":tr"#).await;
    assert_eq!(broken.status, 400);
    eventually("all are booked", || engine.stats().inflight == 0).await;
    let stats = engine.stats();
    assert_eq!((stats.completed, stats.errors, stats.aborted), (2, 1, 0));
}
