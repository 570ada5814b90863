//! Sessions and routing keys from header to engine, through a file: which headers are read, what a
//! bucket that refuses means, what a reload keeps, what is counted.

use std::sync::Arc;

use http::HeaderMap;
use sgl_edge::buckets::BucketPick;
use sgl_edge::config;
use sgl_edge::policies::Reason;
use sgl_edge::server::ApiError;
use sgl_edge::server::routing::Routing;
use sgl_edge::server::select::Selection;
use sgl_edge::state::AffinityKind;

use crate::support::engines::{MODEL, hold};
use crate::support::picks::ids;
use crate::support::routing::{Router, chat, headers};

const PLAIN: [(&str, &str); 4] = [
    ("E1", "plain"),
    ("E2", "plain"),
    ("E3", "plain"),
    ("E4", "plain"),
];

fn session(key: &str) -> HeaderMap {
    headers(&[("x-session-id", key)])
}

fn one(policy: &str) -> String {
    format!("    buckets: [{{id: b, groups: {{plain: {{policy: {policy}}}}}}}]\n")
}

fn reason(selection: &Selection) -> Reason {
    match &selection.pick {
        BucketPick::Plain(pick) => pick.reason,
        BucketPick::Pd { .. } => panic!("a plain engine"),
    }
}

#[test]
fn headers_are_read_only_when_some_group_needs_them() {
    let both = headers(&[("x-session-id", "s"), ("x-sgl-routing-key", "r")]);
    let rows = [
        ("{type: power_of_two}", None, None),
        ("{type: session_aware}", Some("s"), None),
        ("{type: sticky}", None, Some("r")),
    ];
    for (policy, session, routing) in rows {
        let router = Router::of(&PLAIN, &one(policy));
        let prepared = router.prepare_with(&chat(1, None), &both).expect("good");
        let request = prepared.bucket_request(&crate::support::picks::NO_PREFIX);
        assert_eq!(
            (request.session_key, request.routing_key),
            (session, routing),
            "{policy}"
        );
        let names = &router.routing.header_names;
        assert_eq!(
            names.len(),
            usize::from(session.is_some() || routing.is_some()),
            "{policy}"
        );
    }
}

#[test]
fn a_group_of_one_role_switches_a_header_on_for_the_model() {
    let buckets = "    affinity: {routing_key_header: X-Tenant}\n    buckets: [{id: b, groups: {pd: {prefill: {}, decode: {policy: {type: sticky}}}}}]\n";
    let router = Router::of(
        &[("P1", "prefill"), ("D1", "decode"), ("D2", "decode")],
        buckets,
    );
    let given = headers(&[("x-tenant", "t"), ("x-sgl-routing-key", "other")]);
    let prepared = router.prepare_with(&chat(1, None), &given).expect("good");
    assert_eq!(
        prepared
            .bucket_request(&crate::support::picks::NO_PREFIX)
            .routing_key,
        Some("t")
    );
}

#[test]
fn both_roles_of_a_pair_keep_their_own_bindings() {
    let engines = [
        ("D1", "decode"),
        ("D2", "decode"),
        ("D3", "decode"),
        ("P1", "prefill"),
        ("P2", "prefill"),
        ("P3", "prefill"),
    ];
    let policy = "{policy: {type: session_aware}}";
    let buckets = format!(
        "    buckets: [{{id: b, groups: {{pd: {{prefill: {policy}, decode: {policy}}}}}}}]\n"
    );
    let router = Router::of(&engines, &buckets);
    let first = router
        .select_with(&chat(1, None), &session("k"))
        .expect("served");
    for _ in 0..20 {
        let again = router
            .select_with(&chat(1, None), &session("k"))
            .expect("served");
        assert_eq!(ids(&again.pick), ids(&first.pick));
        let BucketPick::Pd { prefill, decode } = &again.pick else {
            panic!("a pair")
        };
        let reasons = [prefill.reason, decode.reason];
        assert_eq!(reasons, [Reason::SessionPrimary; 2]);
    }
}

#[test]
fn a_bound_engine_that_is_full_sends_the_request_to_the_next_bucket_and_back_later() {
    let policy = "policy: {type: session_aware, admission: {max_inflight_requests: 1}}";
    let router = Router::of(
        &PLAIN,
        &format!(
            "    buckets:\n      - {{id: small, max_context_tokens: 100, groups: {{plain: {{worker_ids: [E1], {policy}}}}}}}\n      - {{id: large, groups: {{plain: {{worker_ids: [E2, E3], {policy}}}}}}}\n"
        ),
    );
    let ask = || {
        router
            .select_with(&chat(1, None), &session("k"))
            .expect("served")
    };
    assert_eq!(
        (ask().bucket.as_str(), reason(&ask())),
        ("small", Reason::SessionPrimary)
    );
    let held = hold(&router.engine("E1"), 1);
    let elsewhere = ask();
    assert_eq!(
        (elsewhere.bucket.as_str(), reason(&elsewhere)),
        ("large", Reason::Assigned)
    );
    let again = ask();
    assert_eq!(ids(&again.pick), ids(&elsewhere.pick));
    assert_eq!(reason(&again), Reason::SessionPrimary);
    drop(held);
    assert_eq!(ask().bucket.as_str(), "small");
    // Every engine that was bound is full: the request is refused, not moved.
    let other = ids(&elsewhere.pick)[0].clone();
    let _held = (
        hold(&router.engine("E1"), 1),
        hold(&router.engine(&other), 1),
    );
    let refused = router.select_with(&chat(1, None), &session("k"));
    assert!(
        matches!(refused, Err(ApiError::PolicySelectionFailed)),
        "{refused:?}"
    );
}

#[test]
fn bindings_survive_a_reload_and_follow_the_ids_of_engines() {
    let buckets = one("{type: session_aware}");
    let mut router = Router::of(&PLAIN, &buckets);
    let keys: Vec<String> = (0..20).map(|key| format!("session-{key}")).collect();
    let ask = |router: &Router, key: &str| {
        let selection = router
            .select_with(&chat(1, None), &session(key))
            .expect("served");
        (ids(&selection.pick)[0].clone(), reason(&selection))
    };
    let before: Vec<_> = keys.iter().map(|key| ask(&router, key).0).collect();
    // The reload takes E4 away.
    let text = format!(
        "models:\n  - id: {MODEL}\n    engines: {{static: [{{id: E1, url: \"http://127.0.0.1:1\", role: plain}}, {{id: E2, url: \"http://127.0.0.1:2\", role: plain}}, {{id: E3, url: \"http://127.0.0.1:3\", role: plain}}]}}\n{buckets}"
    );
    let config = config::parse(&text, "t").unwrap_or_else(|errors| panic!("{errors}"));
    let next = Routing::build(Arc::new(config), &router.services, Some(&router.routing));
    router.routing = next.expect("it can be built");
    for (key, before) in keys.iter().zip(&before) {
        let (engine, reason) = ask(&router, key);
        match before.as_str() {
            "E4" => assert_eq!(reason, Reason::Assigned),
            _ => assert_eq!(
                (engine.as_str(), reason),
                (before.as_str(), Reason::SessionPrimary)
            ),
        }
    }
    let store = router
        .services
        .affinity
        .of(AffinityKind::Session, &MODEL.into());
    assert_eq!(store.len(), keys.len());
}

#[test]
fn decisions_and_outcomes_are_counted_for_complete_selections_only() {
    let router = Router::of(
        &PLAIN,
        &one("{type: sticky, admission: {max_inflight_requests: 1}}"),
    );
    let key = headers(&[("x-sgl-routing-key", "r")]);
    let ask = |given: &HeaderMap| router.select_with(&chat(1, None), given);
    let engine = ids(&ask(&key).expect("assigned").pick)[0].clone();
    ask(&key).expect("hit");
    ask(&HeaderMap::new()).expect("keyless");
    let held = hold(&router.engine(&engine), 1);
    ask(&key).expect_err("full");
    drop(held);
    router.engine(&engine).set_healthy(false);
    ask(&key).expect("remapped");
    for (outcome, reason) in [
        ("assigned", "sticky_assigned"),
        ("hit", "sticky_hit"),
        ("no_routing_key", "no_routing_key"),
        ("remap", "sticky_remap"),
    ] {
        let total = format!("sticky_total{{outcome=\"{outcome}\"}}");
        assert_eq!(router.series(&total), 1, "{outcome}");
        let decisions = format!("policy_decisions_total{{policy=\"sticky\",reason=\"{reason}\"}}");
        assert_eq!(router.series(&decisions), 1, "{reason}");
    }
    assert_eq!(router.series("affinity_bindings{kind=\"sticky\"}"), 1);
    assert_eq!(router.series("affinity_bindings{kind=\"session\"}"), 0);
    assert_eq!(
        router.series("affinity_evictions_total{kind=\"sticky\"}"),
        0
    );
}
