//! Load reports of a fleet: one subscription per engine and rank, kept in step with the registry.
//!
//! [`LoadFeeds::reconcile`] is told the whole fleet each time; it starts, stops and forgets. A feed
//! that ends never stalls anybody: requests only read the table. Reports are a gauge, so sequence
//! numbers are not looked at and nothing is replayed. Source: engine-wire §2, field-lessons L25.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::feeds::load_stat::{Malformed, load_stat};
use crate::feeds::stats::{FeedStats, Outcome};
use crate::feeds::zmq::{Event, Subscription};
use crate::ids::WorkerId;
use crate::state::EngineLoadTable;
use crate::workers::{Publishers, TcpEndpoint, Worker};

/// Largest message that is read, bytes; a report has about fifty.
const MAX_MESSAGE: usize = 4096;
/// An idle engine reports once a second; silent for this long, its connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(15);

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
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Known {
    member: Member,
    feeds: Vec<AbortHandle>,
}

impl Known {
    fn stop(&mut self) {
        for feed in self.feeds.drain(..) {
            feed.abort();
        }
    }
}

impl LoadFeeds {
    /// Feeds into `table`; none runs yet.
    #[must_use]
    pub fn new(table: Arc<EngineLoadTable>, stats: Arc<FeedStats>) -> Self {
        Self {
            table,
            stats,
            known: HashMap::new(),
            tasks: JoinSet::new(),
        }
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
                        known.stop();
                        // Reports of the old publishers say nothing about the new ones.
                        self.table.forget(&id);
                        known = self.start(member);
                    }
                    known
                }
                Some(mut other) => {
                    other.stop();
                    self.table.forget(&id);
                    self.start(member)
                }
                None => self.start(member),
            };
            self.known.insert(id, known);
        }
        for (id, mut gone) in before {
            gone.stop();
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
                    table: Arc::clone(&self.table),
                    stats: Arc::clone(&self.stats),
                };
                let topic = publishers.load_topic.clone();
                feeds.push(self.tasks.spawn(feed.run(endpoint, topic)));
            }
        }
        Known { member, feeds }
    }
}

/// One rank of one engine.
struct Feed {
    engine: Arc<Worker>,
    rank: u32,
    table: Arc<EngineLoadTable>,
    stats: Arc<FeedStats>,
}

impl Feed {
    async fn run(self, endpoint: TcpEndpoint, topic: String) {
        let subscription = Subscription::new(endpoint, &topic, MAX_MESSAGE);
        let mut subscription = subscription.silent_at_most(SILENCE);
        let (mut connected, mut lost) = (false, false);
        loop {
            match subscription.next().await {
                Event::Message(message) => self.message(&message),
                Event::Connected => {
                    connected = true;
                    if std::mem::take(&mut lost) {
                        self.engine.introspection().ask_soon();
                    }
                    tracing::debug!(engine = %self.engine.id(), rank = self.rank, "load reports: connected");
                }
                Event::Lost(reason, pause) => {
                    let id = self.engine.id();
                    tracing::debug!(engine = %id, rank = self.rank, %reason, ?pause, "load reports: lost");
                    self.stats.connection_lost();
                    // Another process may answer there now, with other publishers.
                    if std::mem::take(&mut connected) {
                        self.engine.introspection().ask_soon();
                    }
                    lost = true;
                }
            }
        }
    }

    fn message(&self, message: &[bytes::Bytes]) {
        let report = match message {
            [_topic, _sequence, payload] => load_stat(payload),
            _ => Err(Malformed::Frames),
        };
        match report {
            Ok(report) => {
                let now = Instant::now();
                let known = self.table.report(self.engine.id(), self.rank, report, now);
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
