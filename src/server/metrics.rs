//! Counters and histograms of the router, and the text a scrape gets.
//!
//! Samples state when scraped; state never calls it. Labels are closed sets: models, buckets and
//! engines come from the configuration, never from a client. Gauges of engines are read at scrape
//! time, so a removed engine disappears at once. Source: contract §5, policy-semantics §22,
//! http-and-operations §18.

pub mod gauges;
mod registrar;
mod tokenizing;

use prometheus::core::Collector;
use prometheus::{Encoder, Histogram, IntGauge, Registry, TextEncoder};

use crate::config::SamplingParam;
use crate::ids::{BucketId, ModelId, Stage};
use crate::policies::{Limit, PolicyKind, Reason};
use crate::series::{Counters, Histograms};
use crate::server::dispatch::LegOutcome;
use crate::workers::Worker;
use registrar::Registrar;
pub use tokenizing::TokenizeMetrics;

/// Upper bounds of request durations, seconds; an hour at the end because generations are long.
const DURATION_BOUNDS: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    3600.0,
];
/// Upper bounds of first-token times, seconds: the engine's own grid, from 1 ms.
const TTFT_BOUNDS: [f64; 23] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0,
    40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
];
/// Upper bounds of wrong predictions, tokens.
const CACHED_ERROR_BOUNDS: [f64; 9] = [
    0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0,
];
/// Upper bounds of prefixes, blocks.
const OVERLAP_BOUNDS: [f64; 14] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
];
/// Upper bounds of the router's own work, seconds.
const WORK_BOUNDS: [f64; 14] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001,
    0.005, 0.025, 0.1, 0.5, 2.5,
];

/// All series of one router.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Counters,
    responses: Counters,
    worker_requests: Counters,
    stream_outcomes: Counters,
    bucket_attempts: Counters,
    admission_rejections: Counters,
    policy_decisions: Counters,
    policy_selection_failures: Counters,
    sticky: Counters,
    cache_decisions: Counters,
    diverted_overlap: Histograms,
    cached_tokens: Counters,
    cached_error: Histograms,
    sampling_rejections: Counters,
    config_reloads: Counters,
    stale_requests: Counters,
    request_duration: Histograms,
    ttfb: Histograms,
    ttft: Histograms,
    streams_without_token: Counters,
    streams_uninspectable: Counters,
    /// Time of one bucket loop, seconds.
    pub selection_seconds: Histogram,
    /// Prompts and their ids.
    pub tokenizing: TokenizeMetrics,
    /// Pieces of work that wait for, or hold, a thread of the pool.
    pub pool_depth: IntGauge,
    /// Generation of the active configuration.
    pub config_generation: IntGauge,
    /// Requests this router is serving.
    pub inflight: IntGauge,
    /// Open client connections.
    pub connections: IntGauge,
    /// Bytes of request bodies held.
    pub buffered_bytes: IntGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let new = Registrar(
            Registry::new_custom(Some("sgl_router".into()), None)
                .expect("the prefix is a valid name"),
        );
        Self {
            requests: new.counter("requests_total", "requests taken in", &["route", "method"]),
            responses: new.counter(
                "responses_total",
                "answers given",
                &["route", "method", "status_code"],
            ),
            worker_requests: new.counter(
                "worker_requests_total",
                "dispatched legs by how they ended",
                &["worker_url", "model_id", "mode", "outcome"],
            ),
            stream_outcomes: new.counter(
                "stream_outcome_total",
                "ends of 2xx streams",
                &["worker_url", "model_id", "outcome"],
            ),
            bucket_attempts: new.counter(
                "bucket_attempts_total",
                "buckets tried by what came of it",
                &["model", "bucket", "outcome"],
            ),
            admission_rejections: new.counter(
                "admission_rejections_total",
                "engines refused by a cap",
                &["model", "bucket", "stage", "limit"],
            ),
            policy_decisions: new.counter(
                "policy_decisions_total",
                "final plain or prefill decisions",
                &["policy", "reason"],
            ),
            policy_selection_failures: new.counter(
                "policy_selection_failures_total",
                "requests for which no bucket supplied its engines",
                &["policy", "reason"],
            ),
            cache_decisions: new.counter(
                "cache_aware_decisions_total",
                "complete selections by cache_aware",
                &["model_id", "decision"],
            ),
            diverted_overlap: new.histograms(
                "diverted_overlap_blocks",
                "deepest prefix given up because its holder's queue was full, blocks",
                &["model_id"],
                &OVERLAP_BOUNDS,
            ),
            cached_tokens: new.counter(
                "cached_tokens_total",
                "cached prompt tokens of answers that report them: predicted by the index, and reported",
                &["worker_url", "kind"],
            ),
            cached_error: new.histograms(
                "cached_tokens_error",
                "distance between predicted and reported cached tokens of one answer",
                &["worker_url"],
                &CACHED_ERROR_BOUNDS,
            ),
            sticky: new.counter(
                "sticky_total",
                "picks by routing key of complete selections",
                &["outcome"],
            ),
            sampling_rejections: new.counter(
                "sampling_contract_rejections_total",
                "sampling parameters that broke a contract",
                &["param"],
            ),
            config_reloads: new.counter("config_reloads_total", "reloads", &["outcome"]),
            stale_requests: new.counter(
                "stale_requests_total",
                "requests that outlived their lifetime",
                &["outcome"],
            ),
            request_duration: new.histograms(
                "request_duration_seconds",
                "arrival to the end of the answer",
                &["model_id"],
                &DURATION_BOUNDS,
            ),
            ttfb: new.histograms(
                "ttfb_seconds",
                "arrival to the first chunk of a 2xx stream",
                &["model_id"],
                &TTFT_BOUNDS,
            ),
            ttft: new.histograms(
                "ttft_seconds",
                "arrival to the first generated token of a 2xx stream",
                &["model_id"],
                &TTFT_BOUNDS,
            ),
            streams_without_token: new.counter(
                "streams_without_token_total",
                "2xx streams that ended before any generated token",
                &["model_id", "reason"],
            ),
            streams_uninspectable: new.counter(
                "streams_uninspectable_total",
                "2xx streams with a line too long to be looked at",
                &["model_id"],
            ),
            selection_seconds: new.histogram("selection_seconds", "one bucket loop"),
            tokenizing: TokenizeMetrics::new(&new),
            pool_depth: new.gauge(
                "tokenize_queue_depth",
                "work that holds or awaits a pool thread",
            ),
            config_generation: new.gauge("config_generation", "active configuration"),
            inflight: new.gauge("inflight_requests", "requests being served"),
            connections: new.gauge("client_connections", "open client connections"),
            buffered_bytes: new.gauge("buffered_body_bytes", "request bodies held"),
            registry: new.0,
        }
    }
}

impl Metrics {
    /// A request came in.
    pub fn request(&self, route: &'static str, method: &'static str) {
        self.requests.inc(&[route, method]);
    }

    /// A request was answered; intake minus answers is in flight, cancelled or lost.
    pub fn response(&self, route: &'static str, method: &'static str, status: u16) {
        let mut digits = itoa::Buffer::new();
        let labels = [route, method, digits.format(status)];
        self.responses.inc(&labels);
    }

    /// A leg ended.
    pub fn worker_request(&self, engine: &Worker, model: &ModelId, outcome: LegOutcome) {
        let labels = [
            engine.id().as_str(),
            model.as_str(),
            engine.role().as_str(),
            outcome.as_str(),
        ];
        self.worker_requests.inc(&labels);
    }

    /// A 2xx stream ended.
    pub fn stream_outcome(&self, engine: &Worker, model: &ModelId, outcome: &'static str) {
        let labels = [engine.id().as_str(), model.as_str(), outcome];
        self.stream_outcomes.inc(&labels);
    }

    /// A bucket was tried.
    pub fn bucket_attempt(&self, model: &ModelId, bucket: &BucketId, outcome: &'static str) {
        let labels = [model.as_str(), bucket.as_str(), outcome];
        self.bucket_attempts.inc(&labels);
    }

    /// A cap refused an engine.
    pub fn admission_rejection(
        &self,
        model: &ModelId,
        bucket: &BucketId,
        stage: Stage,
        limit: Limit,
    ) {
        let labels = [
            model.as_str(),
            bucket.as_str(),
            stage.as_str(),
            limit.as_str(),
        ];
        self.admission_rejections.inc(&labels);
    }

    /// A complete selection was made.
    pub fn policy_decision(&self, policy: PolicyKind, reason: Reason) {
        let labels = [policy.as_str(), reason.as_str()];
        self.policy_decisions.inc(&labels);
    }

    /// A complete selection was made by `cache_aware`. Source: policy-semantics §22.
    pub fn cache_decision(&self, model: &ModelId, reason: Reason) {
        let decision = match reason {
            Reason::CacheCandidate => "cache_hit",
            Reason::SaturationPin => "all_queued",
            Reason::NoCacheCandidate { diverted_blocks: 0 } => "cache_miss",
            Reason::NoCacheCandidate { diverted_blocks } => {
                self.diverted_overlap
                    .observe(&[model.as_str()], f64::from(diverted_blocks));
                "cache_worker_queued"
            }
            _ => return,
        };
        self.cache_decisions.inc(&[model.as_str(), decision]);
    }

    /// `engine` reported how much of a prompt it had cached; the index had predicted it.
    pub fn cached_tokens(&self, engine: &Worker, predicted: u64, reported: u64) {
        let id = engine.id().as_str();
        for (kind, tokens) in [("predicted", predicted), ("reported", reported)] {
            self.cached_tokens.inc_by(&[id, kind], tokens);
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "prompts are far below 2^53 tokens"
        )]
        let distance = predicted.abs_diff(reported) as f64;
        self.cached_error.observe(&[id], distance);
    }

    /// A pick of a complete selection was made by routing key, with this outcome.
    pub fn sticky(&self, outcome: &'static str) {
        self.sticky.inc(&[outcome]);
    }

    /// No bucket supplied its engines; the policy that was asked last, and why it gave none.
    pub fn policy_selection_failure(&self, policy: PolicyKind, reason: &'static str) {
        let labels = [policy.as_str(), reason];
        self.policy_selection_failures.inc(&labels);
    }

    /// A request asked for a value that its model's contract does not allow.
    pub fn sampling_rejection(&self, param: SamplingParam) {
        self.sampling_rejections.inc(&[param.as_str()]);
    }

    /// A reload ended.
    pub fn config_reload(&self, outcome: &'static str) {
        self.config_reloads.inc(&[outcome]);
    }

    /// The janitor ended `count` requests.
    pub fn stale_requests(&self, count: u64) {
        self.stale_requests.inc_by(&["expired"], count);
    }

    /// A request of a known model ended after `seconds`.
    pub fn request_duration(&self, model: &ModelId, seconds: f64) {
        self.request_duration.observe(&[model.as_str()], seconds);
    }

    /// The first chunk of a 2xx stream came `seconds` after arrival.
    pub fn ttfb(&self, model: &ModelId, seconds: f64) {
        self.ttfb.observe(&[model.as_str()], seconds);
    }

    /// The first generated token of a 2xx stream came `seconds` after arrival.
    pub fn ttft(&self, model: &ModelId, seconds: f64) {
        self.ttft.observe(&[model.as_str()], seconds);
    }

    /// A 2xx stream ended without any generated token, for this reason.
    pub fn stream_without_token(&self, model: &ModelId, reason: &'static str) {
        let labels = [model.as_str(), reason];
        self.streams_without_token.inc(&labels);
    }

    /// A 2xx stream had a line too long to be looked at.
    pub fn stream_uninspectable(&self, model: &ModelId) {
        self.streams_uninspectable.inc(&[model.as_str()]);
    }

    /// Registers series that are counted elsewhere.
    pub fn add(&self, collectors: Vec<Box<dyn Collector>>) {
        for collector in collectors {
            self.registry
                .register(collector)
                .expect("every name is registered once");
        }
    }

    /// Prometheus text (version 0.0.4) of everything, with the gauges that their
    /// `owners` show now ([`gauges`]).
    #[must_use]
    pub fn render(&self, owners: &[Registry]) -> Vec<u8> {
        let mut families = self.registry.gather();
        families.extend(owners.iter().flat_map(Registry::gather));
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&families, &mut text)
            .expect("a vector takes every write");
        text
    }
}
