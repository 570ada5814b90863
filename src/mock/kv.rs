//! The engine's prefix cache and its publisher: what is really held, and what is said about it.
//!
//! ```text
//!   kv ---- one rank: matches, stores, evicts, flushes; reports cached tokens
//!    |-- cache      pages in a tree, least recently used leaves go first
//!    |-- publisher  PUB and ROUTER sockets, dense numbers, a buffer to replay from
//!    '-- tokens     what a prompt and an answer are in token ids
//! ```
//!
//! Hit rates are earned: a request is charged for what its rank does not hold, and every change of
//! what it holds is published, as the real engine does (engine-wire §1.7). Only whole pages are
//! stored; at least the last token of a prompt is always computed.

mod cache;
mod publisher;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

pub use cache::{Events, PageCache};
pub use tokens::MockTokenizer;

use crate::kv::hash::whole_part;
use crate::kv::{BlockFormat, BlockUnit, KvEvent, block_hashes};
use crate::mock::config::EngineConfig;
use crate::mock::faults::FaultsHandle;
use crate::mock::indexer::IndexerHandle;
use publisher::Publisher;
pub(crate) use tokens::{answer_ids, prompt_ids};

/// Tries to find a run of free ports.
const TRIES: usize = 50;

/// The caches of one engine, one per rank.
#[derive(Debug)]
pub(crate) struct KvCaches {
    format: BlockFormat,
    ranks: Vec<Rank>,
    next: AtomicUsize,
    base: Option<Ports>,
}

/// An indexer and the engine's URL there.
type Listed = (IndexerHandle, String);

#[derive(Debug)]
struct Rank {
    cache: Mutex<PageCache>,
    publisher: Option<Publisher>,
    listed: Option<Listed>,
}

/// Ports of rank 0.
#[derive(Debug, Clone, Copy)]
struct Ports {
    events: u16,
    replay: Option<u16>,
}

/// One prompt and the rank that computes it.
#[derive(Debug)]
pub(crate) struct Sequence {
    rank: usize,
    ids: Vec<u32>,
    salt: Option<String>,
    /// Names of the pages that may be there already.
    names: Vec<i64>,
}

impl KvCaches {
    /// Binds the sockets of every rank, if the engine publishes. Where ports are free to choose,
    /// somebody else may hold the one after the first: then others are tried.
    pub(crate) async fn start(
        config: &EngineConfig,
        faults: &FaultsHandle,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let free = config.kv_port == Some(0) && config.kv_ranks > 1;
        for _ in 0..if free { TRIES } else { 0 } {
            if let Ok(caches) = Self::try_start(config, faults, address).await {
                return Ok(caches);
            }
        }
        Self::try_start(config, faults, address).await
    }

    async fn try_start(
        config: &EngineConfig,
        faults: &FaultsHandle,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let unit = match config.bigram {
            true => BlockUnit::Bigram,
            false => BlockUnit::Unigram,
        };
        let format = BlockFormat::new(config.page_size, unit)
            .ok_or_else(|| io::Error::other("the page size is 0"))?;
        let pages = config.max_total_num_tokens / u64::from(config.page_size);
        let url = format!("http://{address}");
        let listed = config.indexer.clone().map(|indexer| (indexer, url));
        let mut ranks = Vec::new();
        let mut base = None;
        for rank in 0..config.kv_ranks.max(1) {
            let publisher = match config.kv_port {
                None => None,
                Some(port) => {
                    let ports = base.unwrap_or(Ports {
                        events: port,
                        replay: config.kv_replay_port,
                    });
                    let bound = Publisher::bind(config, ports.events, ports.replay, rank, faults);
                    let publisher = bound.await?;
                    if base.is_none() {
                        let (events, replay) = publisher.ports();
                        base = Some(Ports { events, replay });
                    }
                    Some(publisher)
                }
            };
            let rank = Rank {
                cache: Mutex::new(PageCache::new(pages)),
                publisher,
                listed: listed.clone(),
            };
            rank.publish(vec![(KvEvent::Cleared, Vec::new())]);
            ranks.push(rank);
        }
        Ok(Self {
            format,
            ranks,
            next: AtomicUsize::new(0),
            base,
        })
    }

    /// Assigns a prompt to a rank.
    pub(crate) fn assign(
        &self,
        ids: Vec<u32>,
        salt: Option<String>,
        rank: Option<usize>,
    ) -> Sequence {
        let turn = || self.next.fetch_add(1, Ordering::Relaxed);
        let rank = rank.unwrap_or_else(turn) % self.ranks.len();
        // The last token is always computed.
        let known = &ids[..ids.len().saturating_sub(1)];
        let whole = whole_part(known, self.format);
        let names = block_hashes(whole, self.format, salt.as_deref());
        Sequence {
            rank,
            ids,
            salt,
            names,
        }
    }

    /// Begins to compute a prompt: how many tokens are there already, and in use from now on.
    pub(crate) fn begin(&self, sequence: &Sequence) -> u64 {
        let held = self.ranks[sequence.rank]
            .cache
            .lock()
            .touch(&sequence.names);
        self.tokens(held)
    }

    /// How many tokens of a prompt that waits would have to be computed now.
    pub(crate) fn uncached(&self, sequence: &Sequence) -> u64 {
        let held = self.ranks[sequence.rank].cache.lock().held(&sequence.names);
        (sequence.ids.len() as u64).saturating_sub(self.tokens(held))
    }

    /// The prompt, and the tokens made so far, are computed: their whole pages are held now.
    pub(crate) fn store(&self, sequence: &Sequence, made: &[u32]) {
        let mut ids = sequence.ids.clone();
        // The last token that was made has not been computed.
        ids.extend_from_slice(&made[..made.len().saturating_sub(1)]);
        let whole = whole_part(&ids, self.format);
        let names = block_hashes(whole, self.format, sequence.salt.as_deref());
        let rank = &self.ranks[sequence.rank];
        let mut cache = rank.cache.lock();
        let events = cache.insert(&names, self.format, whole);
        rank.publish(events);
    }

    /// Forgets everything and says so.
    pub(crate) fn flush(&self) {
        for rank in &self.ranks {
            let mut cache = rank.cache.lock();
            cache.clear();
            rank.publish(vec![(KvEvent::Cleared, Vec::new())]);
        }
    }

    /// Every publisher begins anew, as after a restart of the engine: numbers from 0, nothing to
    /// replay, nothing held.
    pub(crate) fn restart(&self) {
        for rank in &self.ranks {
            let mut cache = rank.cache.lock();
            cache.clear();
            if let Some(publisher) = &rank.publisher {
                publisher.restart();
            }
            rank.publish(vec![(KvEvent::Cleared, Vec::new())]);
        }
    }

    /// Puts the reset mark (sequence -1) on the live sockets.
    pub(crate) fn send_reset(&self) {
        for publisher in self.ranks.iter().filter_map(|rank| rank.publisher.as_ref()) {
            publisher.send_reset();
        }
    }

    /// Ends every publisher.
    pub(crate) fn close(&self) {
        for publisher in self.ranks.iter().filter_map(|rank| rank.publisher.as_ref()) {
            publisher.close();
        }
    }

    /// Pages held now, over all ranks.
    pub(crate) fn pages(&self) -> usize {
        self.ranks.iter().map(|rank| rank.cache.lock().len()).sum()
    }

    /// The block `kv_events` of `/server_info`.
    pub(crate) fn describe(&self, topic: &str) -> Value {
        let Some(base) = self.base else {
            return Value::Null;
        };
        let mut block = json!({
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": base.events,
            "topic": topic,
            "block_size": self.format.block_size,
            "dp_size": self.ranks.len(),
        });
        if let Some(replay) = base.replay {
            block["replay_endpoint_port_base"] = json!(replay);
        }
        block
    }

    /// Port of the KV events of rank 0.
    pub(crate) fn port(&self) -> Option<u16> {
        self.base.map(|base| base.events)
    }

    /// Port of the replay socket of rank 0.
    pub(crate) fn replay_port(&self) -> Option<u16> {
        self.base?.replay
    }

    fn tokens(&self, pages: usize) -> u64 {
        pages as u64 * u64::from(self.format.block_size.get())
    }
}

impl Rank {
    /// One batch. Called with the cache locked, so that batches leave in the order of the changes.
    fn publish(&self, events: Vec<(KvEvent, Vec<u32>)>) {
        if let Some((indexer, url)) = &self.listed {
            let events: Vec<KvEvent> = events.iter().map(|(event, _)| event.clone()).collect();
            indexer.apply(url, &events);
        }
        if let Some(publisher) = &self.publisher
            && !events.is_empty()
        {
            publisher.publish(events);
        }
    }
}
