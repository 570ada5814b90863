//! Requests that are being served, and the janitor that ends those which take too long.
//!
//! An [`Exchange`] is shared by the request's own task, its prefill leg and the janitor. The first
//! cause given to [`Exchange::end`] wins and cuts the engine connection, which wakes the request's
//! task; that task then reads the cause and answers. Dropping the [`LiveGuard`] removes the entry;
//! the janitor holds no count of its own, so nothing can be released twice.
//! Source: http-and-operations §12, §16.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;

use crate::server::ApiError;

/// A connection that can be broken off from another task.
pub trait Cut: Send + Sync + fmt::Debug {
    /// Ends the connection at once; harmless when it is gone already.
    fn cut(&self);

    /// Whether the other side has sent something that has not been read yet.
    fn unread(&self) -> bool;
}

/// An engine's own refusal, kept to be passed on unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAnswer {
    /// HTTP status.
    pub status: u16,
    /// Its content type, when it had one.
    pub content_type: Option<String>,
    /// Its `Retry-After`, when it had one.
    pub retry_after: Option<String>,
    /// Its body.
    pub body: Bytes,
}

/// Why an exchange was ended from outside its own task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndCause {
    /// No answer from the engine within `timeouts.first_byte`.
    FirstByte,
    /// Silence between two chunks longer than `timeouts.stream_idle`.
    StreamIdle,
    /// A whole non-streaming answer took longer than `timeouts.request`.
    Request,
    /// Longer than `timeouts.lifetime`.
    Lifetime,
    /// The prefill leg failed.
    PrefillFailed,
    /// The prefill engine refused the request itself (4xx).
    PrefillRefused(EngineAnswer),
    /// The client left; nobody is there to be answered.
    ClientGone,
}

impl EndCause {
    /// The label in logs.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::FirstByte => "first_byte_timeout",
            Self::StreamIdle => "stream_idle_timeout",
            Self::Request => "request_timeout",
            Self::Lifetime => "expired",
            Self::PrefillFailed => "prefill_failed",
            Self::PrefillRefused(_) => "prefill_refused",
            Self::ClientGone => "client_gone",
        }
    }

    /// What the client gets when nothing has been sent yet.
    #[must_use]
    pub fn ending(&self) -> Ending {
        match self {
            Self::FirstByte | Self::StreamIdle | Self::Request => {
                Ending::Refusal(ApiError::UpstreamTimeout)
            }
            Self::Lifetime => Ending::Refusal(ApiError::StaleRequestExpired),
            Self::PrefillFailed => Ending::Refusal(ApiError::PrefillFailed),
            Self::PrefillRefused(answer) => Ending::Engine(answer.clone()),
            Self::ClientGone => Ending::Nothing,
        }
    }
}

/// What a client gets for a failed request of which it has seen nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nobody is there.
    Nothing,
    /// A refusal of ours.
    Refusal(ApiError),
    /// An engine's refusal, unchanged.
    Engine(EngineAnswer),
}

/// Time limits of one exchange. Source: contract §2 `timeouts`.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeLimits {
    /// Until the engine's headers.
    pub first_byte: Duration,
    /// Between two chunks.
    pub stream_idle: Duration,
    /// From dispatch to the end of an answer that is not streamed; `None` for streams.
    pub request: Option<Duration>,
    /// From arrival to the end, whatever happens.
    pub lifetime: Duration,
}

const NEVER: u64 = u64::MAX;

/// One request between dispatch and the end of its answer.
#[derive(Debug)]
pub struct Exchange {
    arrived: Instant,
    limits: ExchangeLimits,
    /// Milliseconds after arrival at which silence becomes an error.
    silence_ends_ms: AtomicU64,
    /// Milliseconds after arrival at which a whole answer is overdue.
    request_ends_ms: AtomicU64,
    first_byte_seen: AtomicU64,
    cause: OnceLock<EndCause>,
    wire: Mutex<Option<Arc<dyn Cut>>>,
}

impl Exchange {
    /// An exchange whose clock started at `arrived`; nothing is armed yet.
    #[must_use]
    pub const fn new(arrived: Instant, limits: ExchangeLimits) -> Self {
        Self {
            arrived,
            limits,
            silence_ends_ms: AtomicU64::new(NEVER),
            request_ends_ms: AtomicU64::new(NEVER),
            first_byte_seen: AtomicU64::new(0),
            cause: OnceLock::new(),
            wire: Mutex::new(None),
        }
    }

    /// The exchange goes over `wire` from now on.
    ///
    /// False when the exchange was ended before, and then the wire is cut at once.
    pub fn arm(&self, wire: Arc<dyn Cut>) -> bool {
        let mut slot = self.wire.lock();
        if self.cause.get().is_some() {
            wire.cut();
            return false;
        }
        *slot = Some(wire);
        true
    }

    /// The whole request is on its way to the engine; its answer is awaited from `now`. What came
    /// before was the client's time.
    pub fn dispatched(&self, now: Instant) {
        self.expect_bytes(self.limits.first_byte, now);
        if let Some(request) = self.limits.request {
            let end = now.saturating_duration_since(self.arrived) + request;
            self.request_ends_ms.store(millis(end), Ordering::Relaxed);
        }
    }

    /// The engine sent something; the next silence counts from `now`.
    pub fn heard(&self, now: Instant) {
        self.first_byte_seen.store(1, Ordering::Relaxed);
        self.expect_bytes(self.limits.stream_idle, now);
    }

    /// The engine's answer is complete: its connection goes back to the pool and must not be cut.
    pub fn disarm(&self) {
        *self.wire.lock() = None;
        self.silence_ends_ms.store(NEVER, Ordering::Relaxed);
    }

    /// Ends the exchange for `cause`; the first cause wins. True if it was the first.
    pub fn end(&self, cause: EndCause) -> bool {
        let slot = self.wire.lock();
        if self.cause.set(cause).is_err() {
            return false;
        }
        if let Some(wire) = slot.as_ref() {
            wire.cut();
        }
        true
    }

    /// Why it was ended from outside, if it was.
    #[must_use]
    pub fn cause(&self) -> Option<&EndCause> {
        self.cause.get()
    }

    /// Whether the answering engine has sent anything.
    #[must_use]
    pub fn heard_once(&self) -> bool {
        self.first_byte_seen.load(Ordering::Relaxed) != 0
    }

    fn expect_bytes(&self, within: Duration, now: Instant) {
        let limit = now.saturating_duration_since(self.arrived) + within;
        self.silence_ends_ms.store(millis(limit), Ordering::Relaxed);
    }

    /// The limit that `now` has passed, if any.
    fn overdue(&self, now: Instant) -> Option<EndCause> {
        let age = millis(now.saturating_duration_since(self.arrived));
        if age >= millis(self.limits.lifetime) {
            return Some(EndCause::Lifetime);
        }
        if age >= self.request_ends_ms.load(Ordering::Relaxed) {
            return Some(EndCause::Request);
        }
        if age >= self.silence_ends_ms.load(Ordering::Relaxed) {
            if self.wire.lock().as_ref().is_some_and(|wire| wire.unread()) {
                // The engine is not silent: it waits for a client that does not read.
                self.heard(now);
                return None;
            }
            return Some(if self.heard_once() {
                EndCause::StreamIdle
            } else {
                EndCause::FirstByte
            });
        }
        None
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER)
}

const SHARDS: usize = 32;

/// All live exchanges, in shards so that no lock is shared by all requests.
#[derive(Debug)]
pub struct LiveTable {
    shards: Vec<Mutex<Slab<Arc<Exchange>>>>,
    next: AtomicU64,
}

impl Default for LiveTable {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Slab::new())).collect(),
            next: AtomicU64::new(0),
        }
    }
}

impl LiveTable {
    /// Lists `exchange` until the guard is dropped.
    pub fn insert(self: &Arc<Self>, exchange: Arc<Exchange>) -> LiveGuard {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let shard = usize::try_from(turn % SHARDS as u64).unwrap_or(0);
        let key = self.shards[shard].lock().insert(exchange);
        LiveGuard {
            table: Arc::clone(self),
            shard,
            key,
        }
    }

    /// Number of live exchanges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// True when nothing is being served.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends every exchange that is past a limit at `now`; returns how many outlived their
    /// lifetime.
    pub fn sweep(&self, now: Instant) -> usize {
        let mut expired = 0;
        for shard in &self.shards {
            let overdue: Vec<_> = {
                let shard = shard.lock();
                let due = shard
                    .iter()
                    .filter(|(_, exchange)| exchange.cause().is_none());
                due.filter_map(|(_, exchange)| {
                    exchange
                        .overdue(now)
                        .map(|cause| (Arc::clone(exchange), cause))
                })
                .collect()
            };
            for (exchange, cause) in overdue {
                let lifetime = cause == EndCause::Lifetime;
                if exchange.end(cause) && lifetime {
                    expired += 1;
                }
            }
        }
        expired
    }
}

/// Keeps an exchange listed.
#[derive(Debug)]
#[must_use = "dropping the guard ends the listing"]
pub struct LiveGuard {
    table: Arc<LiveTable>,
    shard: usize,
    key: usize,
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.table.shards[self.shard].lock().remove(self.key);
    }
}

#[cfg(test)]
mod tests;
