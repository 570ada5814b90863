//! What a client and a log may read of a failure: policy-semantics §6.

use std::time::Duration;

use sgl_edge::ids::Stage;
use sgl_edge::policies::{Limit, PickError, Rejection};
use sgl_edge::server::ApiError;

/// Every row of the table of conditions, with its status and code.
fn rows() -> Vec<(ApiError, u16, &'static str)> {
    vec![
        (ApiError::bad_request("why"), 400, "bad_request"),
        (ApiError::ModelNotFound("x".into()), 404, "model_not_found"),
        (ApiError::PayloadTooLarge, 413, "payload_too_large"),
        (
            ApiError::PolicySelectionFailed,
            503,
            "policy_selection_failed",
        ),
        (ApiError::NoWorkers(Stage::Plain), 503, "no_healthy_workers"),
        (
            ApiError::NoWorkers(Stage::Prefill),
            503,
            "no_prefill_workers_available",
        ),
        (
            ApiError::NoWorkers(Stage::Decode),
            503,
            "no_decode_workers_available",
        ),
        (ApiError::Internal, 500, "internal_error"),
        (ApiError::BreakerOpen(Duration::ZERO), 503, "breaker_open"),
        (ApiError::WorkerMisconfigured, 503, "worker_misconfigured"),
        (ApiError::UpstreamUnreachable, 502, "upstream_unreachable"),
        (
            ApiError::UpstreamBodyIncomplete(200),
            502,
            "upstream_body_incomplete",
        ),
        (ApiError::UpstreamTimeout, 504, "upstream_timeout"),
        (ApiError::StaleRequestExpired, 504, "stale_request_expired"),
    ]
}

#[test]
fn every_row_of_the_http_table() {
    for (error, status, code) in rows() {
        assert_eq!((error.status(), error.code()), (status, code));
        let body: serde_json::Value = serde_json::from_slice(&error.body()).expect("JSON");
        let kind = match status {
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        let expected = serde_json::json!({"error": {
            "type": kind, "code": code, "message": error.message(), "param": null,
        }});
        assert_eq!(body, expected, "{code}");
    }
}

#[test]
fn every_refusal_for_want_of_an_engine_says_the_same_to_a_client() {
    for (error, status, code) in rows() {
        if status == 503 {
            assert_eq!(error.message(), "service unavailable", "{code}");
        }
    }
    assert_eq!(ApiError::Internal.message(), "internal error");
}

#[test]
fn an_open_breaker_asks_for_at_least_what_is_left_of_its_cool_down() {
    for millis in [0, 1, 999, 1000, 20_000, 20_001] {
        let left = Duration::from_millis(millis);
        let after = ApiError::BreakerOpen(left).retry_after_secs();
        let after = Duration::from_secs(after.expect("waiting helps"));
        assert!(
            after >= left && after <= left + Duration::from_secs(1),
            "{left:?}"
        );
        assert!(!after.is_zero());
    }
    for (error, status, code) in rows() {
        if status != 503 {
            assert_eq!(error.retry_after_secs(), None, "{code}");
        }
    }
    let selection = ApiError::PolicySelectionFailed;
    assert_eq!(selection.retry_after_secs(), Some(1));
}

#[test]
fn a_log_names_every_refused_engine_with_its_cap() {
    let rejection = |id: &str, limit| Rejection {
        engine: id.into(),
        limit,
    };
    let first = rejection("e1", Limit::KvTokens);
    let list = vec![first.clone(), rejection("e2", Limit::RunningRequests)];
    let rows = [
        (
            PickError::NoAdmissibleEngine(list),
            "no admissible engine (e1: max_kv_tokens, e2: max_running_requests)",
        ),
        (
            PickError::AdmissionRejected(first),
            "admission rejected (e1: max_kv_tokens)",
        ),
    ];
    for (error, expected) in rows {
        assert_eq!(error.to_string(), expected);
    }
}
