//! Who exists, and who is well: engines and the registry that lists them.
//!
//! The registry is one immutable snapshot per change, so that a reader sees members, roles and
//! order together. It owns role labels; groups name engines by id only. It refuses a model that
//! mixes plain with prefill or decode engines and then changes nothing. It knows no policy, no
//! bucket and no HTTP. Source: design "Data ownership", policy-semantics §18.

pub mod availability;
pub mod breaker;
mod endpoint;
mod inflight;
mod introspection;
mod publishers;
mod registry;
mod url;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

pub use breaker::{Breaker, BreakerParams, BreakerState, Outcome, Permit};
pub use endpoint::{EndpointError, TcpEndpoint};
pub use inflight::InflightGuard;
pub use introspection::{Facts, Introspection};
pub use publishers::{LOAD_TOPIC, Publishers};
pub use registry::{Adopted, Members, RegistryError, WorkerRegistry};
pub use url::{EngineUrl, UrlError};

use crate::ids::{ModelId, Stage, WorkerId};
use inflight::Inflight;

/// What an operator or a discovery backend says of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Unique over all models.
    pub id: WorkerId,
    /// Where it listens.
    pub url: EngineUrl,
    /// The model it serves.
    pub model: ModelId,
    /// Its role label.
    pub role: Stage,
    /// Bootstrap port of a prefill engine; `None` lets the decode engine use its own default.
    pub bootstrap_port: Option<u16>,
}

/// One live engine. Handles are compared by identity, not by id.
#[derive(Debug)]
pub struct Worker {
    spec: WorkerSpec,
    origin: Arc<str>,
    address: ArcSwapOption<SocketAddr>,
    inflight: Arc<Inflight>,
    healthy: Arc<AtomicBool>,
    /// It tells a role that its model cannot have.
    misplaced: Arc<AtomicBool>,
    breaker: Arc<Breaker>,
    introspection: Arc<Introspection>,
    /// Until when it stays out if its bootstrap port is not known.
    port_due: Option<Instant>,
}

/// How long a prefill engine that joins may take to tell its bootstrap port; after it the decode
/// engine's own default has to do. Source: engine-wire §3.4.
const PORT_PATIENCE: Duration = Duration::from_secs(30);

impl Worker {
    /// A healthy, idle engine with a closed breaker.
    #[must_use]
    pub fn new(spec: WorkerSpec, breaker: Option<BreakerParams>) -> Self {
        let address = spec.url.ip().map(|ip| (ip, spec.url.port()).into());
        Self {
            origin: spec.url.to_string().into(),
            address: ArcSwapOption::from_pointee(address),
            spec,
            inflight: Arc::default(),
            healthy: Arc::new(AtomicBool::new(true)),
            misplaced: Arc::default(),
            breaker: Arc::new(Breaker::new(breaker)),
            introspection: Arc::default(),
            port_due: None,
        }
    }

    /// An engine that joins at `now` a fleet that serves: a prefill engine without a port is no
    /// candidate before it has told one, for [`PORT_PATIENCE`] at most.
    fn joining(spec: WorkerSpec, breaker: Option<BreakerParams>, now: Instant) -> Self {
        let waits = spec.role == Stage::Prefill && spec.bootstrap_port.is_none();
        Self {
            port_due: waits.then(|| now + PORT_PATIENCE),
            ..Self::new(spec, breaker)
        }
    }

    /// A handle for `spec` that continues `old`, the engine of the same id before a reload.
    ///
    /// At the same address the in-flight count and health go on, and the breaker too if its
    /// parameters are unchanged. At another address it is another engine and starts afresh; old
    /// guards keep the old counter and can never underflow the new one.
    #[must_use]
    pub fn succeed(spec: WorkerSpec, breaker: Option<BreakerParams>, old: &Self) -> Self {
        let mut worker = Self::new(spec, breaker);
        if worker.spec.url != old.spec.url {
            return worker;
        }
        worker.address.store(old.address.load_full());
        worker.inflight = Arc::clone(&old.inflight);
        worker.healthy = Arc::clone(&old.healthy);
        worker.misplaced = Arc::clone(&old.misplaced);
        worker.introspection = Arc::clone(&old.introspection);
        worker.port_due = old.port_due;
        if old.breaker.params() == breaker {
            worker.breaker = Arc::clone(&old.breaker);
        }
        worker
    }

    /// What it was made from.
    #[must_use]
    pub const fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Whether `other` is a handle of this very engine, before or after a reload.
    #[must_use]
    pub fn same_engine(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.introspection, &other.introspection)
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &WorkerId {
        &self.spec.id
    }

    /// Its address as configured.
    #[must_use]
    pub const fn url(&self) -> &EngineUrl {
        &self.spec.url
    }

    /// `HOST:PORT`, as in its `Host` header.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.origin.strip_prefix("http://").unwrap_or(&self.origin)
    }

    /// `http://HOST:PORT`: the name under which prefix indexes know it.
    #[must_use]
    pub const fn origin(&self) -> &Arc<str> {
        &self.origin
    }

    /// The model it serves.
    #[must_use]
    pub const fn model(&self) -> &ModelId {
        &self.spec.model
    }

    /// Its role label.
    #[must_use]
    pub const fn role(&self) -> Stage {
        self.spec.role
    }

    /// Bootstrap port of a prefill engine, when known: the configured one, else what it told.
    #[must_use]
    pub fn bootstrap_port(&self) -> Option<u16> {
        let told = || self.introspection.facts().bootstrap_port;
        let port = self.spec.bootstrap_port.or_else(told);
        port.filter(|_| self.spec.role == Stage::Prefill)
    }

    /// The socket address; `None` while a host name has not been resolved.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.load().as_deref().copied()
    }

    /// Stores what a host name resolved to.
    pub fn set_address(&self, address: SocketAddr) {
        if self.address() != Some(address) {
            self.address.store(Some(Arc::new(address)));
        }
    }

    /// Requests this router holds a guard for.
    #[must_use]
    pub fn inflight(&self) -> u64 {
        self.inflight.requests()
    }

    /// Prompt tokens of the requests this router holds a guard for.
    #[must_use]
    pub fn inflight_tokens(&self) -> u64 {
        self.inflight.tokens()
    }

    /// Whether active health checks let it serve. True until a check says otherwise.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Stores the verdict of the active health checks.
    pub fn set_healthy(&self, healthy: bool) {
        if self.healthy.swap(healthy, Ordering::Relaxed) != healthy {
            availability::changed();
        }
    }

    /// A handle with the role that the engine tells, where it differs from its label. A bootstrap
    /// port that was configured stays.
    pub(crate) fn as_told(&self) -> Option<Self> {
        let facts = self.introspection.facts();
        let role = facts.role.filter(|role| *role != self.spec.role)?;
        let spec = WorkerSpec {
            role,
            ..self.spec.clone()
        };
        Some(Self::succeed(spec, self.breaker.params(), self))
    }

    /// Whether it tells a role that its model cannot have, and is left out therefore.
    #[must_use]
    pub fn misplaced(&self) -> bool {
        self.misplaced.load(Ordering::Relaxed)
    }

    /// Leaves it out or takes it back; true if that changed anything.
    pub(crate) fn set_misplaced(&self, misplaced: bool) -> bool {
        let changed = self.misplaced.swap(misplaced, Ordering::Relaxed) != misplaced;
        if changed {
            availability::changed();
        }
        changed
    }

    /// What it said of itself.
    #[must_use]
    pub fn introspection(&self) -> &Introspection {
        &self.introspection
    }

    /// Its circuit breaker.
    #[must_use]
    pub const fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    /// Whether a group may offer it to a policy at `now`. Changes nothing.
    #[must_use]
    pub fn available(&self, now: Instant) -> bool {
        self.healthy()
            && !self.misplaced()
            && self
                .port_due
                .is_none_or(|due| now >= due || !self.lacks_port())
            && self.breaker.would_allow(now)
    }

    fn lacks_port(&self) -> bool {
        self.spec.role == Stage::Prefill && self.bootstrap_port().is_none()
    }

    /// When the answer of [`available`](Self::available) may change after `now` by time alone.
    #[must_use]
    pub fn availability_changes_at(&self, now: Instant) -> Option<Instant> {
        let due = self.port_due.filter(|due| now < *due && self.lacks_port());
        [due, self.breaker.changes_at(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Of the requests this router holds a guard for, those dispatched at `since` or later.
    ///
    /// Source: policy-semantics §11 `recent`.
    #[must_use]
    pub fn dispatched_since(&self, since: Instant) -> u64 {
        self.inflight.since(since)
    }

    /// Counts one dispatched request of `input_tokens` prompt tokens until the guard is dropped.
    pub fn acquire(&self, input_tokens: u64) -> InflightGuard {
        self.acquire_at(input_tokens, Instant::now())
    }

    /// The same for a request that was dispatched at `at`.
    pub fn acquire_at(&self, input_tokens: u64, at: Instant) -> InflightGuard {
        self.inflight.acquire(input_tokens, at)
    }

    /// Counts `requests` as in flight for good, `recent` of them as dispatched since any report: an
    /// assumption about a fleet that is only explained.
    pub fn assume_inflight(&self, requests: u64, recent: u64) {
        self.inflight.assume(requests, recent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(url: &str) -> WorkerSpec {
        WorkerSpec {
            id: "e1".into(),
            url: EngineUrl::parse(url).unwrap(),
            model: "m".into(),
            role: Stage::Plain,
            bootstrap_port: None,
        }
    }

    #[test]
    fn guards_count_across_a_reload_and_return_to_zero() {
        let params = Some(BreakerParams::default());
        let old = Worker::new(spec("http://127.0.0.1:1"), params);
        let guard = old.acquire(7);
        let new = Worker::succeed(spec("http://127.0.0.1:1"), params, &old);
        assert_eq!((new.inflight(), new.inflight_tokens()), (1, 7));
        drop(guard);
        assert_eq!((old.inflight(), new.inflight()), (0, 0));
        assert_eq!(new.inflight_tokens(), 0);
        assert!(Arc::ptr_eq(old.breaker(), new.breaker()));
    }

    #[test]
    fn the_same_id_at_another_address_starts_afresh_and_old_guards_do_not_underflow_it() {
        let old = Worker::new(spec("http://127.0.0.1:1"), None);
        let guard = old.acquire(7);
        let new = Worker::succeed(spec("http://127.0.0.1:2"), None, &old);
        assert_eq!(new.inflight(), 0);
        drop(guard);
        assert_eq!(new.inflight(), 0);
    }

    #[test]
    fn changed_breaker_parameters_give_a_new_breaker() {
        let old = Worker::new(spec("http://127.0.0.1:1"), None);
        let params = Some(BreakerParams::default());
        let new = Worker::succeed(spec("http://127.0.0.1:1"), params, &old);
        assert_eq!(new.breaker().params(), params);
    }
}
