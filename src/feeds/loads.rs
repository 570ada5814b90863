//! Load reports of a fleet: one subscription per engine and rank, kept in step with the registry.
//!
//! [`LoadFeeds::reconcile`] is told the whole fleet each time; it starts, stops and forgets. A feed
//! that ends never stalls anybody: requests only read the table. Reports are a gauge, so sequence
//! numbers are not looked at and nothing is replayed. A task per feed connects, and connects again;
//! one thread reads them all. Source: engine-wire §2, field-lessons L25.

mod hub;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::feeds::load_stat::{Malformed, load_stat};
use crate::feeds::stats::{FeedStats, Outcome};
use crate::feeds::zmq::{BackOff, ZmqError, subscribe};
use crate::feeds::zmtp::Frames;
use crate::ids::WorkerId;
use crate::state::{EngineLoadTable, LoadWriter};
use crate::workers::{Publishers, TcpEndpoint, Worker};
use hub::{Hub, Reader};

/// Largest message that is read, bytes; a report has about fifty.
const MAX_MESSAGE: usize = 4096;

/// One engine and what it publishes, as far as is known.
#[derive(Debug, Clone)]
pub struct Member {
    /// The engine.
    pub engine: Arc<Worker>,
    /// Its publishers; `None` while they are unknown, or when it has none.
    pub publishers: Option<Arc<Publishers>>,
}

/// The running feeds. Must be used from one thread only, so that a stopped feed cannot report any
/// more once [`LoadFeeds::reconcile`] has returned.
#[derive(Debug)]
pub struct LoadFeeds {
    table: Arc<EngineLoadTable>,
    stats: Arc<FeedStats>,
    known: HashMap<WorkerId, Known>,
    reader: Reader,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Known {
    member: Member,
    /// The task that connects, and the line in the hub.
    feeds: Vec<(AbortHandle, usize)>,
}

impl Known {
    fn stop(&mut self, hub: &Hub) {
        for (task, line) in self.feeds.drain(..) {
            task.abort();
            hub.remove(line);
        }
    }
}

impl LoadFeeds {
    /// Feeds into `table`; none runs yet. Starts the thread that will read them.
    ///
    /// # Errors
    /// The system gives no poller or no thread.
    pub fn new(table: Arc<EngineLoadTable>, stats: Arc<FeedStats>) -> io::Result<Self> {
        Ok(Self {
            table,
            stats,
            known: HashMap::new(),
            reader: Reader::start()?,
            tasks: JoinSet::new(),
        })
    }

    /// Makes the feeds those of `fleet`: what is new is subscribed to, what is gone or has become
    /// another engine under the same id is stopped and its load forgotten.
    pub fn reconcile(&mut self, fleet: Vec<Member>) {
        while self.tasks.try_join_next().is_some() {}
        let mut before = std::mem::take(&mut self.known);
        for member in fleet {
            let id = member.engine.id().clone();
            let known = match before.remove(&id) {
                Some(mut known) if known.member.engine.same_engine(&member.engine) => {
                    if known.member.publishers == member.publishers {
                        known.member = member;
                    } else {
                        known.stop(self.reader.hub());
                        // Reports of the old publishers say nothing about the new ones.
                        self.table.forget(&id);
                        known = self.start(member);
                    }
                    known
                }
                Some(mut other) => {
                    other.stop(self.reader.hub());
                    self.table.forget(&id);
                    self.start(member)
                }
                None => self.start(member),
            };
            self.known.insert(id, known);
        }
        for (id, mut gone) in before {
            gone.stop(self.reader.hub());
            self.table.forget(&id);
        }
    }

    fn start(&mut self, member: Member) -> Known {
        let mut feeds = Vec::new();
        let sockets = member.publishers.as_ref().and_then(|publishers| {
            let base = publishers.load.as_ref()?;
            Some((base, publishers))
        });
        if let Some((base, publishers)) = sockets {
            self.table.advertise(member.engine.id(), publishers.ranks);
            for rank in 0..publishers.ranks {
                // A port beyond the last leaves its rank silent, and so the engine unreported.
                let Some(endpoint) = base.of_rank(rank) else {
                    tracing::warn!(engine = %member.engine.id(), rank, "no port for this rank");
                    continue;
                };
                let feed = Feed {
                    engine: Arc::clone(&member.engine),
                    rank,
                    loads: self.table.writer(member.engine.id(), rank),
                    stats: Arc::clone(&self.stats),
                };
                let hub = Arc::clone(self.reader.hub());
                let line = hub.add(feed.clone());
                let topic = publishers.load_topic.clone();
                let task = feed.run(endpoint, topic, hub, line);
                feeds.push((self.tasks.spawn(task), line));
            }
        }
        Known { member, feeds }
    }
}

/// One rank of one engine.
#[derive(Debug, Clone)]
struct Feed {
    engine: Arc<Worker>,
    rank: u32,
    loads: LoadWriter,
    stats: Arc<FeedStats>,
}

impl Feed {
    /// Keeps `line` connected.
    async fn run(self, endpoint: TcpEndpoint, topic: String, hub: Arc<Hub>, line: usize) {
        let (mut back_off, mut lost) = (BackOff::default(), false);
        loop {
            let mut connected = None;
            let reason = match subscribe(&endpoint, topic.as_bytes(), MAX_MESSAGE).await {
                Err(reason) => reason,
                Ok(connection) => match hub.attach(line, connection) {
                    Err(reason) => reason,
                    Ok(end) => {
                        connected = Some(Instant::now());
                        self.connected(lost);
                        end.await.unwrap_or(ZmqError::Closed)
                    }
                },
            };
            lost = true;
            let pause = back_off.after(connected.map_or(Duration::ZERO, |since| since.elapsed()));
            self.lost(&reason, pause, connected.is_some());
            tokio::time::sleep(pause).await;
        }
    }

    fn connected(&self, again: bool) {
        if again {
            self.engine.introspection().ask_soon();
        }
        tracing::debug!(engine = %self.engine.id(), rank = self.rank, "load reports: connected");
    }

    fn lost(&self, reason: &ZmqError, pause: Duration, connected: bool) {
        let id = self.engine.id();
        tracing::debug!(engine = %id, rank = self.rank, %reason, ?pause, "load reports: lost");
        self.stats.connection_lost();
        // Another process may answer there now, with other publishers.
        if connected {
            self.engine.introspection().ask_soon();
        }
    }

    fn message(&self, frames: &Frames<'_>, now: Instant) {
        let report = match frames.three() {
            Some([_topic, _sequence, payload]) => load_stat(payload),
            None => Err(Malformed::Frames),
        };
        match report {
            Ok(report) => {
                let known = self.loads.report(report, now);
                self.stats.report(match known {
                    true => Outcome::Accepted,
                    false => Outcome::UnexpectedRank,
                });
            }
            Err(reason) => self.stats.refused(self.engine.id(), reason),
        }
    }
}

#[cfg(test)]
mod tests;
