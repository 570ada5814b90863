//! What a mock engine is started with.
//!
//! Values only. Everything that can be changed while the engine runs is a fault
//! ([`Faults`](super::Faults)), not a setting.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::faults::Faults;
use super::indexer::IndexerHandle;
use super::kv::MockTokenizer;

/// The part an engine plays in a deployment; `disaggregation_mode` of `/server_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Computes and generates: `"null"` on the wire.
    #[default]
    Plain,
    /// Computes the KV cache and hands it over; replies with one token.
    Prefill,
    /// Generates from a KV cache fetched from a prefill engine.
    Decode,
}

impl Role {
    /// The value of `disaggregation_mode` in `/server_info`.
    #[must_use]
    pub fn disaggregation_mode(self) -> &'static str {
        match self {
            Self::Plain => "null",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The word used on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" => Ok(Self::Plain),
            "prefill" => Ok(Self::Prefill),
            "decode" => Ok(Self::Decode),
            other => Err(format!(
                "unknown role `{other}`, expected plain, prefill or decode"
            )),
        }
    }
}

/// Settings of one mock engine, fixed for its life.
///
/// ```
/// use sgl_edge::mock::{EngineConfig, Role};
/// let decode = EngineConfig { name: "D1".into(), role: Role::Decode, ..EngineConfig::default() };
/// assert_eq!(decode.reply_tokens, 8);
/// ```
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Value of the header `x-mock-engine` on every answer.
    pub name: String,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Served model name.
    pub model: String,
    /// Plain, prefill or decode.
    pub role: Role,
    /// Port of the bootstrap server of a prefill engine, on the IP of `listen`; port 0 takes a
    /// free one. Other roles only report it, and decode uses it when a body says `null`.
    pub bootstrap_port: u16,
    /// Most tokens of an answer when the request names no limit.
    pub reply_tokens: u32,
    /// Time to the first token, without queueing and prefill rate.
    pub ttft: Duration,
    /// Time between two tokens.
    pub token_interval: Duration,
    /// Prompt tokens computed in a second, added to `ttft`; `None` = at once. Unused by decode.
    pub prefill_rate: Option<u32>,
    /// How long the two sides of a room wait for each other.
    pub pd_timeout: Duration,
    /// How long `/health` takes. A real engine needs about a second.
    pub health_delay: Duration,
    /// Requests computed at the same time; more wait in a queue.
    pub max_running_requests: u32,
    /// Requests that may wait; one more is refused with 503. `None` = no limit.
    pub max_queued_requests: Option<u32>,
    /// Longest prompt, tokens; a longer one is refused with 400.
    pub context_length: u32,
    /// KV capacity, tokens, per rank.
    pub max_total_num_tokens: u64,
    /// Page size of the cache, tokens, above 0.
    pub page_size: u32,
    /// Port of the KV event publisher of rank 0 on the IP of `listen`, the other ranks follow; port
    /// 0 takes a free one (one rank only). `None` publishes nothing.
    pub kv_port: Option<u16>,
    /// Port of the replay socket of rank 0, likewise; `None` offers no replay.
    pub kv_replay_port: Option<u16>,
    /// Topic of KV events.
    pub kv_topic: String,
    /// Data-parallel ranks, each with a cache of its own; requests take turns.
    pub kv_ranks: u16,
    /// Hash pairs of tokens, as engines of the EAGLE family do.
    pub bigram: bool,
    /// Report cached tokens in `usage`, like `--enable-cache-report`.
    pub cache_report: bool,
    /// An indexer of this process that learns what the engine stores and evicts.
    pub indexer: Option<IndexerHandle>,
    /// The tokenizer of the model; without one, four bytes of text are a token.
    pub tokenizer: Option<Arc<dyn MockTokenizer>>,
    /// Announce HTTP/2 with prior knowledge in `/server_info`; it is spoken either way.
    pub enable_http2: bool,
    /// Demand this bearer everywhere but on `/health…`, `/ready` and `/metrics`, as a real engine
    /// does with `--api-key`; the control routes stay open.
    pub api_key: Option<String>,
    /// Keep the last requests with their bodies. `false` for load tests.
    pub record: bool,
    /// Answer chats at once with canned text: no queue, no cache, no faults of generation. For load
    /// tests of what stands in front.
    pub instant: bool,
    /// Port of the load reports of rank 0, as `--load-publish-endpoint` makes a real engine send;
    /// needs `kv_port`; port 0 takes free ones.
    pub load_port: Option<u16>,
    /// Faults that are on from the start.
    pub faults: Faults,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            name: "mock".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "demo".to_owned(),
            role: Role::Plain,
            bootstrap_port: 8998,
            reply_tokens: 8,
            ttft: Duration::ZERO,
            token_interval: Duration::ZERO,
            prefill_rate: None,
            pd_timeout: Duration::from_secs(300),
            health_delay: Duration::ZERO,
            max_running_requests: 256,
            max_queued_requests: None,
            context_length: 131_072,
            max_total_num_tokens: 1_048_576,
            page_size: 64,
            kv_port: None,
            kv_replay_port: None,
            kv_topic: String::new(),
            kv_ranks: 1,
            bigram: false,
            cache_report: false,
            indexer: None,
            tokenizer: None,
            enable_http2: false,
            api_key: None,
            record: true,
            instant: false,
            load_port: None,
            faults: Faults::default(),
        }
    }
}

/// Reads `20ms`, `1.5s`, `2m`, `250us` or a bare `0`.
///
/// # Errors
/// A sentence for the operator when the number or the unit cannot be read.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a duration, expected for example 20ms or 1.5s"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "" if number == 0.0 => 0.0,
        _ => return Err(format!("`{text}` needs a unit: us, ms, s or m")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("`{text}`: {error}"))
}
