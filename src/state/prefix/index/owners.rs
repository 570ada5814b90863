//! Who can hold blocks: the ranks of engines, each life of a rank under a number of its own.
//!
//! Clearing a rank ends its life and starts another: from that moment no query counts the old one,
//! however many blocks still name it, and the sweep takes it out of them later. So a clear and a
//! removal cost the same for one block as for ten million.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// Number of one life of a rank.
pub(super) type OwnerId = u32;

/// One life of one rank of one engine.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) engine: Arc<str>,
    pub(super) rank: u32,
    /// Number of the engine, shared by its ranks.
    pub(super) number: u32,
    blocks: AtomicU64,
}

impl Owner {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, step: i8) {
        match step {
            1 => self.blocks.fetch_add(1, Ordering::Relaxed),
            -1 => self.blocks.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Who lives, at one moment.
#[derive(Debug, Default, Clone)]
pub(super) struct Living {
    /// By number of the life; the ended ones are gone.
    lives: Vec<Option<Arc<Owner>>>,
    /// Number of each engine that has a life.
    engines: HashMap<Arc<str>, u32>,
}

impl Living {
    pub(super) fn get(&self, id: OwnerId) -> Option<&Arc<Owner>> {
        self.lives.get(id as usize)?.as_ref()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.lives.iter().flatten()
    }

    /// The number of an engine.
    pub(super) fn number(&self, engine: &str) -> Option<u32> {
        self.engines.get(engine).copied()
    }

    /// One more than the largest number of an engine.
    pub(super) fn numbers(&self) -> usize {
        self.engines
            .values()
            .max()
            .map_or(0, |last| *last as usize + 1)
    }

    /// The number of `engine`, a free one if it has none.
    fn number_for(&self, engine: &str) -> u32 {
        self.number(engine).unwrap_or_else(|| {
            let taken: HashSet<u32> = self.engines.values().copied().collect();
            (0..)
                .find(|number| !taken.contains(number))
                .unwrap_or(u32::MAX)
        })
    }
}

/// Lives as readers see them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    living: ArcSwap<Living>,
}

impl Owners {
    pub(super) fn living(&self) -> arc_swap::Guard<Arc<Living>> {
        self.living.load()
    }

    fn begin(&self, id: OwnerId, engine: Arc<str>, rank: u32) {
        let mut living = Living::clone(&self.living.load());
        let number = living.number_for(&engine);
        living.engines.insert(Arc::clone(&engine), number);
        let at = id as usize;
        if living.lives.len() <= at {
            living.lives.resize(at + 1, None);
        }
        let blocks = AtomicU64::new(0);
        living.lives[at] = Some(Arc::new(Owner {
            engine,
            rank,
            number,
            blocks,
        }));
        self.living.store(Arc::new(living));
    }

    /// `last` says that the engine has no other life.
    fn end(&self, id: OwnerId, engine: &str, last: bool) {
        let mut living = Living::clone(&self.living.load());
        if let Some(life) = living.lives.get_mut(id as usize) {
            *life = None;
        }
        if last {
            living.engines.remove(engine);
        }
        self.living.store(Arc::new(living));
    }
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct Lives {
    ids: HashMap<Arc<str>, Vec<(u32, OwnerId)>>,
    /// Ended, and perhaps still named by blocks.
    ended: Vec<OwnerId>,
    /// Named by no block.
    unused: Vec<OwnerId>,
    next: OwnerId,
}

impl Lives {
    /// The present life of a rank, begun if need be. `None` when 2^28 numbers are in use.
    pub(super) fn of(&mut self, owners: &Owners, engine: &str, rank: u32) -> Option<OwnerId> {
        if let Some(id) = self.find(engine, rank) {
            return Some(id);
        }
        let id = match self.unused.pop() {
            Some(id) => id,
            None if self.next < 1 << 28 => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        let known = self.ids.get_key_value(engine);
        let engine = known.map_or_else(|| Arc::from(engine), |(engine, _)| Arc::clone(engine));
        self.ids
            .entry(Arc::clone(&engine))
            .or_default()
            .push((rank, id));
        owners.begin(id, engine, rank);
        Some(id)
    }

    /// The present life of a rank, if it has one.
    pub(super) fn find(&self, engine: &str, rank: u32) -> Option<OwnerId> {
        let ranks = self.ids.get(engine)?;
        ranks
            .iter()
            .find(|(known, _)| *known == rank)
            .map(|(_, id)| *id)
    }

    /// Ends the present life of a rank.
    pub(super) fn end(&mut self, owners: &Owners, engine: &str, rank: u32) {
        let Some(ranks) = self.ids.get_mut(engine) else {
            return;
        };
        let Some(at) = ranks.iter().position(|(known, _)| *known == rank) else {
            return;
        };
        let (_, id) = ranks.swap_remove(at);
        let last = ranks.is_empty();
        if last {
            self.ids.remove(engine);
        }
        owners.end(id, engine, last);
        self.ended.push(id);
    }

    /// The ranks of an engine that are living.
    pub(super) fn ranks(&self, engine: &str) -> Vec<u32> {
        let ranks = self.ids.get(engine);
        ranks.map_or_else(Vec::new, |ranks| {
            ranks.iter().map(|(rank, _)| *rank).collect()
        })
    }

    /// Every rank that is living.
    pub(super) fn all(&self) -> Vec<(Arc<str>, u32)> {
        let ranks = |(engine, ranks): (&Arc<str>, &Vec<(u32, OwnerId)>)| {
            let engine = Arc::clone(engine);
            let ranks: Vec<u32> = ranks.iter().map(|(rank, _)| *rank).collect();
            ranks
                .into_iter()
                .map(move |rank| (Arc::clone(&engine), rank))
        };
        self.ids.iter().flat_map(ranks).collect()
    }

    /// The ended lives that a sweep from now on takes out everywhere.
    pub(super) fn take_ended(&mut self) -> Vec<OwnerId> {
        std::mem::take(&mut self.ended)
    }

    /// Lives that no block names any more.
    pub(super) fn swept(&mut self, ids: Vec<OwnerId>) {
        self.unused.extend(ids);
    }

    pub(super) const fn any_ended(&self) -> bool {
        !self.ended.is_empty()
    }
}
