//! Numbers that are read from their owners when somebody scrapes, so that a removed engine
//! disappears at once.

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio::time::Instant;

use crate::feeds::FeedStats;
use crate::ids::Stage;
use crate::state::prefix::PrefixIndexes;
use crate::state::{AffinityKind, AffinityStore, AffinityStores, EngineLoadTable, FRESHNESS};
use crate::workers::Members;

pub use super::tokenizing::of_tokenizers;

pub(super) fn registry() -> Registry {
    Registry::new_custom(Some("sgl_router".into()), None).expect("the prefix is a valid name")
}

fn register(
    registry: &Registry,
    all: impl IntoIterator<Item = Box<dyn prometheus::core::Collector>>,
) {
    for collector in all {
        registry
            .register(collector)
            .expect("every name is registered once");
    }
}

/// Series of the bindings that exist now, and of those that are gone.
#[must_use]
pub fn of_affinity(stores: &AffinityStores) -> Registry {
    let registry = registry();
    let bindings = Opts::new("affinity_bindings", "keys bound to an engine");
    let bindings = IntGaugeVec::new(bindings, &["kind"]).expect("names and labels are valid");
    let counter = |name: &str, help: &str| {
        let counter = IntCounterVec::new(Opts::new(name, help), &["kind"]);
        counter.expect("names and labels are valid")
    };
    let evicted = counter(
        "affinity_evictions_total",
        "bindings pushed out because memory was short",
    );
    let expired = counter("affinity_expired_total", "bindings removed as idle");
    for kind in AffinityKind::ALL {
        let count = |of: fn(&AffinityStore) -> u64| stores.sum(kind, of);
        let size = count(|store| u64::try_from(store.len()).unwrap_or(u64::MAX));
        let label = [kind.as_str()];
        let bindings = bindings.with_label_values(&label);
        bindings.set(i64::try_from(size).unwrap_or(i64::MAX));
        let pushed_out = count(AffinityStore::evicted);
        evicted.with_label_values(&label).inc_by(pushed_out);
        let idle = count(AffinityStore::expired);
        expired.with_label_values(&label).inc_by(idle);
    }
    let all: [Box<dyn prometheus::core::Collector>; 3] =
        [Box::new(bindings), Box::new(evicted), Box::new(expired)];
    register(&registry, all);
    registry
}

/// Series of the prefix indexes of the models that use one.
#[must_use]
pub fn of_prefixes(indexes: &PrefixIndexes) -> Registry {
    let registry = registry();
    let gauge = |name: &str, help: &str| {
        let gauge = IntGaugeVec::new(Opts::new(name, help), &["model"]);
        let gauge = gauge.expect("names and labels are valid");
        registry
            .register(Box::new(gauge.clone()))
            .expect("every name is registered once");
        gauge
    };
    let blocks = gauge("kv_index_blocks", "different blocks in the prefix index");
    let owners = gauge(
        "kv_index_owners",
        "ranks that have a place in the prefix index",
    );
    let holdings = gauge(
        "kv_index_holdings",
        "pairs of a block and a rank that holds it",
    );
    let bytes = gauge("kv_index_bytes", "memory of the prefix index");
    let whole = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    for (model, prefixes) in indexes.all().iter() {
        let size = prefixes.size();
        let label = [model.as_str()];
        blocks.with_label_values(&label).set(whole(size.blocks));
        owners.with_label_values(&label).set(whole(size.owners));
        let held = i64::try_from(size.holdings).unwrap_or(i64::MAX);
        holdings.with_label_values(&label).set(held);
        bytes.with_label_values(&label).set(whole(size.bytes));
    }
    registry
}

/// Series of the engines that exist now.
#[must_use]
pub fn of_engines(members: &Members) -> Registry {
    let registry = registry();
    let gauge = |name: &str, help: &str, labels: &[&str]| {
        let gauge = IntGaugeVec::new(Opts::new(name, help), labels);
        let gauge = gauge.expect("names and labels are valid");
        registry
            .register(Box::new(gauge.clone()))
            .expect("every name is registered once");
        gauge
    };
    let workers = gauge("workers", "registered engines", &["mode"]);
    let health = gauge(
        "worker_health",
        "1 if the engine may be picked",
        &["worker_url"],
    );
    let breaker = gauge(
        "worker_cb_state",
        "0 closed, 1 open, 2 half-open",
        &["worker_url"],
    );
    let inflight = gauge("worker_inflight_requests", "guards held", &["worker_url"]);
    let load = gauge(
        "active_load",
        "prompt tokens (plain, prefill) or requests (decode) held",
        &["worker_url", "kind"],
    );
    for stage in Stage::ALL {
        workers.with_label_values(&[stage.as_str()]).set(0);
    }
    let now = Instant::now();
    for engine in members.all() {
        let id = [engine.id().as_str()];
        workers.with_label_values(&[engine.role().as_str()]).inc();
        health
            .with_label_values(&id)
            .set(i64::from(engine.available(now)));
        breaker
            .with_label_values(&id)
            .set(engine.breaker().state(now).0.gauge());
        let held = i64::try_from(engine.inflight()).unwrap_or(i64::MAX);
        inflight.with_label_values(&id).set(held);
        let tokens = i64::try_from(engine.inflight_tokens()).unwrap_or(i64::MAX);
        let (kind, active) = match engine.role() {
            Stage::Plain | Stage::Prefill => ("prefill_tokens", tokens),
            Stage::Decode => ("decode_blocks", held),
        };
        load.with_label_values(&[id[0], kind]).set(active);
    }
    registry
}

/// Series of the load reports: how old each engine's last one is, and what came in.
#[must_use]
pub fn of_loads(members: &Members, loads: &EngineLoadTable, feeds: &FeedStats) -> Registry {
    let registry = registry();
    let age = Opts::new(
        "load_report_age_seconds",
        "since the oldest rank's last report; no series without one of every rank",
    );
    let age = GaugeVec::new(age, &["engine"]).expect("names and labels are valid");
    let missing = Opts::new(
        "engines_without_load_report",
        "engines without a fresh report of every rank",
    );
    let missing = IntGaugeVec::new(missing, &["model_id"]).expect("names and labels are valid");
    let reports = Opts::new("load_reports_total", "load reports by what became of them");
    let reports = IntCounterVec::new(reports, &["outcome"]).expect("names and labels are valid");
    let lost = Opts::new(
        "feed_connections_lost_total",
        "connections to publishers that ended or could not be made",
    );
    let lost = IntCounterVec::new(lost, &["kind"]).expect("names and labels are valid");
    let now = Instant::now();
    for engine in members.all() {
        let missing = missing.with_label_values(&[engine.model().as_str()]);
        let load = loads.last(engine.id()).0;
        let since = load.map(|load| now.saturating_duration_since(load.captured_at));
        if let Some(since) = since {
            let age = age.with_label_values(&[engine.id().as_str()]);
            age.set(since.as_secs_f64());
        }
        if since.is_none_or(|since| since > FRESHNESS) {
            missing.inc();
        }
    }
    for (outcome, count) in feeds.reports() {
        reports.with_label_values(&[outcome]).inc_by(count);
    }
    lost.with_label_values(&["load"])
        .inc_by(feeds.connections_lost());
    let all: [Box<dyn prometheus::core::Collector>; 4] = [
        Box::new(age),
        Box::new(missing),
        Box::new(reports),
        Box::new(lost),
    ];
    register(&registry, all);
    registry
}
