//! Handing token ids to the engine: http-and-operations §10, parity rule.

use std::sync::LazyLock;

use serde_json::Value;
use sgl_edge::tokenizer::TokenSource;

use crate::support::routing::Router;

/// Model `on` forwards, model `off` is the default.
static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
    let model = |id: &str, forward: &str, port: u16| {
        format!(
            "  - {{id: {id}, aliases: [{id}-alias], tokenizer: \"{tokenizer}\"{forward}, \
             engines: {{static: [{{id: e-{id}, url: \"http://127.0.0.1:{port}\", role: plain}}]}}}}\n"
        )
    };
    Router::new(&format!(
        "models:\n{}{}",
        model("on", ", forward_input_ids: true", 1),
        model("off", "", 2)
    ))
});

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

#[test]
fn ids_of_a_plain_chat_are_spliced_in_and_the_messages_stay() {
    for name in ["on", "on-alias"] {
        let body = format!(
            r#"{{"model":"{name}","messages":[{}], "x":1e300 }}"#,
            user("Hi")
        );
        let prepared = ROUTER.prepare(&body).expect("good");
        assert_eq!(prepared.prompt.source, TokenSource::Chat);
        let ids = prepared.prompt.token_ids.as_ref().expect("ids");
        let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let expected = body
            .replace(name, "on")
            .replace(" }", &format!(r#" ,"input_ids":[{list}]}}"#));
        assert_eq!(prepared.body, expected.as_bytes());
    }
}

#[test]
fn off_is_the_default() {
    let body = format!(r#"{{"model":"off","messages":[{}]}}"#, user("Hi"));
    let prepared = ROUTER.prepare(&body).expect("good");
    assert_eq!(prepared.body, body.as_bytes());
}

#[test]
fn whatever_was_not_compared_with_the_engine_is_not_forwarded_and_says_why() {
    let hi = user("Hi");
    let rows = [
        (
            format!(r#""messages":[{hi}],"input_ids":[1,2]"#),
            "caller_ids",
            "input_ids",
        ),
        (
            format!(r#""messages":[{hi}],"input_ids":[[1]]"#),
            "caller_ids",
            "chat",
        ),
        (r#""prompt":"Hi""#.to_owned(), "no_messages", "text"),
        (r#""messages":[]"#.to_owned(), "not_rendered", "estimate"),
        (
            format!(
                r#""messages":[{hi}],"tools":[{{"type":"function","function":{{"name":"f"}}}}]"#
            ),
            "tools",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"functions":[]"#),
            "tools",
            "chat",
        ),
        (
            format!(r#""messages":[{hi},{{"role":"tool","content":"x"}}]"#),
            "tools",
            "chat",
        ),
        (
            format!(
                r#""messages":[{hi},{{"role":"assistant","content":"","tool_calls":[]}},{hi}]"#
            ),
            "tools",
            "chat",
        ),
        (
            r#""messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]"#.to_owned(),
            "content_parts",
            "chat",
        ),
        (
            r#""messages":[{"role":"user","content":null}]"#.to_owned(),
            "content_parts",
            "chat",
        ),
        (
            format!(
                r#""messages":[{hi},{{"role":"assistant","content":"x","reasoning_content":"y"}},{hi}]"#
            ),
            "reasoning_content",
            "chat",
        ),
        (
            format!(r#""messages":[{hi},{{"role":"system","content":"x"}}]"#),
            "message_order",
            "chat",
        ),
        (
            format!(r#""messages":[{hi},{hi}]"#),
            "message_order",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"chat_template_kwargs":{{"a":1}}"#),
            "template_fields",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"chat_template":"x""#),
            "template_fields",
            "text",
        ),
        (
            format!(r#""messages":[{hi}],"reasoning_effort":"low""#),
            "template_fields",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"reasoning":{{}}"#),
            "template_fields",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"task":"x""#),
            "template_fields",
            "chat",
        ),
        (
            format!(r#""messages":[{hi},{{"role":"assistant","content":"x"}}]"#),
            "continuation",
            "chat",
        ),
        (
            format!(r#""messages":[{hi}],"continue_final_message":false"#),
            "continuation",
            "chat",
        ),
        (
            r#""messages":[{"role":"nobody","content":"Hi"}]"#.to_owned(),
            "message_order",
            "text",
        ),
    ];
    for (fields, outcome, tokenized) in rows {
        let body = format!(r#"{{"model":"on",{fields}}}"#);
        let series = format!(
            "input_ids_forwarding_total{{model_id=\"on\",outcome=\"{outcome}\",tokenized=\"{tokenized}\"}}"
        );
        let before = ROUTER.series(&series);
        let prepared = ROUTER.prepare(&body).expect("good");
        assert_eq!(prepared.body, body.as_bytes(), "{outcome}");
        assert_eq!(ROUTER.series(&series), before + 1, "{series} for {body}");
    }
}

#[test]
fn a_following_turn_is_forwarded_too() {
    let turn = format!(
        r#"{},{{"role":"assistant","content":"x"}},{}"#,
        user("a"),
        user("b")
    );
    let system = r#"{"role":"system","content":"s"}"#;
    let body = format!(r#"{{"model":"on","messages":[{system},{turn}],"rid":"r"}}"#);
    let prepared = ROUTER.prepare(&body).expect("good");
    let sent: Value = serde_json::from_slice(&prepared.body).expect("JSON");
    assert_eq!(
        sent["input_ids"].as_array().map(Vec::len),
        prepared.prompt.token_ids.map(|i| i.len())
    );
    assert_eq!(sent["rid"], "r");
    let series =
        "input_ids_forwarding_total{model_id=\"on\",outcome=\"forwarded\",tokenized=\"chat\"}";
    assert!(ROUTER.series(series) >= 1);
}
