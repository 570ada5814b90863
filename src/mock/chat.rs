//! `POST /v1/chat/completions`: read, refuse, compute, answer.
//!
//! Status and headers leave only when the first token exists, as on a real engine. Faults that
//! concern the exchange and not the generation are applied here.

mod answer;
pub(crate) mod instant;
mod job;
mod reply;
mod request;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use self::answer::Form;
use self::job::{Arrival, Job};
use self::request::ChatRequest;
use self::shape::Envelope;
use super::config::Role;
use super::conn::{Connection, Ending};
use super::engine::Shared;
use super::error::EngineError;
use super::faults::Faults;
use super::listener::ConnectionInfo;
use super::record::{RecordedRequest, framing};
use super::stats::Outcome;

/// Longest body accepted, bytes.
const MAX_BODY: usize = 64 << 20;
/// How much `lie_length` adds to the truth, bytes.
const LIE: u64 = 4096;

/// The handler.
pub(crate) async fn chat(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(ConnectionInfo(connection)): ConnectInfo<ConnectionInfo>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut arrival = Arrival {
        guard: shared.stats.begin(),
        _busy: connection.busy(),
        faults: shared.faults.take_for_request(),
        connection: connection.clone(),
        shared,
    };
    let config = &arrival.shared.config;
    let aliases = [config.role.as_str(), config.name.as_str()];
    if let Err(problem) = arrival.faults.apply_headers(&parts.headers, aliases) {
        return refuse(arrival, &EngineError::schema(problem));
    }
    let Some(body) = read_body(body, &arrival).await else {
        // The client is gone, or has sent more than it may; nobody waits for this.
        return EngineError::schema("The body could not be read.").into_response();
    };
    record(&arrival, &parts, &body);
    if arrival.shared.config.instant {
        return instant::answer(arrival, &body);
    }
    let faults = arrival.faults.clone();
    let response = respond(arrival, &parts.headers, &body).await;
    dress(response, &faults, connection)
}

/// Reads the whole body; `None` if it breaks off or is too long.
async fn read_body(body: Body, arrival: &Arrival) -> Option<Bytes> {
    let pause = Duration::from_millis(arrival.faults.slow_body_read);
    let mut pieces = body.into_data_stream();
    let mut whole = BytesMut::new();
    loop {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        match pieces.next().await {
            None => return Some(whole.freeze()),
            Some(Ok(piece)) if whole.len() + piece.len() <= MAX_BODY => {
                let bytes = piece.len() as u64;
                arrival.shared.stats.count(|stats| stats.bytes_in += bytes);
                whole.extend_from_slice(&piece);
            }
            Some(_) => return None,
        }
    }
}

fn record(arrival: &Arrival, parts: &Parts, body: &Bytes) {
    if !arrival.shared.config.record {
        return;
    }
    arrival.shared.recorder.push(RecordedRequest {
        connection: arrival.connection.number,
        version: parts.version,
        path: parts.uri.to_string(),
        framing: framing(&parts.headers),
        headers: parts.headers.clone(),
        body: body.clone(),
    });
}

async fn respond(mut arrival: Arrival, headers: &HeaderMap, body: &Bytes) -> Response {
    if let Some(response) = fail_before_headers(&mut arrival).await {
        return response;
    }
    let chat = match accept(&arrival, headers, body) {
        Ok(chat) => chat,
        Err(error) => return refuse(arrival, &error),
    };
    if let Some(bootstrap) = &chat.bootstrap {
        arrival.shared.stats.bootstrap_received(bootstrap.clone());
    }
    let rid = chat.rid.clone().unwrap_or_else(|| arrival.shared.new_rid());
    let Some(live) = arrival.shared.live.enter(&rid) else {
        let message = format!("Duplicate request ID detected: {rid}");
        return refuse(arrival, &EngineError::bad_request(message));
    };
    generate(arrival, live, chat, rid).await
}

async fn generate(
    arrival: Arrival,
    live: super::live::LiveRequest,
    mut chat: ChatRequest,
    rid: String,
) -> Response {
    let shared = arrival.shared.clone();
    let stream = chat.stream;
    let model = chat.model.clone();
    if shared.config.role == Role::Prefill {
        // One token is no tool call.
        chat.tool = None;
    }
    let form = Form {
        envelope: Envelope::new(
            rid,
            model.unwrap_or(shared.config.model.clone()),
            chat.tool.clone(),
        ),
        n: chat.n,
        include_usage: chat.include_usage,
        continuous_usage: chat.continuous_usage,
    };
    if stream {
        shared.stats.count(|stats| stats.streams += 1);
    }
    let is_late_fault = arrival.faults.late_status.is_some();
    let mut job = Job::new(arrival, live, chat);
    if let Err(error) = job.prepare().await {
        job.finish(Outcome::Failed);
        return if stream && !is_late_fault {
            answer::sse_error(&error)
        } else {
            error.into_response()
        };
    }
    if job.arrival.faults.empty_reply {
        job.finish(Outcome::Completed);
        return StatusCode::OK.into_response();
    }
    if stream {
        answer::sse(job, form)
    } else {
        answer::json(job, form).await
    }
}

/// Faults that leave the engine no chance to look at the request.
async fn fail_before_headers(arrival: &mut Arrival) -> Option<Response> {
    let faults = &arrival.faults;
    if faults.reset_before_headers || faults.close_before_headers {
        let ending = if faults.reset_before_headers {
            Ending::Reset
        } else {
            Ending::Close
        };
        arrival.guard.set(Outcome::Failed);
        arrival.connection.end(ending);
        return std::future::pending().await;
    }
    if faults.stall_before_headers {
        return std::future::pending().await;
    }
    let status = StatusCode::from_u16(faults.status?).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    tokio::time::sleep(Duration::from_millis(faults.status_delay_ms)).await;
    arrival.guard.set(Outcome::Failed);
    Some(EngineError::aborted(status, "Injected failure.").into_response())
}

/// Checks what can be checked before any work.
fn accept(
    arrival: &Arrival,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<ChatRequest, EngineError> {
    let content_type = headers.get(header::CONTENT_TYPE);
    let media_type = content_type
        .and_then(|value| value.to_str().ok()?.split(';').next())
        .unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        return Err(EngineError::schema(
            "Unsupported Media Type: Only 'application/json' is allowed",
        ));
    }
    let config = &arrival.shared.config;
    let chat = ChatRequest::parse(body, config.context_length, config.tokenizer.as_deref())?;
    if config.role != Role::Plain && chat.bootstrap.is_none() {
        return Err(EngineError::bad_request(
            "Disaggregated request received without bootstrap room id",
        ));
    }
    Ok(chat)
}

fn refuse(mut arrival: Arrival, error: &EngineError) -> Response {
    arrival.guard.set(Outcome::Failed);
    error.clone().into_response()
}

/// Faults of the finished answer.
fn dress(mut response: Response, faults: &Faults, connection: Arc<Connection>) -> Response {
    for (name, value) in &faults.reply_headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    if !faults.lie_length && !faults.close_after_response {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let size = axum::body::HttpBody::size_hint(&body).exact();
    if let Some(length) = size.or(faults.lie_length.then_some(u64::from(u32::MAX))) {
        let length = length + if faults.lie_length { LIE } else { 0 };
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let close = faults
        .close_after_response
        .then(|| CloseWhenDone(connection));
    // A stream hides its length from hyper, which then believes the header, and it owns `close`,
    // which acts when hyper has taken the last piece.
    let truth = body.into_data_stream().map(move |piece| {
        let _held = &close;
        piece
    });
    let is_lie = faults.lie_length;
    let discovery = stream::iter(is_lie.then_some(())).then(async |()| {
        // Let hyper write the truth before it learns that there is no more.
        tokio::task::yield_now().await;
        Err(axum::Error::new(std::io::Error::other(
            "injected lie about the length",
        )))
    });
    let pieces = truth.chain(discovery);
    Response::from_parts(parts, Body::from_stream(pieces))
}

/// Ends the connection once the answer has been handed to hyper.
#[derive(Debug)]
struct CloseWhenDone(Arc<Connection>);

impl Drop for CloseWhenDone {
    fn drop(&mut self) {
        self.0.end(Ending::AfterResponse);
    }
}
