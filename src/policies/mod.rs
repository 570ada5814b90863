//! Which engine of a given set takes a request: the policy contract and its construction.
//!
//! A policy sees facts and candidates. It owns its state handles, its fallback and where admission
//! is asked. It refuses to know HTTP, other buckets, other groups or other roles, and it never
//! returns an engine it was not given (the group checks that by identity). Source: design §4, §5.

pub mod admission;
mod affinity;
mod cache_aware;
mod draw;
mod error;
pub mod explain;
mod kind;
mod least_load;
mod params;
mod power_of_two;
mod pressure;
mod random;
mod requirements;
mod round_robin;
mod session_aware;
mod sticky;

use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;

use futures_util::future::Either;

pub use admission::{
    Admission, AdmissionLimits, EngineAdmission, EngineMetrics, Limit, ParamsError, Rejection,
};
pub use affinity::Affinity;
pub use cache_aware::{CacheAwareParams, CacheAwarePolicy, CacheCounters};
pub use draw::{Draw, SeededDraw, ThreadDraw};
pub use error::{Disposition, PickError};
use explain::Explanation;
pub use kind::PolicyKind;
pub use least_load::LeastLoadPolicy;
pub use params::{PolicyParams, PowerOfTwoParams, StickyFallback, StickyParams};
pub use power_of_two::PowerOfTwoPolicy;
pub use pressure::{Pressure, Source as PressureSource, compare as compare_pressure};
pub use random::RandomPolicy;
pub use requirements::Requirements;
pub use round_robin::RoundRobinPolicy;
pub use session_aware::SessionAwarePolicy;
pub use sticky::StickyPolicy;

use crate::ids::{BucketId, ModelId, Stage, WorkerId};
use crate::state::prefix::{
    AssumedPrefixes, BoxFuture, CacheSource, LocalPrefixes, PrefixIndexes, PrefixMemo,
};
use crate::state::{AffinityKind, AffinityStores, EngineLoadTable};
use crate::workers::Worker;

/// An answer that most policies have at once, without a heap allocation; a pick may also wait for a
/// remote index.
pub type PickFuture<'a> =
    Either<Ready<Result<Pick, PickError>>, BoxFuture<'a, Result<Pick, PickError>>>;

/// The pick of a policy that need not wait.
#[must_use]
pub fn at_once<'a>(picked: Result<Pick, PickError>) -> PickFuture<'a> {
    Either::Left(ready(picked))
}

/// The pick of a policy that may wait.
#[must_use]
pub fn in_time<'a>(
    picking: impl Future<Output = Result<Pick, PickError>> + Send + 'a,
) -> PickFuture<'a> {
    Either::Right(Box::pin(picking))
}

/// The facts a policy may use. No body, no headers, no state handles. Source: design §4.
#[derive(Debug, Clone, Copy)]
pub struct PickRequest<'a> {
    /// Requested model.
    pub model: &'a ModelId,
    /// Role of the group that asks.
    pub stage: Stage,
    /// Bucket of the group that asks.
    pub bucket: &'a BucketId,
    /// Prompt length, tokens, at least 1.
    pub input_tokens: u64,
    /// Prompt plus requested output, tokens; `None` when the output budget is unknown.
    pub expected_peak_tokens: Option<u64>,
    /// Token ids of the prompt when tokenization worked.
    pub token_ids: Option<&'a [u32]>,
    /// Session header value, when the model reads one and it is not empty.
    pub session_key: Option<&'a str>,
    /// Routing-key header value, likewise.
    pub routing_key: Option<&'a str>,
    /// What indexes know of the prompt, looked up at most once per source and request.
    pub prefix: &'a PrefixMemo<'a>,
    /// Where to write down what is seen. With it a pick must change nothing: no cursor, binding or
    /// counter.
    pub explain: Option<&'a Explanation>,
}

/// Why a policy chose an engine; the closed set of metric and log labels.
///
/// Source: policy-semantics §22.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The rotation's turn.
    RoundRobin,
    /// A uniform draw.
    Random,
    /// Under the least pressure of the sample.
    PowerOfTwo,
    /// Holding the least work of all.
    LeastLoad,
    /// The session's binding.
    SessionPrimary,
    /// A session without a usable binding was placed.
    Assigned,
    /// A request without a session was placed.
    NoSession,
    /// The routing key's binding.
    StickyHit,
    /// A routing key without a binding was placed.
    StickyAssigned,
    /// A routing key whose engine is no candidate any more was placed.
    StickyRemap,
    /// A request without a routing key was placed.
    NoRoutingKey,
    /// The best usable holder of the prompt's prefix.
    CacheCandidate,
    /// A holder that is taken although its queue is at the soft limit, because everybody's is.
    SaturationPin,
    /// No usable holder: load decided.
    NoCacheCandidate {
        /// Deepest prefix given up because its holder was over the soft limit, blocks; 0 when no
        /// holder was held back.
        diverted_blocks: u32,
    },
}

impl Reason {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::LeastLoad => "least_load",
            Self::SessionPrimary => "session_primary",
            Self::Assigned => "assigned",
            Self::NoSession => "no_session",
            Self::StickyHit => "sticky_hit",
            Self::StickyAssigned => "sticky_assigned",
            Self::StickyRemap => "sticky_remap",
            Self::NoRoutingKey => "no_routing_key",
            Self::CacheCandidate => "cache_candidate",
            Self::SaturationPin => "saturation_pin",
            Self::NoCacheCandidate { .. } => "no_cache_candidate",
        }
    }
}

impl Reason {
    /// The label of `sticky_total`, for the reasons of `sticky`. Source: policy-semantics §22.
    #[must_use]
    pub const fn sticky_outcome(self) -> Option<&'static str> {
        match self {
            Self::StickyHit => Some("hit"),
            Self::StickyAssigned => Some("assigned"),
            Self::StickyRemap => Some("remap"),
            Self::NoRoutingKey => Some("no_routing_key"),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One chosen engine, which passed admission, and why.
#[derive(Debug, Clone)]
pub struct Pick {
    /// The very handle that was among the candidates.
    pub engine: Arc<Worker>,
    /// Label for metrics and logs.
    pub reason: Reason,
}

/// Chooses one engine of a set.
pub trait Policy: Send + Sync + fmt::Debug {
    /// Which of the seven policies this is, for metrics and descriptions.
    fn kind(&self) -> PolicyKind;

    /// Chooses among `engines`, which are sorted by id and may take the request's stage.
    ///
    /// # Errors
    /// See [`PickError`]; [`PickError::disposition`] says what the bucket loop does with each.
    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a>;
}

/// Shared services that policies may need. Built once per process; survives a reload.
#[derive(Debug, Clone)]
pub struct PolicyServices {
    /// Engine reports.
    pub loads: Arc<EngineLoadTable>,
    /// Bindings of sessions and routing keys.
    pub affinity: Arc<AffinityStores>,
    /// Where randomness comes from.
    pub draw: Arc<dyn Draw>,
    /// Each model's local prefix index.
    pub prefixes: Arc<PrefixIndexes>,
    /// Stands in for every model's source when a request is explained from files.
    pub assumed_prefixes: Option<Arc<AssumedPrefixes>>,
    /// Where the policies being built look prefixes up: their model's source.
    pub prefix_source: Arc<dyn CacheSource>,
    /// What cache-aware picks count.
    pub cache_counters: Arc<CacheCounters>,
}

impl PolicyServices {
    /// Services with this load table, no bindings and the thread-local generator.
    #[must_use]
    pub fn new(loads: Arc<EngineLoadTable>) -> Self {
        Self {
            loads,
            affinity: Arc::default(),
            draw: Arc::new(ThreadDraw),
            prefixes: Arc::default(),
            assumed_prefixes: None,
            prefix_source: Arc::<LocalPrefixes>::default(),
            cache_counters: Arc::default(),
        }
    }

    /// The same services for policies that look prefixes up in `source`.
    #[must_use]
    pub fn with_prefix_source(&self, source: Arc<dyn CacheSource>) -> Self {
        Self {
            prefix_source: source,
            ..self.clone()
        }
    }
}

/// The ids of `engines` in their order, as a capture of loads wants them.
pub(crate) fn ids(engines: &[Arc<Worker>]) -> impl Iterator<Item = &WorkerId> {
    engines.iter().map(|engine| engine.id())
}

/// Builds the policy object of one role group of `model`. Every group gets an object of its own,
/// because cursors live in it. Source: policy-semantics §4, §12.
#[must_use]
pub fn build(
    params: &PolicyParams,
    admission: AdmissionLimits,
    model: &ModelId,
    services: &PolicyServices,
) -> Arc<dyn Policy> {
    let admission: Arc<dyn EngineAdmission> = Arc::new(admission);
    let loads = Arc::clone(&services.loads);
    let affinity = |kind, fallback: &PolicyParams, admission| Affinity {
        store: services.affinity.of(kind, model),
        fallback: build(fallback, AdmissionLimits::default(), model, services),
        loads: Arc::clone(&services.loads),
        admission,
    };
    match params {
        PolicyParams::RoundRobin => Arc::new(RoundRobinPolicy::new(loads, admission)),
        PolicyParams::Random => Arc::new(RandomPolicy::new(
            loads,
            admission,
            Arc::clone(&services.draw),
        )),
        PolicyParams::LeastLoad => Arc::new(LeastLoadPolicy::new(loads, admission)),
        PolicyParams::PowerOfTwo(params) => Arc::new(PowerOfTwoPolicy::new(
            *params,
            loads,
            admission,
            Arc::clone(&services.draw),
        )),
        PolicyParams::SessionAware => Arc::new(SessionAwarePolicy::new(affinity(
            AffinityKind::Session,
            &PolicyParams::default(),
            admission,
        ))),
        PolicyParams::Sticky(params) => Arc::new(StickyPolicy::new(affinity(
            AffinityKind::Sticky,
            &params.fallback.params(),
            admission,
        ))),
        PolicyParams::CacheAware(params) => {
            Arc::new(CacheAwarePolicy::new(*params, admission, services))
        }
    }
}
