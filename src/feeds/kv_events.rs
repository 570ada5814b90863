//! KV events of engines: one subscription per rank, applied to the model's prefix index.
//!
//! ```text
//!   kv_events ---- which engines are followed: starts, replaces and ends their tasks
//!     |-- rank     one stream: order, gaps, replay, other lives
//!     |-- cursor   where a stream stands
//!     '-- counters what happened
//! ```
//!
//! An engine that leaves is forgotten after its tasks have ended, so nothing they were doing can
//! bring it back; nothing on the request path waits for that. An engine whose blocks are cut in
//! another format than the index is refused, told in the log and counted, and serves by load.
//! Source: engine-wire §1, field-lessons L14, L17, L20.

mod counters;
mod cursor;
mod rank;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

pub use counters::{KvEventCounters, RankStatus};

use crate::ids::ModelId;
use crate::kv::{BlockFormat, BlockUnit};
use crate::state::prefix::{Announced, LocalPrefixes, PrefixIndexes};
use crate::workers::{Publishers, Worker};
use rank::RankFeed;

/// Positions swept before writers get their turn: well under a millisecond.
const SWEEP: usize = 16_384;

/// One engine that should be followed.
#[derive(Debug, Clone)]
pub struct Followed {
    /// The engine.
    pub engine: Arc<Worker>,
    /// What it publishes.
    pub publishers: Arc<Publishers>,
    /// Whether its blocks are cut over pairs of tokens.
    pub unit: BlockUnit,
    /// Whether to subscribe; otherwise only its block format is learned.
    pub subscribe: bool,
}

/// How an engine's events are doing.
#[derive(Debug, Clone)]
pub enum FollowStatus {
    /// Subscribed, or trying to; one entry per rank.
    Following(Vec<Arc<RankStatus>>),
    /// Left out: this format is in force.
    Refused(BlockFormat),
}

/// A model and the origin of one of its engines.
type Key = (ModelId, Arc<str>);

/// The subscriptions of one process.
#[derive(Debug)]
pub struct KvFeeds {
    prefixes: Arc<PrefixIndexes>,
    counters: Arc<KvEventCounters>,
    engines: Mutex<HashMap<Key, Following>>,
}

#[derive(Debug)]
struct Following {
    publishers: Arc<Publishers>,
    unit: BlockUnit,
    subscribe: bool,
    status: FollowStatus,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl KvFeeds {
    /// Nothing is followed yet.
    #[must_use]
    pub fn new(prefixes: Arc<PrefixIndexes>) -> Self {
        Self {
            prefixes,
            counters: Arc::default(),
            engines: Mutex::default(),
        }
    }

    /// Counters of all streams.
    #[must_use]
    pub const fn counters(&self) -> &Arc<KvEventCounters> {
        &self.counters
    }

    /// How the events of the engine at `origin` are doing; `None` when it is not followed.
    #[must_use]
    pub fn status(&self, model: &ModelId, origin: &Arc<str>) -> Option<FollowStatus> {
        let engines = self.engines.lock();
        let following = engines.get(&(model.clone(), Arc::clone(origin)))?;
        Some(following.status.clone())
    }

    /// Follows exactly the engines in `wanted`, which belong to models of this process. To be
    /// called whenever the answer may have changed; cheap when it has not.
    pub async fn follow(&self, wanted: &[Followed]) {
        let key = |followed: &Followed| -> Key {
            (
                followed.engine.model().clone(),
                Arc::clone(followed.engine.origin()),
            )
        };
        let wanted: HashMap<Key, &Followed> = wanted.iter().map(|one| (key(one), one)).collect();
        let stays = |key: &Key, following: &Following| {
            wanted.get(key).is_some_and(|wanted| {
                wanted.publishers == following.publishers
                    && wanted.unit == following.unit
                    && wanted.subscribe == following.subscribe
            })
        };
        let gone: Vec<(Key, Following)> = {
            let mut engines = self.engines.lock();
            engines
                .extract_if(|key, following| !stays(key, following))
                .collect()
        };
        for (key, following) in gone {
            self.forget(key, following).await;
        }
        for (key, followed) in wanted {
            self.start(key, followed);
        }
    }

    /// Takes ended lives out of the indexes; to be called now and then.
    pub async fn sweep(&self) {
        for prefixes in self.prefixes.all().values() {
            while prefixes.sweep(SWEEP) {
                // Writers and other tasks first.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn forget(&self, (model, origin): Key, mut following: Following) {
        for task in std::mem::take(&mut following.tasks) {
            task.abort();
            // An aborted task ends with an error that says just that.
            let _ = task.await;
        }
        self.prefixes.of(&model).remove_engine(&origin);
        tracing::info!(%model, engine = %origin, "kv events are no longer followed");
    }

    /// Starts the tasks of an engine, unless they run or its format is refused.
    fn start(&self, (model, origin): Key, followed: &Followed) {
        let mut engines = self.engines.lock();
        let key = (model, origin);
        let known = engines.get(&key).map(|following| &following.status);
        if matches!(known, Some(FollowStatus::Following(_))) {
            return;
        }
        let prefixes = self.prefixes.of(&key.0);
        let format = followed.publishers.block_size;
        let format = format.and_then(|size| BlockFormat::new(size, followed.unit));
        let announced = format.map(|format| prefixes.announce(&key.1, format));
        let (status, tasks) = match announced {
            Some(Announced::Refused(current)) => {
                if known.is_none() {
                    self.counters.add("format_refused", 1);
                    tracing::warn!(
                        model = %key.0,
                        engine = %followed.engine.id(),
                        announced = ?format,
                        in_force = ?current,
                        "the engine cuts other blocks than the index: its events are left out, it serves by load"
                    );
                }
                (FollowStatus::Refused(current), Vec::new())
            }
            Some(Announced::Accepted { .. }) | None => self.ranks(&prefixes, &key.1, followed),
        };
        let following = Following {
            publishers: Arc::clone(&followed.publishers),
            unit: followed.unit,
            subscribe: followed.subscribe,
            status,
            tasks,
        };
        engines.insert(key, following);
    }

    fn ranks(
        &self,
        prefixes: &Arc<LocalPrefixes>,
        origin: &Arc<str>,
        followed: &Followed,
    ) -> (FollowStatus, Vec<JoinHandle<()>>) {
        let publishers = &followed.publishers;
        let mut statuses = Vec::new();
        let mut tasks = Vec::new();
        let ranks = if followed.subscribe {
            publishers.ranks
        } else {
            0
        };
        for rank in 0..ranks {
            let Some(events) = publishers.events.of_rank(rank) else {
                tracing::warn!(engine = %followed.engine.id(), rank, "no port is left for this rank; its events are left out");
                break;
            };
            let status = Arc::<RankStatus>::default();
            let feed = RankFeed {
                prefixes: Arc::clone(prefixes),
                engine: Arc::clone(origin),
                rank,
                events,
                replay: publishers
                    .replay
                    .as_ref()
                    .and_then(|base| base.of_rank(rank)),
                topic: publishers.topic.clone(),
                unit: followed.unit,
                counters: Arc::clone(&self.counters),
                status: Arc::clone(&status),
            };
            statuses.push(status);
            tasks.push(spawn(feed.run()));
        }
        (FollowStatus::Following(statuses), tasks)
    }
}

/// The only place that starts a task.
#[expect(
    clippy::disallowed_methods,
    reason = "a stream outlives the call that finds it; its owner ends it"
)]
fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(work)
}
