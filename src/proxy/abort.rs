//! Telling an engine that nobody waits for a request any more.
//!
//! Closing the connection is noticed by an engine only after seconds; `/abort_request` with the id
//! that this router gave the request ends it at once. Never for an id of the caller's, never after
//! a complete answer, never for a prefill leg. The answer is only logged and says nothing about
//! the engine's health. Source: engine-wire §3.4, http-and-operations §11.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use pingora::Result;
use pingora::http::RequestHeader;

use crate::config::Timeouts;
use crate::proxy::engine_call::{self, EngineClient};
use crate::proxy::peer;
use crate::workers::Worker;

/// Time for one abort call.
const LIMIT: Duration = Duration::from_secs(5);

/// Aborts `rid` on `engine`, beside everything else. `authorization` is the client's, which the
/// engine may demand.
pub(crate) fn start(
    engines: &EngineClient,
    engine: &Arc<Worker>,
    rid: &str,
    authorization: Option<HeaderValue>,
    timeouts: &Timeouts,
) {
    let (engines, engine) = (engines.clone(), Arc::clone(engine));
    let body = serde_json::json!({"rid": rid, "abort_all": false});
    let timeouts = timeouts.clone();
    engine_call::spawn(async move {
        let body = Bytes::from(body.to_string());
        let sent = send(&engines, &engine, body, authorization, &timeouts).await;
        match sent {
            Ok(status) => tracing::debug!(engine = %engine.id(), status, "abort sent"),
            Err(error) => tracing::debug!(engine = %engine.id(), %error, "abort not delivered"),
        }
    });
}

async fn send(
    engines: &EngineClient,
    engine: &Worker,
    body: Bytes,
    authorization: Option<HeaderValue>,
    timeouts: &Timeouts,
) -> Result<u16> {
    let peer = peer::http1(engine, timeouts)?;
    let mut head = RequestHeader::build("POST", b"/abort_request", Some(4))?;
    head.insert_header(header::HOST, engine.url().authority())?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    if let Some(authorization) = authorization {
        head.insert_header(header::AUTHORIZATION, authorization)?;
    }
    engines.simple(&peer, head, body, LIMIT).await
}
