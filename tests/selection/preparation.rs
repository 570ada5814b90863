//! From a body to facts, and every refusal on the way: policy-semantics §2 and §6.

use sgl_edge::server::ApiError;
use sgl_edge::tokenizer::TokenSource;

use crate::support::routing::{Router, chat};

fn router() -> Router {
    Router::new(
        "models:
  - id: base
    aliases: [nick, 'with:colon']
    engines: {static: [{id: e1, url: 'http://127.0.0.1:1', role: plain}]}
  - id: m
    engines: {static: [{id: e2, url: 'http://127.0.0.1:2', role: plain}]}
  - id: split
    engines:
      static:
        - {id: p, url: 'http://127.0.0.1:3', role: prefill}
        - {id: d, url: 'http://127.0.0.1:4', role: decode}
    buckets: [{id: b, groups: {pd: {prefill: {}, decode: {}}}}]
",
    )
}

fn refused(body: &str) -> ApiError {
    let result = router().prepare(body);
    result.map(|_| ()).expect_err("refused")
}

fn bad_request(body: &str) -> String {
    let error = refused(body);
    assert_eq!(
        (error.status(), error.code()),
        (400, "bad_request"),
        "{body}"
    );
    error.message().into_owned()
}

#[test]
fn a_body_that_is_not_a_json_object_gets_one_fixed_text() {
    for body in [
        "",
        "[]",
        "3",
        "{",
        r#"{"model":"m"} x"#,
        r#"{"model":"m",}"#,
    ] {
        let text = bad_request(body);
        assert_eq!(text, "invalid request: body must be a JSON object");
    }
}

#[test]
fn a_repeated_routing_key_is_refused_by_name() {
    for key in ["model", "stream", "max_tokens", "max_completion_tokens"] {
        let text = bad_request(&format!(r#"{{"model":"m","{key}":null,"{key}":null}}"#));
        assert!(text.contains(key), "{text}");
    }
}

#[test]
fn a_missing_model_is_refused_by_name() {
    for body in [
        "{}",
        r#"{"model":null,"stream":true}"#,
        r#"{"messages":[]}"#,
    ] {
        assert!(bad_request(body).contains("`model`"), "{body}");
    }
}

#[test]
fn an_unknown_model_is_404_and_named_and_falls_through_to_nothing() {
    for name in [
        "x",
        "M",
        "base ",
        "nic",
        "x:base",
        ":base",
        "nick:adapter",
        "",
    ] {
        let error = refused(&format!(r#"{{"model":"{name}"}}"#));
        assert_eq!((error.status(), error.code()), (404, "model_not_found"));
        assert!(error.message().contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_first_error_wins_in_the_order_of_the_stages() {
    // A repeated key before an unknown model, an unknown model before a sum that overflows.
    let max = u64::MAX;
    bad_request(r#"{"model":"x","stream":true,"stream":true}"#);
    let error = refused(&format!(r#"{{"model":"x","max_tokens":{max}}}"#));
    assert_eq!(error.status(), 404);
}

#[test]
fn the_model_is_spelled_as_configured_only_when_an_alias_was_used() {
    let rows = [
        ("base", "base", "base"),
        ("nick", "base", "base"),
        ("base:adapter", "base", "base:adapter"),
        ("base:a:b", "base", "base:a:b"),
        ("base:", "base", "base:"),
        ("with:colon", "base", "base"),
        ("m", "m", "m"),
    ];
    for (sent, id, passed_on) in rows {
        let body = |name: &str| format!(r#"{{ "x":1e400, "model" : "{name}","y":[1, 2] }}"#);
        let prepared = router().prepare(&body(sent)).expect("served");
        assert_eq!(prepared.model.id.as_str(), id, "{sent}");
        assert_eq!(prepared.body, body(passed_on).as_bytes(), "{sent}");
    }
}

#[test]
fn without_a_tokenizer_the_length_is_a_quarter_of_the_body_and_at_least_one() {
    for pad in 0..9 {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "a".repeat(pad));
        let prepared = router().prepare(&body).expect("good");
        assert_eq!(prepared.prompt.source, TokenSource::Estimate);
        let quarter = u64::try_from(body.len() / 4).expect("small");
        assert_eq!(prepared.prompt.input_tokens, quarter, "{body}");
        assert_eq!(prepared.prompt.token_ids, None);
    }
    assert_eq!(sgl_edge::tokenizer::estimate_tokens(3), 1);
    assert_eq!(sgl_edge::tokenizer::estimate_tokens(0), 1);
}

#[test]
fn the_callers_own_ids_are_the_length_and_the_ids() {
    let prepared = router()
        .prepare(r#"{"model":"m","input_ids":[5,6,4294967295]}"#)
        .expect("good");
    assert_eq!(prepared.prompt.source, TokenSource::InputIds);
    assert_eq!(prepared.prompt.input_tokens, 3);
    let request = prepared.bucket_request(&crate::support::picks::NO_PREFIX);
    assert_eq!(request.token_ids, Some(&[5, 6, u32::MAX][..]));
    assert_eq!(request.input_tokens, 3);
    assert_eq!(request.model.as_str(), "m");
}

#[test]
fn ids_of_another_shape_are_the_engines_business_and_the_length_is_estimated() {
    for ids in [
        "[]",
        "[[1,2]]",
        "[-1]",
        "[4294967296]",
        "[1.5]",
        "\"1\"",
        "null",
    ] {
        let body = format!(r#"{{"model":"m","input_ids":{ids}}}"#);
        let prepared = router().prepare(&body).expect("good");
        assert_eq!(prepared.prompt.source, TokenSource::Estimate, "{ids}");
    }
}

#[test]
fn the_peak_is_the_input_plus_the_requested_output_and_unknown_without_one() {
    let rows = [
        ("", None),
        (r#","max_tokens":null"#, None),
        (r#","max_tokens":7"#, Some(10)),
        (r#","max_tokens":0"#, Some(3)),
        (r#","max_completion_tokens":8"#, Some(11)),
        (r#","max_completion_tokens":8,"max_tokens":7"#, Some(11)),
        (r#","max_tokens":7,"max_completion_tokens":8"#, Some(11)),
        (r#","max_completion_tokens":null,"max_tokens":7"#, Some(10)),
        (r#","max_completion_tokens":0,"max_tokens":7"#, Some(10)),
        (r#","max_completion_tokens":0"#, None),
        (r#","n":4,"max_tokens":7"#, Some(10)),
    ];
    for (budget, expected) in rows {
        let body = format!(r#"{{"model":"m","input_ids":[1,2,3]{budget}}}"#);
        let prepared = router().prepare(&body).expect("good");
        assert_eq!(prepared.expected_peak_tokens, expected, "{budget}");
        assert_eq!(
            prepared
                .bucket_request(&crate::support::picks::NO_PREFIX)
                .expected_peak_tokens,
            expected
        );
    }
}

#[test]
fn a_token_sum_that_overflows_is_the_clients_error() {
    let largest = u64::MAX;
    let fits = router().prepare(&chat(3, Some(largest - 3))).expect("good");
    assert_eq!(fits.expected_peak_tokens, Some(largest));
    for budget in [largest - 2, largest] {
        let text = bad_request(&chat(3, Some(budget)));
        assert!(text.contains("too large"), "{text}");
    }
    let estimated = format!(r#"{{"model":"m","max_completion_tokens":{largest}}}"#);
    assert!(bad_request(&estimated).contains("too large"));
}

#[test]
fn bootstrap_fields_belong_to_the_router_on_a_split_model_only() {
    for field in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
        let body = |model: &str| format!(r#"{{"model":"{model}","{field}":1}}"#);
        assert!(bad_request(&body("split")).contains("bootstrap"));
        // "base" and "m" have the implicit pair, whose second bucket is a pair too.
        let whole = Router::of(
            &[("e", "plain")],
            "    buckets: [{id: b, groups: {plain: {}}}]\n",
        );
        assert!(whole.prepare(&body("m")).is_ok());
    }
}

#[test]
fn preparing_touches_no_engine() {
    let router = router();
    let _kept: Vec<_> = (0..5).map(|_| router.prepare(&chat(1, None))).collect();
    for engine in router.routing.workers.members().all() {
        assert_eq!(engine.inflight(), 0);
    }
}
