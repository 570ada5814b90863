//! `/mock/…`: the remote control that a real engine does not have.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::Shared;
use super::error::EngineError;
use super::faults::Faults;
use super::record::RecordedRequest;
use super::stats::Stats;

/// * `GET /mock/faults` — the faults now; `POST` — merge patch, answers the faults after it.
/// * `GET /mock/stats` — the counters.
/// * `GET /mock/requests?last=N` — recorded requests, oldest first; default 16.
/// * `POST /mock/reset` — no faults, counters at zero, records forgotten.
/// * `POST /mock/kv/restart` — cache and event publisher begin anew, on the same connections.
/// * `POST /mock/kv/reset` — the publisher sends the reset mark (sequence -1).
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/mock/faults", get(faults).post(set_faults))
        .route("/mock/stats", get(stats))
        .route("/mock/requests", get(requests))
        .route("/mock/reset", post(reset))
        .route("/mock/kv/restart", post(kv_restart))
        .route("/mock/kv/reset", post(kv_reset))
}

async fn faults(State(shared): State<Arc<Shared>>) -> Json<Faults> {
    Json(shared.faults.get())
}

async fn set_faults(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let patched = serde_json::from_slice::<Value>(&body)
        .map_err(|error| error.to_string())
        .and_then(|patch| shared.faults.patch(&patch));
    if let Err(problem) = patched {
        return EngineError::bad_request(problem).into_response();
    }
    shared.faults.settled().await;
    Json(shared.faults.get()).into_response()
}

async fn stats(State(shared): State<Arc<Shared>>) -> Json<Stats> {
    Json(shared.stats())
}

#[derive(Debug, Deserialize)]
struct Last {
    last: Option<usize>,
}

async fn requests(State(shared): State<Arc<Shared>>, Query(query): Query<Last>) -> Json<Value> {
    let recorded = shared.recorder.last(query.last.unwrap_or(16));
    let shown: Vec<Value> = recorded.iter().map(RecordedRequest::to_json).collect();
    Json(json!({ "requests": shown }))
}

async fn reset(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.reset();
    shared.faults.settled().await;
    StatusCode::OK
}

async fn kv_restart(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.kv.restart();
    StatusCode::OK
}

async fn kv_reset(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.kv.send_reset();
    StatusCode::OK
}
