//! What an engine says about itself, and the calls that concern no single chat request.
//!
//! `/server_info` announces what is published; `kv_events` is null where nothing is.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::Shared;
use super::error::{EngineError, json_response};

/// SGLang release whose wire this engine speaks.
pub(crate) const VERSION: &str = "0.5.23";

/// `GET /health`, `/health_generate`: takes its time, as a generated token would.
pub(crate) async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    let slow = shared
        .faults
        .get()
        .health_delay_ms
        .map(Duration::from_millis);
    tokio::time::sleep(slow.unwrap_or(shared.config.health_delay)).await;
    status(&shared)
}

/// `GET /ready`, `/ping`: at once.
pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> StatusCode {
    status(&shared)
}

fn status(shared: &Shared) -> StatusCode {
    let fault = shared.faults.get().health.map(StatusCode::from_u16);
    match fault {
        None => StatusCode::OK,
        Some(status) => status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// `GET /server_info`.
pub(crate) async fn server_info(State(shared): State<Arc<Shared>>) -> Response {
    let config = &shared.config;
    let load = shared.load();
    let started = shared.started.duration_since(UNIX_EPOCH);
    json_response(
        StatusCode::OK,
        json!({
            "model_path": config.model,
            "served_model_name": config.model,
            "host": config.listen.ip().to_string(),
            "page_size": config.page_size,
            "dp_size": config.kv_ranks,
            "attn_dp_size": 1,
            "tp_size": 1,
            "context_length": config.context_length,
            "speculative_algorithm": config.bigram.then_some("EAGLE"),
            "disaggregation_mode": config.role.disaggregation_mode(),
            "disaggregation_bootstrap_port": config.bootstrap_port,
            "enable_http2": config.enable_http2,
            "max_running_requests": config.max_running_requests,
            "launch_command": "mock-engine",
            "status": "ready",
            "max_total_num_tokens": config.max_total_num_tokens,
            "max_req_input_len": config.context_length,
            "startup_time": started.map_or(0.0, |since| since.as_secs_f64()),
            "kv_events": publishers(&shared),
            "internal_states": [{
                "max_running_requests_per_dp": config.max_running_requests,
                "num_running_reqs": load.running,
            }],
            "version": VERSION,
            "frontend": "python",
        })
        .to_string(),
    )
}

/// The block of engine-wire §1.3.
fn publishers(shared: &Shared) -> Value {
    let mut block = shared.kv.describe(&shared.config.kv_topic);
    if let (Some(port), Value::Object(block)) = (shared.load_port, &mut block) {
        block.insert("load_endpoint_port_base".to_owned(), json!(port));
        block.insert("load_topic".to_owned(), json!("load"));
    }
    block
}

/// `GET /model_info`.
pub(crate) async fn model_info(State(shared): State<Arc<Shared>>) -> Response {
    let config = &shared.config;
    json_response(
        StatusCode::OK,
        json!({
            "model_path": config.model,
            "served_model_name": config.model,
            "tokenizer_path": config.model,
            "is_generation": true,
            "preferred_sampling_params": null,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": null,
            "tool_call_parser": null,
            "disaggregation_mode": config.role.disaggregation_mode(),
            "has_image_understanding": false,
            "has_audio_understanding": false,
            "model_type": "mock",
            "architectures": ["MockForCausalLM"],
        })
        .to_string(),
    )
}

/// `GET /v1/models`.
pub(crate) async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let list = json!({"object": "list", "data": [model_card(&shared)]});
    json_response(StatusCode::OK, list.to_string())
}

/// `GET /v1/models/{id}`.
pub(crate) async fn model(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    if id == shared.config.model {
        return json_response(StatusCode::OK, model_card(&shared).to_string());
    }
    let error = json!({"error": {
        "message": format!("The model '{id}' does not exist"),
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }});
    json_response(StatusCode::NOT_FOUND, error.to_string())
}

fn model_card(shared: &Shared) -> Value {
    let started = shared.started.duration_since(UNIX_EPOCH);
    json!({
        "id": shared.config.model,
        "object": "model",
        "created": started.map_or(0, |since| since.as_secs()),
        "owned_by": "sglang",
        "root": shared.config.model,
        "parent": null,
        "max_model_len": shared.config.context_length,
    })
}

/// `GET|POST /flush_cache`: refused while there is work; empties the cache and says so.
pub(crate) async fn flush_cache(State(shared): State<Arc<Shared>>) -> Response {
    let load = shared.load();
    if load.running + load.waiting > 0 {
        let text = "Flush cache failed: requests are running or waiting.\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    shared.kv.flush();
    (StatusCode::OK, "Cache flushed.\n").into_response()
}

#[derive(Debug, Deserialize)]
struct Abort {
    rid: Option<String>,
    #[serde(default)]
    abort_all: bool,
}

/// `POST /abort_request`: 200 and no body, also for ids nobody knows.
pub(crate) async fn abort_request(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let abort: Abort = match serde_json::from_slice(&body) {
        Ok(abort) => abort,
        Err(error) => return EngineError::schema(error.to_string()).into_response(),
    };
    let rid = abort.rid.unwrap_or_default();
    let seen = if abort.abort_all { "*" } else { rid.as_str() };
    shared.stats.abort_received(seen.to_owned());
    shared.live.abort(&rid, abort.abort_all);
    StatusCode::OK.into_response()
}
