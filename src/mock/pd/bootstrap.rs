//! The bootstrap server of a prefill engine: where decode asks for a room.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::routing::get;
use http::StatusCode;
use serde::Deserialize;

use super::rooms::Rooms;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    #[serde(default)]
    wait_ms: u64,
}

/// `GET /health`, and `GET /mock/room/{room}?wait_ms=`: 200 when the cache of the room has been
/// taken by this call, 204 when it was not complete in time.
pub(crate) fn router(rooms: Arc<Rooms>) -> Router {
    Router::new()
        .route("/health", get(async || StatusCode::OK))
        .route("/mock/room/{room}", get(take_room))
        .with_state(rooms)
}

async fn take_room(
    State(rooms): State<Arc<Rooms>>,
    Path(room): Path<u64>,
    Query(wait): Query<Wait>,
) -> StatusCode {
    match tokio::time::timeout(Duration::from_millis(wait.wait_ms), rooms.take(room)).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::NO_CONTENT,
    }
}
