//! Answers that this router writes itself.

use bytes::Bytes;
use http::header;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use crate::proxy::ctx::RequestCtx;
use crate::proxy::{body, headers};
use crate::server::ApiError;
use crate::server::live::EngineAnswer;

/// One complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    content_type: Option<String>,
    body: Bytes,
    extra: Vec<(&'static str, String)>,
}

impl Answer {
    /// An answer without a body.
    pub(crate) const fn empty(status: u16) -> Self {
        Self {
            status,
            content_type: None,
            body: Bytes::new(),
            extra: Vec::new(),
        }
    }

    /// A JSON answer.
    pub(crate) fn json(status: u16, value: serde_json::Value) -> Self {
        Self::json_text(status, value.to_string().into())
    }

    /// A JSON answer that is written already.
    pub(crate) fn json_text(status: u16, body: Bytes) -> Self {
        Self {
            status,
            content_type: Some("application/json".to_owned()),
            body,
            extra: Vec::new(),
        }
    }

    /// The envelope of a refusal with its headers.
    pub(crate) fn refusal(error: &ApiError) -> Self {
        let mut extra = vec![("x-router-error-code", error.code().to_owned())];
        if let Some(seconds) = error.retry_after_secs() {
            extra.push(("retry-after", seconds.to_string()));
        }
        match error {
            ApiError::MethodNotAllowed(allowed) => extra.push(("allow", (*allowed).to_owned())),
            ApiError::UpstreamBodyIncomplete(status) => {
                extra.push(("x-router-upstream-status", status.to_string()));
            }
            ApiError::Unauthorized => extra.push(("www-authenticate", "Bearer".to_owned())),
            _ => {}
        }
        Self {
            status: error.status(),
            content_type: Some("application/json".to_owned()),
            body: error.body(),
            extra,
        }
    }

    /// An engine's own answer, passed on unchanged and without our code header.
    pub(crate) fn engine(answer: &EngineAnswer) -> Self {
        Self {
            status: answer.status,
            content_type: answer.content_type.clone(),
            body: answer.body.clone(),
            extra: answer
                .retry_after
                .iter()
                .map(|seconds| ("retry-after", seconds.clone()))
                .collect(),
        }
    }
}

/// Writes a refusal and remembers it for the log line.
///
/// # Errors
/// When the client cannot be written to.
pub(crate) async fn refuse(
    session: &mut Session,
    ctx: &mut RequestCtx,
    error: ApiError,
) -> Result<()> {
    let answer = Answer::refusal(&error);
    ctx.refusal = Some(error);
    send(session, ctx, answer).await
}

/// Writes an answer whose length always fits.
///
/// # Errors
/// When the client cannot be written to.
pub(crate) async fn send(session: &mut Session, ctx: &RequestCtx, answer: Answer) -> Result<()> {
    let mut head = ResponseHeader::build(answer.status, Some(8))?;
    if let Some(content_type) = answer.content_type {
        head.insert_header(header::CONTENT_TYPE, content_type)?;
    }
    head.insert_header(header::CONTENT_LENGTH, answer.body.len())?;
    head.insert_header("x-request-id", ctx.request_id.as_str())?;
    for (name, value) in answer.extra {
        head.insert_header(name, value)?;
    }
    if ctx.routing.config.response_headers {
        for (name, value) in headers::edge_headers(ctx) {
            head.insert_header(name, value.as_ref())?;
        }
    }
    let empty = answer.body.is_empty() || ctx.method == "HEAD";
    session.write_response_header(Box::new(head), empty).await?;
    if !empty {
        session.write_response_body(Some(answer.body), true).await?;
    }
    if session.is_http2() && !session.is_body_done() {
        body::drain(session).await;
    }
    Ok(())
}
