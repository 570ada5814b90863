//! What a client may know about a failure.
//!
//! Status follows from the class and the class from the variant, nothing else, so that two
//! conditions of one class cannot drift apart. No text here holds an engine address, a path or a
//! source chain; those go to the log. Source: policy-semantics §6, http-and-operations §4,
//! contract §3.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::ids::Stage;

/// Every refusal this router makes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The request is wrong; the text says how, without echoing it.
    BadRequest(Cow<'static, str>),
    /// JSON, but not with the fields of the route; the text says which, without echoing it.
    Unprocessable(Cow<'static, str>),
    /// No or a wrong API key.
    Unauthorized,
    /// No such route.
    NotFound,
    /// The route exists with other methods, which are listed here.
    MethodNotAllowed(&'static str),
    /// The client stopped sending its request.
    RequestTimeout,
    /// An HTTP/2 body over 64 KiB came without a length.
    LengthRequired,
    /// The body is larger than `limits.max_body`.
    PayloadTooLarge,
    /// The model is not configured; its name as sent.
    ModelNotFound(String),
    /// A cap of the whole router is reached.
    Overloaded,
    /// Every fitting bucket was tried and at least one refused by admission.
    PolicySelectionFailed,
    /// Every fitting bucket was tried and the last one had no engine for this stage.
    NoWorkers(Stage),
    /// The breaker refused at dispatch; what is left of its cool-down.
    BreakerOpen(Duration),
    /// The engine's address cannot be used.
    WorkerMisconfigured,
    /// The engine cannot be reached or hung up before it answered.
    UpstreamUnreachable,
    /// The engine's answer broke off before anything was passed on; the status it had sent.
    UpstreamBodyIncomplete(u16),
    /// The prefill half of a pair failed.
    PrefillFailed,
    /// The engine took longer than a configured limit.
    UpstreamTimeout,
    /// The request outlived `timeouts.lifetime`.
    StaleRequestExpired,
    /// A fault of this router or its configuration.
    Internal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    BadRequest,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    LengthRequired,
    PayloadTooLarge,
    Unprocessable,
    NoTarget,
    Upstream,
    Timeout,
    Internal,
}

impl Class {
    const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::LengthRequired => 411,
            Self::PayloadTooLarge => 413,
            Self::Unprocessable => 422,
            Self::Internal => 500,
            Self::Upstream => 502,
            Self::NoTarget => 503,
            Self::Timeout => 504,
        }
    }
}

impl ApiError {
    /// A 400 with this text.
    #[must_use]
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::BadRequest(message.into())
    }

    const fn row(&self) -> (Class, &'static str, &'static str) {
        match self {
            Self::BadRequest(_) => (Class::BadRequest, "bad_request", ""),
            Self::Unprocessable(_) => (Class::Unprocessable, "unprocessable_entity", ""),
            Self::Unauthorized => (
                Class::Unauthorized,
                "unauthorized",
                "missing or invalid API key",
            ),
            Self::NotFound => (Class::NotFound, "not_found", "no such route"),
            Self::MethodNotAllowed(_) => (
                Class::MethodNotAllowed,
                "method_not_allowed",
                "this route does not take this method",
            ),
            Self::RequestTimeout => (
                Class::RequestTimeout,
                "request_timeout",
                "the request body did not arrive in time",
            ),
            Self::LengthRequired => (
                Class::LengthRequired,
                "length_required",
                "an HTTP/2 body over 64 KiB needs a content-length",
            ),
            Self::PayloadTooLarge => (
                Class::PayloadTooLarge,
                "payload_too_large",
                "the request body is too large",
            ),
            Self::ModelNotFound(_) => (Class::NotFound, "model_not_found", ""),
            Self::Overloaded => (Class::NoTarget, "overloaded", "the router is at its limit"),
            Self::PolicySelectionFailed => (
                Class::NoTarget,
                "policy_selection_failed",
                "service unavailable",
            ),
            Self::NoWorkers(stage) => (
                Class::NoTarget,
                no_workers_code(*stage),
                "service unavailable",
            ),
            Self::BreakerOpen(_) => (Class::NoTarget, "breaker_open", "service unavailable"),
            Self::WorkerMisconfigured => (
                Class::NoTarget,
                "worker_misconfigured",
                "service unavailable",
            ),
            Self::UpstreamUnreachable => (
                Class::Upstream,
                "upstream_unreachable",
                "the engine could not be reached",
            ),
            Self::UpstreamBodyIncomplete(_) => (
                Class::Upstream,
                "upstream_body_incomplete",
                "the engine's answer broke off",
            ),
            Self::PrefillFailed => (Class::Upstream, "prefill_failed", "prefill failed"),
            Self::UpstreamTimeout => (
                Class::Timeout,
                "upstream_timeout",
                "the engine did not answer in time",
            ),
            Self::StaleRequestExpired => (
                Class::Timeout,
                "stale_request_expired",
                "the request exceeded its lifetime",
            ),
            Self::Internal => (Class::Internal, "internal_error", "internal error"),
        }
    }

    /// HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.row().0.status()
    }

    /// The stable code of header and body.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.row().1
    }

    /// The text for the client.
    #[must_use]
    pub fn message(&self) -> Cow<'static, str> {
        match self {
            Self::BadRequest(message) | Self::Unprocessable(message) => message.clone(),
            Self::ModelNotFound(model) => {
                let shown: String = model.chars().take(256).collect();
                Cow::Owned(format!("model `{shown}` is not served here"))
            }
            _ => Cow::Borrowed(self.row().2),
        }
    }

    /// Whole seconds for `Retry-After`, at least 1; `None` where waiting would not help.
    ///
    /// Source: http-and-operations §4, field-lessons L59.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        match self {
            Self::Overloaded | Self::PolicySelectionFailed => Some(1),
            Self::NoWorkers(_) => Some(1),
            Self::BreakerOpen(left) => Some(left.as_secs() + 1),
            _ => None,
        }
    }

    /// The JSON envelope.
    #[must_use]
    pub fn body(&self) -> Bytes {
        #[derive(Serialize)]
        struct Envelope<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            r#type: &'static str,
            code: &'static str,
            message: &'a str,
            param: Option<()>,
        }
        let envelope = Envelope {
            error: Inner {
                r#type: if self.status() < 500 {
                    "invalid_request_error"
                } else {
                    "server_error"
                },
                code: self.code(),
                message: &self.message(),
                param: None,
            },
        };
        Bytes::from(serde_json::to_vec(&envelope).expect("strings always serialize"))
    }
}

const fn no_workers_code(stage: Stage) -> &'static str {
    match stage {
        Stage::Plain => "no_healthy_workers",
        Stage::Prefill => "no_prefill_workers_available",
        Stage::Decode => "no_decode_workers_available",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_has_the_status_and_code_of_the_table() {
        let rows = [
            (ApiError::bad_request("x"), 400, "bad_request"),
            (ApiError::ModelNotFound("m".into()), 404, "model_not_found"),
            (ApiError::PayloadTooLarge, 413, "payload_too_large"),
            (ApiError::Unauthorized, 401, "unauthorized"),
            (ApiError::NotFound, 404, "not_found"),
            (
                ApiError::MethodNotAllowed("POST"),
                405,
                "method_not_allowed",
            ),
            (ApiError::Overloaded, 503, "overloaded"),
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
            (ApiError::PrefillFailed, 502, "prefill_failed"),
        ];
        for (error, status, code) in rows {
            assert_eq!((error.status(), error.code()), (status, code));
            let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
            assert_eq!(body["error"]["code"], code);
            let kind = if status < 500 {
                "invalid_request_error"
            } else {
                "server_error"
            };
            assert_eq!(body["error"]["type"], kind);
            assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        }
    }

    #[test]
    fn a_hostile_model_name_is_cut_and_escaped() {
        let error = ApiError::ModelNotFound(format!("\"{}", "x".repeat(10_000)));
        let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
        assert!(body["error"]["message"].as_str().unwrap().len() < 400);
    }

    #[test]
    fn an_open_breaker_says_when_to_come_back() {
        let error = ApiError::BreakerOpen(Duration::from_millis(11_500));
        assert_eq!(error.retry_after_secs(), Some(12));
        assert_eq!(ApiError::Internal.retry_after_secs(), None);
    }
}
