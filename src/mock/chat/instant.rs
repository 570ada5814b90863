//! The answer of an engine that only has to be quick: canned, without prompt, queue or cache.
//!
//! For load tests of what stands in front of an engine. Looks at nothing of a body but that it is a
//! JSON object, `stream` and the token limit; refuses nothing else and knows no faults of generation.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde::Deserialize;

use super::answer::events;
use super::job::Arrival;
use super::shape::{Envelope, Finish, Usage, done};
use crate::mock::config::EngineConfig;
use crate::mock::error::{EngineError, json_response};
use crate::mock::stats::Outcome;

/// What every token says.
const TOKEN: &str = " token";

/// The pieces of every answer.
#[derive(Debug)]
pub(crate) struct Canned {
    answer: Bytes,
    role: Bytes,
    token: Bytes,
    finish: Bytes,
}

impl Canned {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let envelope = Envelope::new("instant".to_owned(), config.model.clone(), None);
        let usage = Usage {
            prompt: 1,
            completion: 1,
            cached: None,
        };
        Self {
            answer: envelope
                .completion(1, TOKEN, Finish::Stop, usage, "")
                .into(),
            role: envelope.role_chunk(0, ""),
            token: envelope.token_chunk(0, TOKEN, true, None),
            finish: envelope.finish_chunk(0, Finish::Stop),
        }
    }

    /// The event at `place` of a stream with `tokens` tokens; `None` after the last.
    fn event(&self, place: u32, tokens: u32) -> Option<Bytes> {
        let after = place.checked_sub(tokens.saturating_add(1));
        match (place, after) {
            (0, _) => Some(self.role.clone()),
            (_, None) => Some(self.token.clone()),
            (_, Some(0)) => Some(self.finish.clone()),
            (_, Some(1)) => Some(done()),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Asked {
    stream: Option<bool>,
    max_tokens: Option<u32>,
}

/// One choice of `max_tokens` tokens, or as many as the engine says by default; without `stream` one
/// token whatever is asked for.
pub(crate) fn answer(mut arrival: Arrival, body: &Bytes) -> Response {
    let asked = match serde_json::from_slice::<Asked>(body) {
        Ok(asked) => asked,
        Err(problem) => {
            arrival.guard.set(Outcome::Failed);
            return EngineError::schema(problem.to_string()).into_response();
        }
    };
    if asked.stream != Some(true) {
        arrival.guard.set(Outcome::Completed);
        return json_response(StatusCode::OK, arrival.shared.canned.answer.clone());
    }
    let tokens = asked.max_tokens;
    let tokens = tokens.unwrap_or(arrival.shared.config.reply_tokens);
    let source = stream::unfold((arrival, 0), move |(mut arrival, place)| async move {
        // What was said before leaves in a write of its own, as from an engine that computes.
        tokio::task::yield_now().await;
        let Some(event) = arrival.shared.canned.event(place, tokens) else {
            arrival.guard.set(Outcome::Completed);
            return None;
        };
        Some((Ok::<_, std::io::Error>(event), (arrival, place + 1)))
    });
    events(Body::from_stream(source))
}
