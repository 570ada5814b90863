//! `GET /admin/state`: what the router knows, as JSON for operators.
//!
//! Shows addresses, so it belongs to the admin listener only. Source: contract §4.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::buckets::{Bucket, BucketGroups, EngineGroup};
use crate::feeds::kv_events::FollowStatus;
use crate::ids::ModelId;
use crate::kv::BlockUnit;
use crate::server::app::App;
use crate::server::explain::ReportView;
use crate::server::routing::{ModelRouting, Routing};
use crate::state::prefix::LocalPrefixes;
use crate::state::{AffinityKind, AffinityStores, EngineLoad, FRESHNESS};
use crate::workers::Worker;

/// The whole view.
#[must_use]
pub fn state(app: &App) -> Value {
    let routing = app.routing();
    let loaded = routing
        .loaded_at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    json!({
        "config": {"generation": routing.generation, "loaded_at_unix": loaded.as_secs()},
        "draining": app.draining(),
        "ready": app.unready().is_none(),
        "inflight_requests": app.inflight.used(),
        "buffered_body_bytes": app.buffered.used(),
        "models": routing.models().map(|m| model(app, &routing, m)).collect::<Vec<_>>(),
    })
}

fn model(app: &App, routing: &Routing, model: &ModelRouting) -> Value {
    let members = routing.workers.members().all();
    let engines = members.iter().filter(|engine| *engine.model() == model.id);
    let config = routing
        .config
        .models
        .iter()
        .find(|config| config.id == model.id);
    json!({
        "id": model.id,
        "aliases": config.map(|config| &config.aliases),
        "tokenizer": model.tokenizer.as_ref().map(|tokenizer| tokenizer.path()),
        "servable": model.servable(&routing.workers),
        "affinity": affinity(&app.services.affinity, &model.id),
        "buckets": model.resolver.buckets().iter().map(bucket).collect::<Vec<_>>(),
        "prefix_index": app.services.prefixes.all().get(&model.id).map(|index| prefix_index(index)),
        "engines": engines.map(|e| engine(app, e)).collect::<Vec<_>>(),
    })
}

/// Number of bindings by kind, and the memory that they take.
fn affinity(stores: &AffinityStores, model: &ModelId) -> Value {
    let of = |kind| stores.get(kind, model).unwrap_or_default();
    let (session, sticky) = (of(AffinityKind::Session), of(AffinityKind::Sticky));
    json!({
        "session": session.len(),
        "sticky": sticky.len(),
        "bytes": session.bytes() + sticky.bytes(),
    })
}

fn bucket(bucket: &Bucket) -> Value {
    let limits = bucket.limits();
    let capacity = limits.input_capacity();
    let groups = match bucket.groups() {
        BucketGroups::Plain(plain) => json!({"plain": group(plain)}),
        BucketGroups::Pd { prefill, decode } => {
            json!({"pd": {"prefill": group(prefill), "decode": group(decode)}})
        }
    };
    json!({
        "id": bucket.id(),
        "rank": bucket.rank(),
        "capacity": (capacity != u64::MAX).then_some(capacity),
        "limits": {"min": limits.min_input_tokens, "max": limits.max_input_tokens},
        "max_context_tokens": limits.max_context_tokens,
        "ttft_ms": bucket.estimates().ttft_ms,
        "tokens_per_second": bucket.estimates().tokens_per_second,
        "groups": groups,
    })
}

fn group(group: &EngineGroup) -> Value {
    let mut ids: Option<Vec<_>> = group.worker_ids().map(|ids| ids.iter().collect());
    if let Some(ids) = &mut ids {
        ids.sort();
    }
    json!({"worker_ids": ids, "policy": group.policy().kind().as_str()})
}

fn engine(app: &App, engine: &Worker) -> Value {
    let now = Instant::now();
    let (breaker, cool_down) = engine.breaker().state(now);
    json!({
        "id": engine.id(),
        "url": engine.url().to_string(),
        "address": engine.address(),
        "role": engine.role().as_str(),
        "bootstrap_port": engine.bootstrap_port(),
        "http2": engine.introspection().http2(),
        "healthy": engine.healthy(),
        "misplaced": engine.misplaced(),
        "breaker": breaker.as_str(),
        "breaker_cool_down_ms": u64::try_from(cool_down.as_millis()).unwrap_or(u64::MAX),
        "inflight": engine.inflight(),
        "report": app.services.loads.last(engine.id()).0.map(|load| report(&load, app.services.loads.now())),
        "kv_events": kv_events(app, engine, now),
    })
}

/// The last report, fresh or not.
fn report(load: &EngineLoad, now: Instant) -> Value {
    let age = now.saturating_duration_since(load.captured_at);
    let mut view = json!(ReportView::new(load, now));
    view["fresh"] = json!(age <= FRESHNESS);
    view
}

/// The model's index: its size and its block format.
fn prefix_index(index: &LocalPrefixes) -> Value {
    let size = index.size();
    let format = index.format();
    json!({
        "block_size": format.map(|format| format.block_size),
        "bigram": format.map(|format| format.unit == BlockUnit::Bigram),
        "blocks": size.blocks,
        "holdings": size.holdings,
        "owners": size.owners,
        "bytes": size.bytes,
    })
}

/// The engine's event streams by rank; null when it is not followed.
fn kv_events(app: &App, engine: &Worker, now: Instant) -> Value {
    let index = app.services.prefixes.of(engine.model());
    match app.kv_feeds.status(engine.model(), engine.origin()) {
        None => Value::Null,
        Some(FollowStatus::Refused(format)) => {
            json!({"subscribed": false, "refused": format!("the index has blocks of {}", format.block_size)})
        }
        Some(FollowStatus::Following(ranks)) => {
            let ranks = ranks.iter().zip(0..).map(|(status, rank)| {
                let [batches, gaps, lost, restarts] = status.counts();
                let last = status.last();
                let age = last.map(|(at, _)| now.saturating_duration_since(at));
                json!({
                    "rank": rank,
                    "connected": status.connected(),
                    "blocks": index.blocks_of(engine.origin(), rank),
                    "batches": batches,
                    "gaps": gaps,
                    "lost": lost,
                    "restarts": restarts,
                    "last_sequence": last.map(|(_, sequence)| sequence),
                    "last_age_ms": age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                })
            });
            json!({"subscribed": true, "ranks": ranks.collect::<Vec<_>>()})
        }
    }
}
