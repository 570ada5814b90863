//! One rank's stream: subscribe, keep the order, repair gaps, notice another life.
//!
//! Numbers say nothing about which process counts, so after every new connection the rank proves
//! that it is the same life: the last applied message is asked of the replay socket again and must
//! come back byte for byte. Where it does not, or no replay is offered, what the rank held is
//! forgotten, and as much as the publisher still remembers is replayed. A gap on a connection that
//! stayed is repaired the same way within a time limit; what cannot be repaired is counted as lost
//! and the stream goes on (removals in it may leave owners until the engine clears or restarts).
//! The last messages before a silence leave no gap, and a publisher may not know yet of a new
//! subscriber when it sends: what it remembers beyond the last applied one is asked for now and then.
//! Source: engine-wire §1.4, §1.6, §1.9.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::counters::{KvEventCounters, RankStatus};
use super::cursor::{Cursor, END, Step};
use crate::feeds::zmq::{self, Event, Message, Subscription, ZmqError};
use crate::kv::wire::decode;
use crate::kv::{BlockFormat, BlockUnit, EventBatch, KvEvent};
use crate::state::prefix::{Announced, LocalPrefixes};
use crate::workers::TcpEndpoint;

/// For one replay. Source: engine-wire §1.9.
const REPLAY_LIMIT: Duration = Duration::from_secs(2);
/// Largest message that is taken, bytes: a full event has 65,536 hashes and its token ids.
const MAX_MESSAGE: usize = 32 << 20;
/// From a connection to the first look for messages that came before the publisher knew of it.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// From one look to the next: the last messages before a silence leave no gap that would show.
const LOOK: Duration = Duration::from_secs(30);
/// Attempts after which a missing connection is an error in the log.
const PATIENCE: u32 = 5;

/// What one rank's task works with.
#[derive(Debug)]
pub(super) struct RankFeed {
    pub(super) prefixes: Arc<LocalPrefixes>,
    /// Origin of the engine, the name of its blocks in the index.
    pub(super) engine: Arc<str>,
    pub(super) rank: u32,
    pub(super) events: TcpEndpoint,
    pub(super) replay: Option<TcpEndpoint>,
    pub(super) topic: String,
    /// Unit of blocks, for engines whose block size must be learned from the stream.
    pub(super) unit: BlockUnit,
    pub(super) counters: Arc<KvEventCounters>,
    pub(super) status: Arc<RankStatus>,
}

/// Where the task stands.
#[derive(Debug, Default)]
struct Stream {
    cursor: Cursor,
    /// The last applied payload, by which the publisher is recognised.
    last: Option<Bytes>,
    /// What the publisher remembers has not been fetched, because its replay did not answer.
    behind: bool,
}

impl RankFeed {
    /// Follows the stream until dropped.
    pub(super) async fn run(self) {
        let mut socket = Subscription::new(self.events.clone(), &self.topic, MAX_MESSAGE);
        let mut stream = Stream::default();
        let mut failures = 0;
        // When to ask for messages that should have come; only while connected, and of a replay.
        let mut look = None;
        loop {
            let event = match look.filter(|_| self.replay.is_some()) {
                None => socket.next().await,
                Some(at) => match timeout_at(at, socket.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.fetch_rest(&mut stream).await;
                        look = Some(Instant::now() + LOOK);
                        continue;
                    }
                },
            };
            match event {
                Event::Connected => {
                    failures = 0;
                    self.status.connected.store(true, Ordering::Relaxed);
                    tracing::info!(engine = %self.engine, rank = self.rank, endpoint = %self.events, "subscribed to kv events");
                    self.connected(&mut stream).await;
                    look = Some(Instant::now() + FIRST_LOOK);
                }
                Event::Message(message) => self.message(&mut stream, message).await,
                Event::Lost(error, pause) => {
                    look = None;
                    self.status.connected.store(false, Ordering::Relaxed);
                    failures += 1;
                    if failures == PATIENCE {
                        tracing::error!(engine = %self.engine, rank = self.rank, endpoint = %self.events, %error, "no kv events: cannot subscribe");
                    } else {
                        tracing::debug!(engine = %self.engine, rank = self.rank, %error, ?pause, "kv events interrupted");
                    }
                }
            }
        }
    }

    /// A connection is there: find out whose life it is, and fetch what was missed.
    async fn connected(&self, stream: &mut Stream) {
        stream.cursor.reconnected();
        if let (Some(applied), Some(last)) = (stream.cursor.applied(), stream.last.clone()) {
            let wanted = Wanted {
                from: applied,
                until: None,
                first: Some(last),
            };
            if self.replay(stream, wanted).await {
                return;
            }
            self.restart(stream);
        }
        stream.behind = !self.replay(stream, Wanted::all(None)).await;
    }

    /// Fetches what the publisher has sent and this rank has not heard.
    async fn fetch_rest(&self, stream: &mut Stream) {
        let wanted = Wanted {
            from: stream.cursor.applied().map_or(0, |applied| applied + 1),
            until: None,
            first: None,
        };
        self.replay(stream, wanted).await;
    }

    async fn message(&self, stream: &mut Stream, message: Message) {
        let [_topic, sequence, payload] = message.as_slice() else {
            return self.malformed("not three frames");
        };
        let Some(sequence) = number(sequence) else {
            return self.malformed("a sequence that is not eight bytes");
        };
        match stream.cursor.live(sequence) {
            Step::Next if stream.behind && stream.cursor.applied().is_none() => {
                stream.behind = !self.replay(stream, Wanted::all(Some(sequence))).await;
            }
            Step::Next => {}
            Step::Repeated => return self.counters.add("repeated", 1),
            Step::Reset => return self.restart(stream),
            Step::Restart => {
                self.restart(stream);
                if sequence > 0 {
                    self.replay(stream, Wanted::all(Some(sequence))).await;
                }
            }
            Step::Gap { from } => {
                self.status.gaps.fetch_add(1, Ordering::Relaxed);
                let wanted = Wanted {
                    from,
                    until: Some(sequence),
                    first: None,
                };
                self.replay(stream, wanted).await;
            }
        }
        self.take(stream, sequence, payload);
    }

    /// Applies a message; numbers that are missing before it are lost.
    fn take(&self, stream: &mut Stream, sequence: u64, payload: &Bytes) {
        let expected = stream
            .cursor
            .applied()
            .map_or(sequence, |applied| applied + 1);
        if sequence < expected {
            return;
        }
        let missing = sequence - expected;
        if missing > 0 {
            self.counters.lost(missing);
            self.status.lost.fetch_add(missing, Ordering::Relaxed);
            tracing::warn!(engine = %self.engine, rank = self.rank, missing, "kv event messages lost");
        }
        match decode(payload) {
            Ok(batch) => self.apply(&batch),
            Err(error) => self.malformed(&error.to_string()),
        }
        self.counters.add("batch", 1);
        self.status.heard(sequence);
        stream.cursor.advance(sequence);
        stream.last = Some(payload.clone());
    }

    fn apply(&self, batch: &EventBatch) {
        if self.prefixes.format().is_none()
            && let Some(format) = format_of(batch, self.unit)
            && let Announced::Refused(_) = self.prefixes.announce(&self.engine, format)
        {
            self.counters.add("format_refused", 1);
            return;
        }
        let applied = self.prefixes.apply(&self.engine, self.rank, &batch.events);
        self.counters.applied(&applied);
    }

    /// The publisher has begun anew.
    fn restart(&self, stream: &mut Stream) {
        self.prefixes.clear(&self.engine, self.rank);
        stream.cursor.forget();
        stream.last = None;
        self.counters.add("restart", 1);
        self.status.restarts.fetch_add(1, Ordering::Relaxed);
        tracing::info!(engine = %self.engine, rank = self.rank, "kv event publisher began anew; its blocks are forgotten");
    }

    fn malformed(&self, problem: &str) {
        self.counters.add("malformed", 1);
        tracing::warn!(engine = %self.engine, rank = self.rank, problem, "malformed kv event message dropped");
    }

    /// Applies what the publisher remembers, as far as it comes in time. False if it is not the
    /// publisher that was expected, or no replay is offered.
    async fn replay(&self, stream: &mut Stream, wanted: Wanted) -> bool {
        let Some(endpoint) = &self.replay else {
            return false;
        };
        match self.replay_from(endpoint, stream, &wanted).await {
            Ok(recognised) => recognised,
            Err(error) => {
                self.counters.add("replay_failed", 1);
                tracing::warn!(engine = %self.engine, rank = self.rank, %endpoint, %error, "kv event replay incomplete");
                wanted.first.is_none()
            }
        }
    }

    async fn replay_from(
        &self,
        endpoint: &TcpEndpoint,
        stream: &mut Stream,
        wanted: &Wanted,
    ) -> Result<bool, ZmqError> {
        let request: [&[u8]; 2] = [b"", &wanted.from.to_be_bytes()];
        let mut replies = zmq::ask(endpoint, &request, MAX_MESSAGE, REPLAY_LIMIT).await?;
        let mut unknown = wanted.first.as_ref();
        loop {
            let Some((sequence, payload)) = reply(&replies.next().await?) else {
                self.malformed("a replay of unknown shape");
                continue;
            };
            let end = sequence == END || wanted.until.is_some_and(|until| sequence >= until);
            if let Some(first) = unknown.take() {
                if end || sequence != wanted.from || payload != first {
                    return Ok(false);
                }
                continue;
            }
            if end {
                return Ok(true);
            }
            self.counters.add("replayed", 1);
            self.take(stream, sequence, &payload);
            if wanted.until == Some(sequence + 1) {
                return Ok(true);
            }
        }
    }
}

/// Part of a stream that is asked for again.
struct Wanted {
    from: u64,
    /// The first one that is not needed; `None` is up to the end.
    until: Option<u64>,
    /// What the message `from` must be; anything else is another publisher.
    first: Option<Bytes>,
}

impl Wanted {
    /// Everything that is remembered, up to `until`.
    const fn all(until: Option<u64>) -> Self {
        Self {
            from: 0,
            until,
            first: None,
        }
    }
}

/// Sequence and payload of a replay, with a topic (0.5.22 onwards) or without.
fn reply(frames: &[Bytes]) -> Option<(u64, Bytes)> {
    match frames {
        [_delimiter, sequence, payload] | [_delimiter, _, sequence, payload] => {
            Some((number(sequence)?, payload.clone()))
        }
        _ => None,
    }
}

fn number(frame: &Bytes) -> Option<u64> {
    Some(u64::from_be_bytes(frame.as_ref().try_into().ok()?))
}

/// The block size that a batch shows: the largest, because a last page may be short.
fn format_of(batch: &EventBatch, unit: BlockUnit) -> Option<BlockFormat> {
    let sizes = batch.events.iter().filter_map(|event| match event {
        KvEvent::Stored { block_size, .. } => Some(*block_size),
        KvEvent::Removed { .. } | KvEvent::Cleared | KvEvent::Unknown => None,
    });
    BlockFormat::new(sizes.max()?, unit)
}
