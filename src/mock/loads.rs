//! `GET /v1/loads`: the load report over HTTP (engine-wire §2.5), from the real work held.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::Shared;
use super::error::json_response;
use super::load::share;

/// The query; `include` and `format` are accepted and have no effect.
#[derive(Debug, Deserialize)]
pub(crate) struct LoadsQuery {
    dp_rank: Option<u32>,
}

/// The handler. One row per rank; asking for a rank that is none gives an empty list.
pub(crate) async fn loads(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<LoadsQuery>,
) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0.0, |since| since.as_secs_f64());
    let count = shared.config.kv_ranks;
    let ranks = (0..u32::from(count)).filter(|rank| query.dp_rank.is_none_or(|only| only == *rank));
    let ranks: Vec<Value> = ranks
        .map(|number| rank(&shared, number, count.into(), seconds))
        .collect();
    let body = json!({
        "timestamp": iso8601(seconds as u64),
        "version": super::info::VERSION,
        "accelerator": null,
        "num_accelerators": 1,
        "loads": ranks,
    });
    json_response(StatusCode::OK, body.to_string())
}

fn rank(shared: &Shared, number: u32, ranks: u32, seconds: f64) -> Value {
    let load = shared.load().share(number, ranks);
    let config = &shared.config;
    let capacity = share(config.max_total_num_tokens, number, ranks);
    let most_running = share(config.max_running_requests.into(), number, ranks);
    let usage = load.used_tokens as f64 / capacity.max(1) as f64;
    json!({
        "timestamp": seconds,
        "dp_rank": number,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": load.used_tokens,
        "num_total_tokens": load.used_tokens + load.queued_tokens,
        "num_active_tokens": load.used_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": capacity,
        "max_running_requests": most_running,
        "total_prefill_uncached_tokens": load.prefilled_tokens,
        "total_prefill_busy_us": load.prefill_busy_us,
        "token_usage": usage,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": f64::from(load.running) / most_running.max(1) as f64,
        "decode_moments": null,
        "disaggregation": {"mode": config.role.disaggregation_mode()},
        "queues": {
            "waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
        },
    })
}

/// Seconds since 1970 as `2026-01-31T12:00:00Z`.
///
/// Civil date from a day number: years are taken to begin in March, so that the leap day comes
/// last, and counted in eras of 400 years (146 097 days).
pub(crate) fn iso8601(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest % 3_600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
