//! The checked configuration: what the rest of the program sees of a file.
//!
//! Plain data. Every value is in range, every default filled in, every id unique; nothing in here
//! has to be checked again. Built only by [`parse`](crate::config::parse), or by hand in tests.
//! Source of names, units and defaults: contract §2.

mod affinity;
pub(super) mod kubernetes;
mod kv_events;
mod sampling;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use affinity::{Affinity, AffinityKeys, Slo, SloMode};
pub use kubernetes::{Kubernetes, Labels, Select};
pub use kv_events::KvEvents;
pub use sampling::{Allowed, Conflict, Number, Sampling, SamplingParam};

use crate::config::ConfigError;
use crate::ids::{BucketId, ModelId, WorkerId};
use crate::policies::{AdmissionLimits, PolicyParams, Requirements};
use crate::workers::{BreakerParams, EngineUrl, WorkerSpec};

/// One whole file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Data listeners, at least one, no two of them overlapping. Needs a restart to change.
    pub listen: Vec<SocketAddr>,
    /// The admin listener. Needs a restart to change.
    pub admin: Admin,
    /// Worker threads, 1..=1024; `None` is one per core. Needs a restart to change.
    pub threads: Option<usize>,
    /// Who may use the data listener.
    pub auth: Auth,
    /// Whether answers carry the `x-edge-…` headers.
    pub response_headers: bool,
    /// Bounds of the whole router.
    pub limits: Limits,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// What happens after SIGTERM.
    pub shutdown: Shutdown,
    /// Active health checks; `None` switches them off.
    pub health: Option<Health>,
    /// Circuit breaker of every engine; `None` switches it off.
    pub circuit_breaker: Option<BreakerParams>,
    /// What is logged.
    pub log: Log,
    /// At least one; ids and aliases are unique among each other.
    pub models: Vec<Model>,
    /// What is allowed but probably not meant, in file order. Never stops a start or a reload.
    pub warnings: Vec<ConfigError>,
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where it listens. Default 127.0.0.1:9090.
    pub listen: SocketAddr,
    /// File with the bearer token; always set when `listen` is not a loopback address.
    pub token_file: Option<PathBuf>,
}

/// Client authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// File with one key per line; `None` lets everybody in.
    pub api_keys_file: Option<PathBuf>,
}

/// Bounds of the whole router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, bytes, 1..=1 GiB. Default 32 MiB.
    pub max_body: u64,
    /// Requests in flight over all models, at least 1; `None` is no cap.
    pub max_inflight_requests: Option<u64>,
    /// Client connections on the data listener, at least 1; `None` is no cap.
    pub max_connections: Option<u64>,
    /// Sum of all request bodies held, bytes, at least `max_body`. Default 2 GiB.
    pub max_buffered_body: u64,
}

/// How long things may take. All above zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// A request head. Default 10 s.
    pub client_header: Duration,
    /// Silence inside a request body. Default 30 s.
    pub client_body_idle: Duration,
    /// A client that does not read. Default 120 s.
    pub client_write: Duration,
    /// Connecting to an engine. Default 5 s.
    pub connect: Duration,
    /// Until an engine's headers. Default 300 s.
    pub first_byte: Duration,
    /// A whole answer that is not streamed. Default 300 s.
    pub request: Duration,
    /// Silence between two chunks of a stream. Default 180 s.
    pub stream_idle: Duration,
    /// Any request, streaming included. Default 600 s.
    pub lifetime: Duration,
}

/// What happens after SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// Not ready but still serving new work, 0..=1800 s. Default 30 s.
    pub drain: Duration,
    /// Time for what is then in flight; may be zero. Default 60 s.
    pub grace: Duration,
}

/// Active health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Path that is asked, with its leading slash. Default `/health`.
    pub path: String,
    /// From one check of an engine to its next. Default 15 s.
    pub interval: Duration,
    /// For one answer. Default 25 s.
    pub timeout: Duration,
    /// Good answers in a row that make an engine healthy, at least 1. Default 1.
    pub healthy_after: u32,
    /// Bad answers in a row that make it unhealthy, at least 1. Default 3.
    pub unhealthy_after: u32,
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Least severe level written. Default `info`.
    pub level: LogLevel,
    /// Default `text`.
    pub format: LogFormat,
    /// Whether every request leaves an access line. Default true.
    pub access: bool,
}

/// Severity threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// What happened on the way.
    Debug,
    /// What an operator follows.
    Info,
    /// What should not happen.
    Warn,
    /// What must not happen.
    Error,
    /// Nothing.
    Off,
}

impl LogLevel {
    /// All levels, most talkative first.
    pub const ALL: [Self; 6] = [
        Self::Trace,
        Self::Debug,
        Self::Info,
        Self::Warn,
        Self::Error,
        Self::Off,
    ];

    /// As written in a file; also a valid `tracing` filter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Off => "off",
        }
    }
}

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Both formats.
    pub const ALL: [Self; 2] = [Self::Text, Self::Json];

    /// As written in a file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Where a model's prefix matches come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cache {
    /// The index that this process keeps from the engines' KV events.
    #[default]
    RadixTree,
    /// A remote indexer.
    Indexer(Indexer),
}

/// A remote prefix indexer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexer {
    /// Where it listens.
    pub endpoint: EngineUrl,
    /// For one query, above zero. Default 100 ms.
    pub query_timeout: Duration,
    /// Queries of this process at the same time, at least 1. Default 32.
    pub query_max_inflight: usize,
}

/// One served model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Compared exactly with the `model` of a request.
    pub id: ModelId,
    /// Further names, compared exactly.
    pub aliases: Vec<String>,
    /// Directory or `tokenizer.json`, as written; `None` estimates tokens from bytes.
    pub tokenizer: Option<PathBuf>,
    /// Whether token ids go to the engine where that is safe. Default false; needs a tokenizer.
    pub forward_input_ids: bool,
    /// What requests may ask of sampling. Default: anything.
    pub sampling: Sampling,
    /// Where keys are read and how long bindings last.
    pub affinity: Affinity,
    /// What latency targets do. Default: nothing.
    pub slo: Slo,
    /// Either all plain, or all prefill and decode. Ids unique over all models. At least one, and
    /// none if they come from a file or from Kubernetes.
    pub engines: Vec<WorkerSpec>,
    /// A file with the list of engines, which is watched.
    pub engines_file: Option<PathBuf>,
    /// Where in Kubernetes they are looked for; no two models look in the same place.
    pub engines_kubernetes: Option<Kubernetes>,
    /// File with the key that the engines demand of the router's own calls (health, `/server_info`,
    /// aborts, admin calls); clients' requests carry their own.
    pub engine_api_key_file: Option<PathBuf>,
    /// Where prefix matches come from. Default: the local index.
    pub cache: Cache,
    /// Where events and load reports of its engines come from. Default: each engine says.
    pub kv_events: KvEvents,
    /// From one question to the next, for engines that publish no load reports, at least 50 ms;
    /// `None` asks none. Default 1 s.
    pub load_poll_interval: Option<Duration>,
    /// In file order, at least one. The implicit pair `plain`, `pd` when the file names none.
    pub buckets: Vec<Bucket>,
}

impl Model {
    /// Whether the configuration itself says which engines there are.
    #[must_use]
    pub const fn lists_engines(&self) -> bool {
        self.engines_file.is_none() && self.engines_kubernetes.is_none()
    }

    /// What its requests must be prepared with: the needs of every group of every bucket.
    #[must_use]
    pub fn requirements(&self) -> Requirements {
        let groups = self.buckets.iter().flat_map(|bucket| bucket.groups.iter());
        groups.fold(Requirements::default(), |needs, group| {
            needs.and(Requirements::of(&group.policy, &group.admission))
        })
    }
}

/// One bucket: which requests it takes and the groups that serve them.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// Unique in its model.
    pub id: BucketId,
    /// Order among buckets of equal capacity, lowest first. Default 0.
    pub rank: u32,
    /// Shortest prompt it takes, tokens, inclusive.
    pub min_input_tokens: Option<u64>,
    /// Longest prompt it takes, tokens, inclusive; never below the minimum.
    pub max_input_tokens: Option<u64>,
    /// Longest prompt plus output, tokens, inclusive, above zero.
    pub max_context_tokens: Option<u64>,
    /// Expected time to first token, milliseconds, finite and above zero.
    pub ttft_ms: Option<f64>,
    /// Expected generation speed, tokens per second, finite and above zero.
    pub tokens_per_second: Option<f64>,
    /// Who serves.
    pub groups: Groups,
}

impl Bucket {
    /// What orders buckets: the smaller of the two upper bounds, tokens; `u64::MAX` without one.
    ///
    /// Source: policy-semantics §3 step 4.
    #[must_use]
    pub fn input_capacity(&self) -> u64 {
        let bound = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        bound(self.max_input_tokens).min(bound(self.max_context_tokens))
    }
}

/// The groups of one bucket; never a lone prefill or decode group.
#[expect(
    clippy::large_enum_variant,
    reason = "a handful of them per configuration"
)]
#[derive(Debug, Clone, PartialEq)]
pub enum Groups {
    /// One engine does everything.
    Plain(Group),
    /// One engine of each group.
    Pd {
        /// Takes prefill engines only.
        prefill: Group,
        /// Takes decode engines only.
        decode: Group,
    },
}

impl Groups {
    /// The one group, or prefill and then decode.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        let (first, second) = match self {
            Self::Plain(group) => (group, None),
            Self::Pd { prefill, decode } => (prefill, Some(decode)),
        };
        std::iter::once(first).chain(second)
    }
}

/// Which engines a group may use and how it chooses.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// Members; `None` is every engine of the model with the group's role, an empty set is none.
    pub worker_ids: Option<BTreeSet<WorkerId>>,
    /// How one is chosen.
    pub policy: PolicyParams,
    /// Caps per engine, each at least 1.
    pub admission: AdmissionLimits,
}
