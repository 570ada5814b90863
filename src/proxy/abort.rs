//! Telling an engine that nobody waits for a request any more.
//!
//! Closing the connection is noticed by an engine only after seconds; `/abort_request` with the id
//! that this router gave the request ends it at once. Never for an id of the caller's, never after
//! a complete answer, never for a prefill leg. The answer is only logged and says nothing about
//! the engine's health. Source: engine-wire §3.4, http-and-operations §11.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;
use pingora::{Error, ErrorType, Result};
use tokio::sync::Semaphore;

use crate::proxy::engine_call::{self, EngineClient};
use crate::proxy::peer;
use crate::server::routing::Routing;
use crate::workers::Worker;

/// Time for one abort call, waiting for its turn included.
const LIMIT: Duration = Duration::from_secs(5);

/// Abort calls at the same time: when thousands of clients leave at once, engines must not be
/// flooded with connections. A call that does not get its turn is given up; closing the connection
/// has told the engine already.
const AT_ONCE: usize = 256;

/// Turns for abort calls.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Aborts `rid` on `engine`, beside everything else. `authorization` is the client's, which the
/// engine may demand; a key of the engines' own goes before it.
pub(crate) fn start(
    turns: &Turns,
    engines: &EngineClient,
    engine: &Arc<Worker>,
    rid: &str,
    authorization: Option<HeaderValue>,
    routing: &Arc<Routing>,
) {
    let (turns, engines, engine) = (turns.clone(), engines.clone(), Arc::clone(engine));
    let body = serde_json::json!({"rid": rid, "abort_all": false});
    let routing = Arc::clone(routing);
    engine_call::spawn(async move {
        let body = Bytes::from(body.to_string());
        let sent = async {
            let _turn = turns.0.acquire().await;
            send(&engines, &engine, body, authorization, &routing).await
        };
        let sent = tokio::time::timeout(LIMIT, sent).await;
        match sent.unwrap_or_else(|_| Err(Error::new_up(ErrorType::ReadTimedout))) {
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
    routing: &Routing,
) -> Result<u16> {
    let peer = peer::http1(engine, &routing.config.timeouts)?;
    let (path, secrets) = ("/abort_request", &routing.secrets);
    let head = engine_call::head("POST", path, engine, secrets, authorization, Some(&body))?;
    engines.simple(&peer, head, body, LIMIT).await
}
