//! A whole routing built from YAML, as a start or a reload builds it, and requests through it.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use sgl_edge::buckets::{Bucket, BucketResolver};
use sgl_edge::config;
use sgl_edge::policies::{PolicyServices, SeededDraw};
use sgl_edge::server::ApiError;
use sgl_edge::server::metrics::{Metrics, gauges};
use sgl_edge::server::pool::WorkPool;
use sgl_edge::server::prepare::{Counting, Prepared, prepare};
use sgl_edge::server::routing::Routing;
use sgl_edge::server::select::{Selection, select};
use sgl_edge::state::{AffinityStores, EngineLoadTable};
use sgl_edge::workers::Worker;

use super::engines::MODEL;
use super::picks::now;

/// A router without its wire.
pub(crate) struct Router {
    pub(crate) routing: Routing,
    pub(crate) loads: Arc<EngineLoadTable>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) services: PolicyServices,
    pool: WorkPool,
}

impl Router {
    /// Parses `yaml` and builds it; draws are reproducible.
    pub(crate) fn new(yaml: &str) -> Self {
        let config = config::parse(yaml, "test.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        let loads = Arc::new(EngineLoadTable::default());
        let services = PolicyServices {
            draw: Arc::new(SeededDraw::new(1)),
            ..PolicyServices::new(Arc::clone(&loads))
        };
        let routing = Routing::build(Arc::new(config), &services, None).expect("it can be built");
        Self {
            routing,
            loads,
            metrics: Arc::default(),
            services,
            pool: WorkPool::new(1),
        }
    }

    /// A router whose only model, [`MODEL`], has these engines (`id: role`) and buckets (YAML).
    pub(crate) fn of(engines: &[(&str, &str)], buckets: &str) -> Self {
        let engines = engines.iter().zip(1..).map(|((id, role), port)| {
            format!("        - {{id: {id}, url: \"http://127.0.0.1:{port}\", role: {role}}}\n")
        });
        let engines: String = engines.collect();
        Self::new(&format!(
            "models:\n  - id: {MODEL}\n    engines:\n      static:\n{engines}{buckets}"
        ))
    }

    /// The engine with this id.
    pub(crate) fn engine(&self, id: &str) -> Arc<Worker> {
        let members = self.routing.workers.members();
        Arc::clone(members.get(&id.into()).expect("a configured engine"))
    }

    /// Prepares a body.
    pub(crate) fn prepare(&self, body: &str) -> Result<Prepared, ApiError> {
        self.prepare_with(body, &HeaderMap::new())
    }

    /// Prepares a body that came with `headers`.
    pub(crate) fn prepare_with(
        &self,
        body: &str,
        headers: &HeaderMap,
    ) -> Result<Prepared, ApiError> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        now(prepare(
            &self.routing,
            &self.pool,
            &self.metrics,
            headers,
            body,
            Counting::AsNeeded,
        ))
    }

    /// Prepares a body that must be right, and selects.
    pub(crate) fn select(&self, body: &str) -> Result<Selection, ApiError> {
        self.select_with(body, &HeaderMap::new())
    }

    /// The same for a body that came with `headers`.
    pub(crate) fn select_with(
        &self,
        body: &str,
        headers: &HeaderMap,
    ) -> Result<Selection, ApiError> {
        let prepared = self.prepare_with(body, headers).expect("a good request");
        now(select(&prepared, &self.routing.workers, &self.metrics))
    }

    /// The value of a series of the router's own metrics; 0 when it does not exist yet.
    pub(crate) fn series(&self, series: &str) -> u64 {
        value_in(&self.metrics, &self.services.affinity, series)
    }
}

/// The value of the series `name{labels}` of a router without bindings.
pub(crate) fn value(metrics: &Metrics, series: &str) -> u64 {
    value_in(metrics, &AffinityStores::default(), series)
}

/// The value of the series `name{labels}`, without the common prefix; 0 when it does not exist.
fn value_in(metrics: &Metrics, affinity: &AffinityStores, series: &str) -> u64 {
    let text = metrics.render(&[gauges::of_affinity(affinity)]);
    let text = String::from_utf8(text).expect("text");
    let line = text.lines().find_map(|line| {
        let rest = line.strip_prefix("sgl_router_")?.strip_prefix(series)?;
        rest.strip_prefix(' ')
    });
    line.map_or(0, |value| value.parse().expect("a whole number"))
}

/// Request headers.
pub(crate) fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
    let rows = rows.iter().map(|(name, value)| {
        let name = http::header::HeaderName::from_static(name);
        (name, value.parse().expect("a header value"))
    });
    rows.collect()
}

/// A chat of [`MODEL`] whose prompt has exactly `input` tokens.
pub(crate) fn chat(input: usize, max_tokens: Option<u64>) -> String {
    let ids = vec!["7"; input].join(",");
    let budget = max_tokens.map_or(String::new(), |max| format!(r#","max_tokens":{max}"#));
    format!(r#"{{"model":"{MODEL}","input_ids":[{ids}]{budget}}}"#)
}

/// A prepared request of [`MODEL`] with hand-made buckets, for what a file cannot express.
pub(crate) fn prepared(buckets: Vec<Bucket>, input_tokens: u64, peak: Option<u64>) -> Prepared {
    let mut prepared = Router::of(&[("e", "plain")], "")
        .prepare(&chat(1, None))
        .expect("a good body");
    // The router is gone, so this is the only handle of its model.
    let model = Arc::get_mut(&mut prepared.model).expect("no other handle");
    model.resolver = BucketResolver::try_new(buckets).expect("buckets without contradictions");
    prepared.prompt.input_tokens = input_tokens;
    prepared.expected_peak_tokens = peak;
    prepared
}
