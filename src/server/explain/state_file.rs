//! STATE.json: the state of a fleet that `sgl-edge explain` assumes. Source: `explain.md` §1.
//!
//! Read and checked as a whole, every problem at once; then put into a routing that nothing else
//! uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::ids::{BucketId, ModelId, Stage, WorkerId};
use crate::policies::PolicyServices;
use crate::server::routing::Routing;
use crate::state::prefix::{Assumption, LookupRejected, Unavailable};
use crate::state::{AffinityKind, AffinityScope, EngineLoadTable, NativeReport, RankLoad, Report};
use crate::workers::{Outcome, Worker};

/// What the file says. Every key is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StateFile {
    engines: BTreeMap<WorkerId, EngineState>,
    prefix: PrefixState,
    bindings: Vec<BindingState>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EngineState {
    healthy: bool,
    breaker: BreakerState,
    inflight: u64,
    dispatched_since_report: u64,
    ranks: Option<u32>,
    reports: Vec<ReportState>,
}

/// The last report of one rank.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportState {
    #[serde(default)]
    rank: u32,
    #[serde(default)]
    age_ms: u64,
    running: u64,
    waiting: u64,
    used_tokens: u64,
    max_total_tokens: u64,
    waiting_uncached_tokens: Option<u64>,
    total_tokens: Option<u64>,
    max_running_requests: Option<u64>,
    prefill_tokens_per_second: Option<f64>,
}

impl Default for EngineState {
    fn default() -> Self {
        Self {
            healthy: true,
            breaker: BreakerState::Closed,
            inflight: 0,
            dispatched_since_report: 0,
            ranks: None,
            reports: Vec::new(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PrefixState {
    block_size: Option<u32>,
    holders: BTreeMap<WorkerId, u32>,
    error: Option<PrefixFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PrefixFailure {
    Timeout,
    Unreachable,
    Overloaded,
    TooLarge,
    Rejected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BreakerState {
    Closed,
    Open,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingState {
    kind: BindingKind,
    bucket: BucketId,
    stage: Stage,
    key: String,
    engine: WorkerId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BindingKind {
    Session,
    Sticky,
}

impl StateFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first place that is no such JSON, with line and column.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Puts the state into `routing` and the stores of `services`, which belong to one explanation
    /// of a request for `model`.
    ///
    /// # Errors
    /// Every problem, one line each; the routing is then of no use.
    pub fn apply(
        &self,
        routing: &Routing,
        services: &PolicyServices,
        model: Option<&ModelId>,
    ) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        let workers = routing.workers.members().all();
        for (id, state) in &self.engines {
            match workers.iter().find(|worker| worker.id() == id) {
                Some(worker) => {
                    for problem in state.apply(worker, &services.loads) {
                        problems.push(format!("engines.{id}{problem}"));
                    }
                }
                None => problems.push(format!(
                    "engines.{id}: the configuration has no such engine"
                )),
            }
        }
        problems.extend(self.prefix.apply(&workers, services));
        for (index, binding) in self.bindings.iter().enumerate() {
            if let Err(problem) = binding.apply(routing, services, model) {
                problems.push(format!("bindings[{index}]{problem}"));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

impl PrefixState {
    fn apply(&self, workers: &[Arc<Worker>], services: &PolicyServices) -> Vec<String> {
        let mut problems = Vec::new();
        let mut holders = Vec::new();
        for (id, blocks) in &self.holders {
            match workers.iter().find(|worker| worker.id() == id) {
                Some(worker) => holders.push((Arc::clone(worker.origin()), *blocks)),
                None => problems.push(format!(
                    "prefix.holders.{id}: the configuration has no such engine"
                )),
            }
        }
        if self.block_size == Some(0) {
            problems.push("prefix.block_size: must be at least 1".to_owned());
        }
        if let Some(assumed) = &services.assumed_prefixes {
            assumed.assume(Assumption {
                block_size: self.block_size,
                holders,
                failure: self.error.map(|error| match error {
                    PrefixFailure::Timeout => Ok(Unavailable::Timeout),
                    PrefixFailure::Unreachable => Ok(Unavailable::Unreachable),
                    PrefixFailure::Overloaded => Ok(Unavailable::Overloaded),
                    PrefixFailure::TooLarge => Ok(Unavailable::TooLarge),
                    PrefixFailure::Rejected => Err(LookupRejected("as assumed".to_owned())),
                }),
            });
        }
        problems
    }
}

impl EngineState {
    /// The problems, each beginning with the path below the engine.
    fn apply(&self, worker: &Worker, loads: &EngineLoadTable) -> Vec<String> {
        let mut problems = Vec::new();
        worker.set_healthy(self.healthy);
        if self.breaker == BreakerState::Open && !open(worker) {
            problems.push(".breaker: circuit_breaker is off in the configuration".to_owned());
        }
        if self.dispatched_since_report > self.inflight {
            problems.push(format!(
                ".dispatched_since_report: {} is above inflight {}",
                self.dispatched_since_report, self.inflight
            ));
        }
        worker.assume_inflight(self.inflight, self.dispatched_since_report);
        problems.extend(self.report(worker, loads));
        problems
    }

    fn report(&self, worker: &Worker, loads: &EngineLoadTable) -> Vec<String> {
        let mut problems = Vec::new();
        let count = u32::try_from(self.reports.len()).unwrap_or(u32::MAX);
        let ranks = self.ranks.unwrap_or(count);
        if self.ranks == Some(0) {
            problems.push(".ranks: must be at least 1".to_owned());
        }
        loads.advertise(worker.id(), ranks);
        for (index, report) in self.reports.iter().enumerate() {
            let at = format!(".reports[{index}]");
            let earlier = &self.reports[..index];
            if report.rank >= ranks {
                problems.push(format!(
                    "{at}.rank: {} is not below {ranks} ranks",
                    report.rank
                ));
            } else if earlier.iter().any(|other| other.rank == report.rank) {
                problems.push(format!("{at}.rank: {} is there already", report.rank));
            }
            match report.load(loads.now()) {
                Ok(Some(load)) => {
                    loads.store(worker.id(), report.rank, load);
                }
                // Older than the clock: certainly stale.
                Ok(None) => {}
                Err(problem) => problems.push(at + problem),
            }
        }
        problems
    }
}

impl ReportState {
    fn load(&self, now: Instant) -> Result<Option<RankLoad>, &'static str> {
        let extension = (
            self.waiting_uncached_tokens,
            self.total_tokens,
            self.max_running_requests,
        );
        let native = match extension {
            (Some(uncached), Some(total), Some(most)) => Some(NativeReport {
                waiting_uncached_tokens: uncached,
                total_tokens: total,
                max_running_requests: most,
                prefilled_tokens: 0,
                prefill_busy_us: 0,
            }),
            (None, None, None) => None,
            _ => {
                return Err(
                    ": give all or none of waiting_uncached_tokens, total_tokens, max_running_requests",
                );
            }
        };
        if self
            .prefill_tokens_per_second
            .is_some_and(|rate| rate <= 0.0)
        {
            return Err(".prefill_tokens_per_second: must be above 0");
        }
        let report = Report {
            running_requests: self.running,
            waiting_requests: self.waiting,
            used_tokens: self.used_tokens,
            max_total_tokens: self.max_total_tokens,
            native,
        };
        let at = now.checked_sub(Duration::from_millis(self.age_ms));
        Ok(at.map(|at| RankLoad {
            report,
            at,
            prefill_rate: self.prefill_tokens_per_second,
        }))
    }
}

/// Fails the engine until its breaker opens; false when it has none.
fn open(worker: &Worker) -> bool {
    let now = Instant::now();
    if worker.breaker().params().is_none() {
        return false;
    }
    while let Some(mut permit) = worker.breaker().claim(now) {
        permit.settle(Outcome::Failure, now);
    }
    true
}

impl BindingState {
    fn apply(
        &self,
        routing: &Routing,
        services: &PolicyServices,
        model: Option<&ModelId>,
    ) -> Result<(), String> {
        // A request without a model is refused before a binding could matter.
        let Some(model) = model else { return Ok(()) };
        let mut models = routing.models();
        let buckets = models.find(|other| other.id == *model);
        let mut buckets = buckets
            .into_iter()
            .flat_map(|model| model.resolver.buckets());
        let Some(bucket) = buckets.find(|bucket| *bucket.id() == self.bucket) else {
            return Err(format!(
                ".bucket: model `{model}` has no bucket `{}`",
                self.bucket
            ));
        };
        if bucket.group(self.stage).is_none() {
            return Err(format!(
                ".stage: bucket `{}` has no {} group",
                self.bucket, self.stage
            ));
        }
        if self.key.is_empty() {
            return Err(".key: is empty, and an empty key is never bound".to_owned());
        }
        let kind = match self.kind {
            BindingKind::Session => AffinityKind::Session,
            BindingKind::Sticky => AffinityKind::Sticky,
        };
        let scope = AffinityScope {
            model,
            stage: self.stage,
            bucket: &self.bucket,
            key: &self.key,
        };
        let store = services.affinity.of(kind, model);
        store.seed(&scope, &self.engine);
        Ok(())
    }
}
