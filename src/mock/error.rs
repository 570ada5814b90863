//! Errors as an engine writes them: flat, unlike the nested ones of a router.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

/// A refusal in the engine's own shape,
/// `{"object":"error","message","type","param":null,"code"}` (engine-wire §4.1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status} {kind}: {message}")]
pub(crate) struct EngineError {
    pub(crate) status: StatusCode,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl EngineError {
    /// The body or the content type does not have the right form.
    pub(crate) fn schema(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "Bad Request".to_owned(),
            message: message.into(),
        }
    }

    /// The form is right, a value is not.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError".to_owned(),
            message: message.into(),
        }
    }

    /// The scheduler ended the request with a status; its `type` is that number as text.
    pub(crate) fn aborted(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: status.as_u16().to_string(),
            message: message.into(),
        }
    }

    /// The flat JSON body of an answer with this status.
    pub(crate) fn body(&self) -> Value {
        json!({
            "object": "error",
            "message": self.message,
            "type": self.kind,
            "param": null,
            "code": self.status.as_u16(),
        })
    }

    /// The same as an event inside a stream that already answered 200: there `type` is the name
    /// of the status (`SERVICE_UNAVAILABLE`).
    pub(crate) fn event(&self) -> Value {
        let name = self.status.canonical_reason().unwrap_or("UNKNOWN");
        let mut error = self.body();
        error["type"] = Value::from(name.to_uppercase().replace([' ', '-'], "_"));
        json!({ "error": error })
    }
}

impl IntoResponse for EngineError {
    fn into_response(self) -> Response {
        json_response(self.status, self.body().to_string())
    }
}

/// An answer with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
