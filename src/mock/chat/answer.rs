//! The two forms of an answer: one JSON document, or server-sent events.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};

use super::job::{BreakOff, Job, Step, break_off};
use super::shape::{Envelope, done, event};
use crate::mock::conn::Connection;
use crate::mock::error::{EngineError, json_response};
use crate::mock::stats::Outcome;

/// What the client asked for.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) envelope: Envelope,
    pub(crate) n: u32,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
}

/// The answer to a request without `stream`: nothing until everything is there.
pub(crate) async fn json(mut job: Job, form: Form) -> Response {
    let mut content = String::new();
    let (finish, broken) = loop {
        match job.step().await {
            Step::Token(token) => content.push_str(&token),
            Step::End(finish) => break (finish, None),
            Step::BreakOff(how) => break (super::shape::Finish::Stop, Some(how)),
            Step::Error(error) => {
                job.finish(Outcome::Failed);
                return error.into_response();
            }
        }
    };
    let padding = padding(&job);
    let usage = job.usage();
    let body = form
        .envelope
        .completion(form.n, &content, finish, usage, &padding);
    if let Some(how) = broken {
        let connection = job.arrival.connection.clone();
        job.finish(Outcome::Failed);
        return json_response(StatusCode::OK, half_of(body.into(), connection, how));
    }
    job.finish(Outcome::Completed);
    json_response(StatusCode::OK, body)
}

/// The first half of a body, then the break.
fn half_of(mut body: Bytes, connection: Arc<Connection>, how: BreakOff) -> Body {
    body.truncate(body.len() / 2);
    Body::from_stream(stream::unfold(Some(body), move |half| {
        let connection = connection.clone();
        async move {
            match half {
                Some(half) => Some((Ok(half), None)),
                None => Some((Err(break_off(&connection, how).await), None)),
            }
        }
    }))
}

/// The answer to a request with `stream`.
pub(crate) fn sse(job: Job, form: Form) -> Response {
    let padding = padding(&job);
    let opening = (0..form.n).map(|index| form.envelope.role_chunk(index, &padding));
    let source = EventSource {
        waiting: opening.collect(),
        heartbeats: job.arrival.faults.heartbeats,
        is_first: true,
        job: Some(job),
        form,
    };
    events(Body::from_stream(stream::unfold(source, EventSource::next)))
}

/// An answer that failed after it was promised as a stream: 200, one error event, `[DONE]`.
pub(crate) fn sse_error(error: &EngineError) -> Response {
    let mut body = event(&error.event().to_string()).to_vec();
    body.extend_from_slice(&done());
    events(Body::from(body))
}

pub(crate) fn events(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    response
}

fn padding(job: &Job) -> String {
    let bytes = usize::try_from(job.arrival.faults.big_reply_bytes);
    "x".repeat(bytes.unwrap_or(0))
}

/// The events of one stream.
#[derive(Debug)]
struct EventSource {
    waiting: VecDeque<Bytes>,
    heartbeats: u32,
    is_first: bool,
    /// `None` once everything has been said.
    job: Option<Job>,
    form: Form,
}

impl EventSource {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if let Some(heartbeat) = self.heartbeat().await {
            return Some((Ok(heartbeat), self));
        }
        loop {
            if let Some(next) = self.waiting.pop_front() {
                return Some((Ok(next), self));
            }
            let mut job = self.job.take()?;
            match job.step().await {
                Step::Token(token) => {
                    self.say_token(&token, &job);
                    self.job = Some(job);
                }
                Step::End(finish) => {
                    let last = (0..self.form.n).map(|i| self.form.envelope.finish_chunk(i, finish));
                    self.waiting.extend(last);
                    if self.form.include_usage {
                        let usage = self.form.envelope.usage_chunk(job.usage());
                        self.waiting.push_back(usage);
                    }
                    self.waiting.push_back(done());
                    job.finish(Outcome::Completed);
                }
                Step::Error(error) => {
                    self.waiting.push_back(event(&error.event().to_string()));
                    self.waiting.push_back(done());
                    job.finish(Outcome::Failed);
                }
                Step::BreakOff(how) => {
                    let connection = job.arrival.connection.clone();
                    job.finish(Outcome::Failed);
                    return Some((Err(break_off(&connection, how).await), self));
                }
            }
        }
    }

    async fn heartbeat(&mut self) -> Option<Bytes> {
        let job = self.job.as_ref().filter(|_| self.heartbeats > 0)?;
        tokio::time::sleep(Duration::from_millis(job.arrival.faults.heartbeat_ms)).await;
        tokio::task::yield_now().await;
        self.heartbeats -= 1;
        Some(Bytes::from_static(b": keep-alive\n\n"))
    }

    fn say_token(&mut self, token: &str, job: &Job) {
        let Form {
            envelope,
            n,
            continuous_usage,
            ..
        } = &self.form;
        let usage = continuous_usage.then(|| job.usage());
        let chunks = (0..*n).map(|i| envelope.token_chunk(i, token, self.is_first, usage));
        self.waiting.extend(chunks);
        self.is_first = false;
    }
}
