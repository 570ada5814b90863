//! The bindings of one kind and model.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ids::{BucketId, ModelId, Stage, WorkerId};

/// Most memory of one store, bytes by [`AffinityStore::bytes`]; about 670 000 bindings with keys of
/// 36 characters. Chosen.
pub const MAX_BYTES: usize = 128 << 20;
/// Locks of one store; a request takes one of them for one map operation. Chosen.
const SHARDS: usize = 64;
/// Memory of one binding beside its scope: list node, map slot, allocations (measured: 800 000
/// bindings took 158 MB, 55 bytes each being scope).
const ENTRY_BYTES: usize = 144;

/// What a binding belongs to. Keys are compared exactly, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityScope<'a> {
    /// The model of the request.
    pub model: &'a ModelId,
    /// The role of the group; plain, prefill and decode never share.
    pub stage: Stage,
    /// The bucket of the group.
    pub bucket: &'a BucketId,
    /// What the client sent; not empty.
    pub key: &'a str,
}

/// What [`AffinityStore::bind`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding<T> {
    /// There was none: the wanted engine is bound now.
    Created,
    /// There was one outside the candidates: the wanted engine took its place.
    Replaced,
    /// There is one among the candidates, which stays; what the caller's closure made of it.
    Kept(T),
}

#[derive(Debug)]
struct Entry {
    engine: WorkerId,
    last_seen: Instant,
}

/// One part of the map, in the order of last use.
#[derive(Debug)]
struct Shard {
    entries: LruCache<Box<[u8]>, Entry>,
    bytes: usize,
}

/// The bindings of one kind and model.
#[derive(Debug)]
pub struct AffinityStore {
    shards: Box<[Mutex<Shard>]>,
    /// Keyed, so that a client cannot aim all its keys at one shard.
    hasher: RandomState,
    shard_bytes: usize,
    evicted: AtomicU64,
    expired: AtomicU64,
}

// === impl AffinityScope ===

impl AffinityScope<'_> {
    /// Bytes that no other scope has: every part but the last carries its length.
    fn encode(&self) -> Vec<u8> {
        let parts = [self.model.as_str(), self.bucket.as_str()];
        let length = parts.iter().map(|part| part.len() + 8).sum::<usize>();
        let mut bytes = Vec::with_capacity(1 + length + self.key.len());
        bytes.push(match self.stage {
            Stage::Plain => 0,
            Stage::Prefill => 1,
            Stage::Decode => 2,
        });
        for part in parts {
            bytes.extend_from_slice(&part.len().to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(self.key.as_bytes());
        bytes
    }
}

// === impl Shard ===

impl Default for Shard {
    fn default() -> Self {
        Self {
            entries: LruCache::unbounded(),
            bytes: 0,
        }
    }
}

impl Shard {
    /// Removes the binding whose last use is longest ago.
    fn pop(&mut self) -> bool {
        let Some((scope, _)) = self.entries.pop_lru() else {
            return false;
        };
        self.bytes -= cost(&scope);
        true
    }
}

fn cost(scope: &[u8]) -> usize {
    scope.len() + ENTRY_BYTES
}

// === impl AffinityStore ===

impl Default for AffinityStore {
    fn default() -> Self {
        Self::with_max_bytes(MAX_BYTES)
    }
}

impl AffinityStore {
    /// An empty store that holds at most about `max_bytes`.
    #[must_use]
    pub fn with_max_bytes(max_bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_bytes: max_bytes / SHARDS,
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }

    fn shard(&self, scope: &[u8]) -> &Mutex<Shard> {
        let hash = self.hasher.hash_one(scope).to_le_bytes();
        &self.shards[usize::from(hash[0]) % SHARDS]
    }

    /// What `candidate` makes of the bound engine; a use, if it makes something of it.
    ///
    /// `None`, and no use, without a binding and when `candidate` gives none because the engine is
    /// not among the candidates. `candidate` must be short: a lock is held.
    pub fn bound<T>(
        &self,
        scope: &AffinityScope<'_>,
        candidate: impl FnOnce(&WorkerId) -> Option<T>,
    ) -> Option<T> {
        let scope = scope.encode();
        let mut shard = self.shard(&scope).lock();
        let found = candidate(&shard.entries.peek(scope.as_slice())?.engine)?;
        if let Some(entry) = shard.entries.get_mut(scope.as_slice()) {
            entry.last_seen = Instant::now();
        }
        Some(found)
    }

    /// The bound engine, candidate or not. Not a use: nothing is refreshed.
    #[must_use]
    pub fn peek(&self, scope: &AffinityScope<'_>) -> Option<WorkerId> {
        let scope = scope.encode();
        let shard = self.shard(&scope).lock();
        let entry = shard.entries.peek(scope.as_slice())?;
        Some(entry.engine.clone())
    }

    /// Binds `scope` to `engine`, unless it is bound to a candidate, which then wins. In one step;
    /// a use either way. `candidate` as in [`bound`](Self::bound).
    ///
    /// Where memory is short, bindings whose last use is longest ago go first.
    pub fn bind<T>(
        &self,
        scope: &AffinityScope<'_>,
        engine: &WorkerId,
        candidate: impl FnOnce(&WorkerId) -> Option<T>,
    ) -> Binding<T> {
        let scope = scope.encode();
        let mut shard = self.shard(&scope).lock();
        let last_seen = Instant::now();
        if let Some(entry) = shard.entries.get_mut(scope.as_slice()) {
            entry.last_seen = last_seen;
            return match candidate(&entry.engine) {
                Some(found) => Binding::Kept(found),
                None => {
                    entry.engine = engine.clone();
                    Binding::Replaced
                }
            };
        }
        shard.bytes += cost(&scope);
        let engine = engine.clone();
        shard
            .entries
            .put(scope.into_boxed_slice(), Entry { engine, last_seen });
        let mut evicted = 0;
        while shard.bytes > self.shard_bytes && shard.pop() {
            evicted += 1;
        }
        self.evicted.fetch_add(evicted, Ordering::Relaxed);
        Binding::Created
    }

    /// Binds `scope` to `engine`, whatever it was bound to: for a state that is given from outside.
    pub fn seed(&self, scope: &AffinityScope<'_>, engine: &WorkerId) {
        self.bind(scope, engine, |_| None::<()>);
    }

    /// Removes bindings that were last used longer than `idle` ago; exactly `idle` survives.
    /// Returns how many.
    pub fn sweep_expired(&self, idle: Duration) -> u64 {
        let mut removed = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let now = Instant::now();
            let over = |entry: &Entry| now.saturating_duration_since(entry.last_seen) > idle;
            while shard
                .entries
                .peek_lru()
                .is_some_and(|(_, entry)| over(entry))
            {
                shard.pop();
                removed += 1;
            }
        }
        self.expired.fetch_add(removed, Ordering::Relaxed);
        removed
    }

    /// Number of bindings.
    #[must_use]
    pub fn len(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().entries.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of all bindings, bytes (estimated: scope plus a fixed cost each).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    /// Bindings that were pushed out by others so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Bindings that sweeps removed so far.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }
}
