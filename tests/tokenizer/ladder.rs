//! The rungs below the rendered chat, the estimate, and the labels.

use std::collections::BTreeSet;

use sgl_edge::tokenizer::{FallReason, TokenSource, estimate_tokens};

use crate::fixtures::DEMO;

#[test]
fn the_estimate_is_a_quarter_of_the_bytes_and_never_zero() {
    let table = [(0, 1), (3, 1), (4, 1), (7, 1), (8, 2), (1_000_001, 250_000)];
    for (bytes, tokens) in table {
        assert_eq!(estimate_tokens(bytes), tokens, "{bytes} bytes");
    }
    assert_eq!(estimate_tokens(u64::MAX), u64::MAX / 4);
}

#[test]
fn raw_text_takes_the_first_field_that_has_any() {
    let table = [
        (r#"{"prompt":"one two","text":"no"}"#, "one two"),
        (r#"{"prompt":["one",7,"two"]}"#, "one\ntwo"),
        (r#"{"prompt":[1,2,3],"text":"yes"}"#, "yes"),
        (r#"{"prompt":"","text":"yes"}"#, "yes"),
        (r#"{"prompt":null,"messages":[],"text":"yes"}"#, "yes"),
    ];
    for (body, text) in table {
        let prompt = DEMO.encode_chat(body.as_bytes()).expect("ids");
        let ids = DEMO.encode_text(text, true).expect("ids");
        assert_eq!(prompt.ids, ids, "{body}");
        assert_eq!(prompt.source, TokenSource::Text, "{body}");
        assert_eq!(prompt.fell, Some(FallReason::NoMessages), "{body}");
    }
}

#[test]
fn messages_that_cannot_be_rendered_are_joined_by_newlines() {
    let body = r#"{"messages":[
        {"role":"nobody","content":"one"},
        {"role":"user","content":[{"type":"text","text":"two"},{"type":"image_url"},{"text":"three"}]},
        {"role":"user","content":null},
        {"role":"user"},
        "four"]}"#;
    let prompt = DEMO.encode_chat(body.as_bytes()).expect("ids");
    let joined = DEMO.encode_text("one\ntwo\nthree", true).expect("ids");
    assert_eq!(prompt.ids, joined);
    assert_eq!(prompt.fell, Some(FallReason::Shape));
}

#[test]
fn without_any_text_only_the_estimate_is_left_and_the_first_reason_is_told() {
    let table = [
        ("{}", FallReason::NoMessages),
        (r#"{"messages":[]}"#, FallReason::NoMessages),
        (
            r#"{"messages":[{"role":"nobody","content":""}]}"#,
            FallReason::Shape,
        ),
    ];
    for (body, reason) in table {
        assert_eq!(DEMO.encode_chat(body.as_bytes()), None, "{body}");
        assert_eq!(DEMO.try_encode_chat(body.as_bytes()), Err(reason), "{body}");
    }
}

#[test]
fn labels_are_distinct_and_the_contract_ones_are_spelled_so() {
    let sources = TokenSource::ALL.map(TokenSource::label);
    assert_eq!(sources, ["input_ids", "chat", "text", "estimate"]);
    let reasons: BTreeSet<_> = FallReason::ALL
        .iter()
        .map(|reason| reason.label())
        .collect();
    assert_eq!(reasons.len(), FallReason::ALL.len());
}
