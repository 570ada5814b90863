//! Admin calls that go to every engine: `/flush_cache` and `/abort_request`.
//!
//! Reaches engines of every role, whatever their breaker says, and an engine's failure here opens
//! no breaker. The abort call goes everywhere because the router does not map ids to engines.
//! Source: contract §4, http-and-operations §1.1.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::header::HeaderValue;
use pingora::Result;
use serde_json::{Value, json};

use crate::proxy::engine_call::{self, EngineClient};
use crate::proxy::peer;
use crate::server::app::App;
use crate::server::routing::Routing;
use crate::workers::Worker;

/// Calls at the same time.
const AT_ONCE: usize = 32;

/// Calls `POST path` with `body` on every engine. The status for the operator (200 when every
/// engine answered 2xx or there is none, else 502) and who did what.
pub(crate) async fn call(
    app: &App,
    engines: &EngineClient,
    path: &str,
    body: Bytes,
    authorization: Option<HeaderValue>,
) -> (u16, Value) {
    let routing = app.routing();
    let workers = routing.workers.members().all();
    let total = workers.len();
    let calls = workers.into_iter().map(|engine| {
        let (routing, body, authorization) = (&routing, body.clone(), authorization.clone());
        async move {
            let result = one(engines, &engine, routing, path, body, authorization).await;
            (engine, result)
        }
    });
    let results: Vec<(Arc<Worker>, Result<u16>)> = stream::iter(calls)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (engine, result) in results {
        let url = engine.url().to_string();
        match result {
            Ok(200..=299) => successful.push(url),
            Ok(status) => failed.push(json!({"worker": url, "error": format!("HTTP {status}")})),
            Err(error) => failed.push(json!({"worker": url, "error": error.etype().as_str()})),
        }
    }
    successful.sort();
    let status = if failed.is_empty() { 200 } else { 502 };
    let message = format!("{path}: {} of {total} engines succeeded", successful.len());
    tracing::info!(path, succeeded = successful.len(), total, "admin fan-out");
    let answer = json!({
        "successful": successful,
        "failed": failed,
        "total_workers": total,
        "message": message,
    });
    (status, answer)
}

async fn one(
    engines: &EngineClient,
    engine: &Worker,
    routing: &Routing,
    path: &str,
    body: Bytes,
    authorization: Option<HeaderValue>,
) -> Result<u16> {
    let timeouts = &routing.config.timeouts;
    let peer = peer::http1(engine, timeouts)?;
    let secrets = &routing.secrets;
    let head = engine_call::head("POST", path, engine, secrets, authorization, Some(&body))?;
    engines.simple(&peer, head, body, timeouts.request).await
}
