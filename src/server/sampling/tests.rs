//! Contracts through `prepare`, with a routing built from YAML as a start builds it.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::*;
use crate::config;
use crate::policies::PolicyServices;
use crate::server::pool::WorkPool;
use crate::server::prepare::{Counting, Prepared, prepare};
use crate::server::routing::Routing;

struct Router {
    routing: Routing,
    metrics: Arc<Metrics>,
}

impl Router {
    /// Model `m`, alias `a`, with this `sampling`; and model `free` without any.
    fn new(sampling: &str) -> Self {
        Self::with_tokenizer(sampling, "null")
    }

    fn with_tokenizer(sampling: &str, tokenizer: &str) -> Self {
        let yaml = format!(
            "models:
  - {{id: m, aliases: [a], tokenizer: {tokenizer}, sampling: {sampling}, engines: {{static: [{{id: E, url: 'http://127.0.0.1:1', role: plain}}]}}, buckets: [{{id: b, limits: {{min: 0, max: 100}}, groups: {{plain: {{}}}}}}]}}
  - {{id: free, engines: {{static: [{{id: F, url: 'http://127.0.0.1:1', role: plain}}]}}}}
"
        );
        let config = config::parse(&yaml, "t").unwrap_or_else(|errors| panic!("{errors}"));
        let services = PolicyServices::new(Arc::default());
        Self {
            routing: Routing::build(Arc::new(config), &services, None).unwrap(),
            metrics: Arc::default(),
        }
    }

    async fn prepare(&self, body: &str) -> Result<Prepared, ApiError> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let headers = HeaderMap::new();
        prepare(
            &self.routing,
            &WorkPool::new(1),
            &self.metrics,
            &headers,
            body,
            Counting::AsNeeded,
        )
        .await
    }

    /// The body an engine gets.
    async fn sent(&self, body: &str) -> String {
        let prepared = self.prepare(body).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{body}: {}", error.message()));
        String::from_utf8(prepared.body.to_vec()).unwrap()
    }

    /// The text of a 400.
    async fn refusal(&self, body: &str) -> String {
        let error = self.prepare(body).await.expect_err(body);
        assert_eq!(
            (error.status(), error.code()),
            (400, "bad_request"),
            "{body}"
        );
        error.message().into_owned()
    }

    /// The value of a series; 0 when it does not exist.
    fn series(&self, series: &str) -> u64 {
        let text = String::from_utf8(self.metrics.render(&[])).unwrap();
        let prefix = format!("sgl_router_{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |value| value.parse().unwrap())
    }

    fn rejections(&self, param: &str) -> u64 {
        self.series(&format!(
            "sampling_contract_rejections_total{{param=\"{param}\"}}"
        ))
    }
}

/// A chat whose `key` has this JSON value.
fn chat(key: &str, value: &str) -> String {
    format!(r#"{{"model":"m","{key}":{value}}}"#)
}

/// Spellings of one, beyond the plain ones.
const ONES: [&str; 20] = [
    "1",
    "1.0",
    "1.000000000000000000000000001",
    "10e-1",
    "0.1E+1",
    "true",
    r#""1""#,
    r#""1.""#,
    r#""+1.0""#,
    r#"" \t1\n""#,
    r#""\u00a01\u2003""#,
    r#""\u001c1\u001f""#,
    r#""\u0031""#,
    r#""0_0_1""#,
    r#""1_0e-1""#,
    r#""1_0e-0_1""#,
    r#"".1e1""#,
    r#""001""#,
    r#""1.0000000000000000000000000000000000000000000000000000000000000""#,
    r#""\u0031\u002e\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030\u0030""#,
];

/// Numbers that are not one, and too large for a band up to 1.5.
const OTHERS: [&str; 10] = [
    "1.9",
    "-1",
    "1e400",
    "-1e400",
    "1e999999",
    r#""2""#,
    r#""inf""#,
    r#""-Infinity""#,
    r#""nan""#,
    r#""1_0""#,
];

/// What no engine reads as a number.
const UNREADABLE: [&str; 22] = [
    "[]",
    "[1]",
    "{}",
    r#"{"temperature":1}"#,
    r#""""#,
    r#"" ""#,
    r#""one""#,
    r#""true""#,
    r#""null""#,
    r#""0x1""#,
    r#""1 0""#,
    r#""1,0""#,
    r#""_1""#,
    r#""1_""#,
    r#""1__0""#,
    r#""1_.0""#,
    r#""1e_0""#,
    r#""\ud800""#,
    r#""\uff11""#,
    r#""1\u0000""#,
    r#""--1""#,
    r#""0000000000000000000000000000000000000000000000000000000000000000001""#,
];

#[tokio::test]
async fn a_fixed_value_is_added_where_a_request_has_none_and_wins_over_null() {
    for conflict in ["reject", "allow"] {
        let router = Router::new(&format!(
            "{{override: {{temperature: 0.7, top_k: -1}}, conflict: {conflict}}}"
        ));
        assert_eq!(
            router.sent("{ \"model\" : \"m\" } \n").await,
            "{ \"model\" : \"m\" ,\"temperature\":0.7,\"top_k\":-1} \n"
        );
        for body in [
            r#"{"model":"m","temperature":null}"#,
            r#"{"model":"m","temperature":0.2,"temperature":null}"#,
            r#"{"temper\u0061ture" : null ,"model":"m"}"#,
        ] {
            let sent = router.sent(body).await;
            let whole = body.strip_suffix('}').unwrap();
            assert_eq!(sent, format!("{whole},\"temperature\":0.7,\"top_k\":-1}}"));
            let read: serde_json::Value = serde_json::from_str(&sent).unwrap();
            assert_eq!(read["temperature"], 0.7, "the last of two keys is read");
        }
        let full = r#"{"model":"m","top_k":-1,"temperature":0.7}"#;
        assert_eq!(router.sent(full).await, full);
    }
}

#[tokio::test]
async fn every_spelling_of_an_equal_value_passes_as_sent() {
    for rule in ["1", "1.0", "{min: 1, max: 1}"] {
        let router = Router::new(&format!("{{override: {{temperature: {rule}}}}}"));
        for one in ONES {
            let body = chat("temperature", one);
            assert_eq!(router.sent(&body).await, body);
        }
    }
    let router = Router::new("{override: {n: 10, min_p: 0}}");
    let body = r#"{"model":"m","n":"1_0","min_p":false}"#;
    assert_eq!(router.sent(body).await, body);
}

#[tokio::test]
async fn another_number_or_no_number_is_refused_by_reject_and_passed_on_by_allow() {
    let reject = Router::new("{override: {temperature: 1}, conflict: reject}");
    let allow = Router::new("{override: {temperature: 1}, conflict: allow}");
    for value in OTHERS.iter().chain(&UNREADABLE) {
        let body = chat("temperature", value);
        assert_eq!(
            reject.refusal(&body).await,
            "invalid request: `temperature` must be 1 for this model"
        );
        assert_eq!(allow.sent(&body).await, body);
    }
    let refused = OTHERS.len() + UNREADABLE.len();
    assert_eq!(reject.rejections("temperature"), refused as u64);
    assert_eq!(allow.rejections("temperature"), 0);
}

#[tokio::test]
async fn a_band_takes_its_ends_adds_nothing_and_refuses_the_rest() {
    let router = Router::new("{override: {temperature: {min: 0.5, max: 1.5}}}");
    for value in ["null", "0.5", "1.5", "\"1.5\"", "true", "15e-1"] {
        let body = chat("temperature", value);
        assert_eq!(router.sent(&body).await, body);
    }
    let none = r#"{"model":"m"}"#;
    assert_eq!(router.sent(none).await, none);
    let just_out = ["0.4999999999999999", "1.5000000000000003", "false"];
    for value in just_out.iter().chain(&OTHERS).chain(&UNREADABLE) {
        assert_eq!(
            router.refusal(&chat("temperature", value)).await,
            "invalid request: `temperature` must be from 0.5 to 1.5 for this model"
        );
    }
}

#[tokio::test]
async fn the_last_of_equal_keys_is_judged_under_any_spelling_of_the_key() {
    let router = Router::new("{override: {temperature: 1}}");
    let good = r#"{"model":"m","temperature":[2],"temperatur\u0065":1}"#;
    assert_eq!(router.sent(good).await, good);
    let bad = r#"{"model":"m","temperature":1,"\u0074emperature":2}"#;
    router.refusal(bad).await;
    let inner = r#"{"model":"m","temperature":1,"x":{"temperature":2},"Temperature":3}"#;
    assert_eq!(
        router.sent(inner).await,
        inner,
        "only top-level keys, exactly"
    );
}

#[tokio::test]
async fn every_violation_is_counted_and_the_first_of_the_table_is_reported() {
    let router = Router::new(
        "{override: {n: 1, top_p: {min: 0.5, max: 1}, temperature: 1, min_p: 0, top_k: 5}}",
    );
    let body = r#"{"model":"m","n":2,"min_p":0,"top_p":0.1,"top_k":"x"}"#;
    assert_eq!(
        router.refusal(body).await,
        "invalid request: `top_p` must be from 0.5 to 1 for this model"
    );
    let counts = ["temperature", "top_p", "top_k", "min_p", "n"].map(|p| router.rejections(p));
    assert_eq!(counts, [0, 1, 1, 0, 1]);
}

#[tokio::test]
async fn fields_without_a_rule_and_models_without_a_contract_may_say_anything() {
    let router = Router::new("{override: {min_p: {min: 0, max: 1}}}");
    for param in SamplingParam::ALL {
        for value in ["1e400", "[1e400]", "\"x\"", "{\"a\":[]}", "-0.0"] {
            let key = param.as_str();
            let body = format!(r#"{{"model":"free","{key}":{value},"{key}":{value}}}"#);
            assert_eq!(router.sent(&body).await, body);
            if param != SamplingParam::MinP {
                let body = chat(key, value);
                assert_eq!(router.sent(&body).await, body);
            }
        }
    }
}

#[tokio::test]
async fn an_untouched_body_is_not_copied() {
    let router = Router::new("{override: {temperature: 1}}");
    let body = Bytes::from_static(br#"{"model":"m","temperature":1}"#);
    let pool = WorkPool::new(1);
    let headers = HeaderMap::new();
    let prepared = prepare(
        &router.routing,
        &pool,
        &router.metrics,
        &headers,
        body.clone(),
        Counting::AsNeeded,
    )
    .await;
    assert_eq!(prepared.unwrap().body.as_ptr(), body.as_ptr());
}

#[tokio::test]
async fn an_alias_has_the_contract_of_its_model_and_so_has_an_adapter() {
    let router = Router::new("{override: {n: 1}}");
    assert_eq!(
        router.sent(r#"{"model":"a"}"#).await,
        r#"{"model":"m","n":1}"#
    );
    assert_eq!(
        router.sent(r#"{"model":"m:lora"}"#).await,
        r#"{"model":"m:lora","n":1}"#
    );
    router.refusal(r#"{"model":"a","n":2}"#).await;
}

#[tokio::test]
async fn a_refused_request_is_not_tokenized_and_an_accepted_one_is_as_the_client_sent_it() {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
    let router = Router::with_tokenizer("{override: {temperature: 1}}", tokenizer);
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}]"#;
    router
        .refusal(&format!(r#"{chat},"temperature":2}}"#))
        .await;
    assert_eq!(router.series("tokenize_seconds_count"), 0);
    router.sent(&format!("{chat}}}")).await;
    assert_eq!(router.series("tokenize_seconds_count"), 1);

    let estimating = Router::new("{override: {temperature: 1}}");
    let prepared = estimating.prepare(r#"{"model":"m"}"#).await.unwrap();
    assert_eq!(prepared.prompt.input_tokens, 13 / 4);
}

#[tokio::test]
async fn an_unknown_model_comes_before_its_sampling() {
    let router = Router::new("{override: {temperature: 1}}");
    let error = router.prepare(r#"{"model":"x","temperature":2}"#).await;
    assert_eq!(error.unwrap_err().code(), "model_not_found");
    assert_eq!(router.rejections("temperature"), 0);
}

#[tokio::test]
async fn refusals_never_echo_what_was_sent() {
    let router = Router::new("{override: {temperature: 1}}");
    let long = format!("\"{}\"", "secret".repeat(100_000));
    let text = router.refusal(&chat("temperature", &long)).await;
    assert!(text.len() < 100 && !text.contains("secret"), "{text}");
    let digits = format!("1.{}1", "0".repeat(1_000_000));
    let body = chat("temperature", &digits);
    assert_eq!(
        router.sent(&body).await,
        body,
        "a long number is still a number"
    );
}

#[tokio::test]
async fn numbers_are_added_in_the_spelling_class_of_the_file() {
    let rows = [
        ("temperature: 1", r#""temperature":1"#),
        ("temperature: 1.0", r#""temperature":1.0"#),
        ("temperature: +1", r#""temperature":1"#),
        ("temperature: 0.1", r#""temperature":0.1"#),
        (
            "temperature: 0.30000000000000004",
            r#""temperature":0.30000000000000004"#,
        ),
        ("top_p: 1e-9", r#""top_p":1e-9"#),
        ("frequency_penalty: -0.0", r#""frequency_penalty":0.0"#),
        ("presence_penalty: -2", r#""presence_penalty":-2"#),
        ("top_k: 5e1", r#""top_k":50"#),
        ("top_k: -1.0", r#""top_k":-1"#),
        ("top_k: 9007199254740991", r#""top_k":9007199254740991"#),
        ("n: 128.0", r#""n":128"#),
    ];
    for (rule, expected) in rows {
        let router = Router::new(&format!("{{override: {{{rule}}}}}"));
        let sent = router.sent(r#"{"model":"m"}"#).await;
        assert_eq!(sent, format!(r#"{{"model":"m",{expected}}}"#));
        assert_eq!(router.sent(&sent).await, sent, "it fulfils its own rule");
    }
}
