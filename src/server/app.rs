//! The services of one process and the pointer that reload swaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::config::Config;
use crate::feeds::FeedStats;
use crate::feeds::kv_events::KvFeeds;
use crate::policies::PolicyServices;
use crate::server::bootstrap::Rooms;
use crate::server::budget::Budget;
use crate::server::heads::Heads;
use crate::server::live::LiveTable;
use crate::server::metrics::{Metrics, gauges};
use crate::server::pool::WorkPool;
use crate::server::routing::Routing;
use crate::state::{AffinityKind, AffinityTimes};

/// Shared by every request. What must survive a reload lives here, what a reload replaces lives in
/// [`Routing`].
#[derive(Debug)]
pub struct App {
    routing: ArcSwap<Routing>,
    /// Handles that policies are built with.
    pub services: PolicyServices,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// Requests being served.
    pub live: Arc<LiveTable>,
    /// Client connections that owe a request head.
    pub heads: Arc<Heads>,
    /// Requests in flight over all models.
    pub inflight: Arc<Budget>,
    /// Client connections.
    pub connections: Arc<Budget>,
    /// Bytes of request bodies held.
    pub buffered: Arc<Budget>,
    /// Work that is too long for an event loop.
    pub pool: WorkPool,
    /// Subscriptions to the engines' KV events.
    pub kv_feeds: KvFeeds,
    /// Numbers for PD pairs.
    pub rooms: Rooms,
    /// What came over the feeds.
    pub feeds: Arc<FeedStats>,
    /// Told when engines came, went or said something new, for those who follow the fleet.
    pub fleet_changed: Arc<Notify>,
    /// Called with every configuration that a reload activates, for what lives outside the
    /// routing: the log level.
    pub on_reload: fn(&Config),
    draining: AtomicBool,
    parting: AtomicBool,
}

impl App {
    /// An application serving `routing`, on a machine with `cores` cores.
    #[must_use]
    pub fn new(routing: Routing, services: PolicyServices, cores: usize) -> Self {
        let metrics = Arc::new(Metrics::default());
        metrics.add(services.cache_counters.collectors());
        let kv_feeds = KvFeeds::new(Arc::clone(&services.prefixes));
        metrics.add(kv_feeds.counters().collectors());
        metrics.config_generation.set(gauge(routing.generation));
        configure_affinity(&services, &routing.config);
        Self {
            routing: ArcSwap::from_pointee(routing),
            services,
            metrics,
            live: Arc::default(),
            heads: Arc::default(),
            inflight: Arc::default(),
            connections: Arc::default(),
            buffered: Arc::default(),
            pool: WorkPool::new(cores),
            kv_feeds,
            rooms: Rooms::default(),
            feeds: Arc::default(),
            fleet_changed: Arc::default(),
            on_reload: |_| {},
            draining: AtomicBool::new(false),
            parting: AtomicBool::new(false),
        }
    }

    /// The active routing; a request takes it once and keeps it.
    #[must_use]
    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Puts a new generation to work.
    pub fn activate(&self, routing: Routing) {
        self.metrics
            .config_generation
            .set(gauge(routing.generation));
        configure_affinity(&self.services, &routing.config);
        self.routing.store(Arc::new(routing));
        self.fleet_changed.notify_one();
    }

    /// An engine said something new of itself: roles may have changed, and publishers.
    pub fn learned(&self) {
        for refused in self.routing().workers.learn_roles() {
            tracing::error!(%refused, "an engine has a role that its model cannot have: it is left out");
        }
        self.fleet_changed.notify_one();
    }

    /// From now on `/readyz` says no; work is still served.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// From now on every answer ends its connection, because connections are about to be closed.
    pub fn start_parting(&self) {
        self.parting.store(true, Ordering::Release);
    }

    /// Whether connections are about to be closed.
    #[must_use]
    pub fn parting(&self) -> bool {
        self.parting.load(Ordering::Acquire)
    }

    /// Whether the process is on its way out.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Why the process is not ready, or `None` when it is. Source: contract §3 `/readyz`.
    #[must_use]
    pub fn unready(&self) -> Option<&'static str> {
        if self.draining() {
            return Some("draining");
        }
        (!self.routing().servable()).then_some("no bucket has an available engine in each group")
    }

    /// Prometheus text of everything.
    #[must_use]
    pub fn render_metrics(&self) -> Vec<u8> {
        self.metrics.inflight.set(gauge(self.inflight.used()));
        self.metrics.connections.set(gauge(self.connections.used()));
        self.metrics.buffered_bytes.set(gauge(self.buffered.used()));
        self.metrics.pool_depth.set(gauge(self.pool.taken() as u64));
        let routing = self.routing();
        let members = routing.workers.members();
        let services = &self.services;
        let tokenizers = routing.models().filter_map(|model| {
            let tokenizer = model.tokenizer.as_deref()?;
            Some((&model.id, tokenizer))
        });
        self.metrics.render(&[
            gauges::of_engines(&members),
            gauges::of_affinity(&services.affinity),
            gauges::of_loads(&members, &services.loads, &self.feeds),
            gauges::of_tokenizers(tokenizers),
            gauges::of_prefixes(&services.prefixes),
        ])
    }
}

/// Gives every store the times of its model; stores of models that are gone go too.
fn configure_affinity(services: &PolicyServices, config: &Config) {
    services.affinity.configure(|kind, model| {
        let model = config.models.iter().find(|other| other.id == *model)?;
        let keys = match kind {
            AffinityKind::Session => &model.affinity.session,
            AffinityKind::Sticky => &model.affinity.sticky,
        };
        Some(AffinityTimes {
            idle: keys.idle,
            eviction_interval: keys.eviction_interval,
        })
    });
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
