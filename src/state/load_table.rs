//! The last load of each engine.
//!
//! Every engine has a slot of its own: a report touches one slot, and a capture for a group of four
//! touches four, whatever the size of the fleet. A load older than [`FRESHNESS`] counts as absent,
//! and so does one of which a rank is missing; absent is `None`, never zero. Nothing is reserved or
//! predicted here. Source: policy-semantics §7.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::ids::WorkerId;
use crate::state::engine_load::{EngineLoad, RankLoad, Report};

/// Age up to which, inclusive, a report counts. Source: policy-semantics §7.
pub const FRESHNESS: Duration = Duration::from_secs(5);

/// What one engine has reported.
#[derive(Debug, Default)]
struct Slot {
    ranks: Mutex<Ranks>,
    /// The sum over the ranks; empty while one is missing.
    load: ArcSwapOption<EngineLoad>,
}

impl Slot {
    /// Stores what one rank holds now, unless it is beyond the advertised ones.
    fn put(&self, rank: u32, load: impl FnOnce(Option<&RankLoad>) -> RankLoad) -> bool {
        let mut ranks = self.ranks.lock();
        if ranks.advertised.is_some_and(|ranks| rank >= ranks) {
            return false;
        }
        let load = match ranks.last.binary_search_by_key(&rank, |(rank, _)| *rank) {
            Ok(place) => {
                let load = load(Some(&ranks.last[place].1));
                ranks.last[place].1 = load;
                load
            }
            Err(place) => {
                let load = load(None);
                ranks.last.insert(place, (rank, load));
                load
            }
        };
        self.load.store(ranks.sum());
        ranks.heard = Some(load.at);
        true
    }
}

/// Reports of one rank of one engine into its slot.
#[derive(Debug, Clone)]
pub struct LoadWriter {
    slot: Arc<Slot>,
    rank: u32,
}

impl LoadWriter {
    /// Takes in a report that arrived at `at`; false, and ignored, if the engine does not advertise
    /// the rank.
    pub fn report(&self, report: Report, at: Instant) -> bool {
        self.slot
            .put(self.rank, |previous| RankLoad::after(previous, report, at))
    }
}

#[derive(Debug, Default)]
struct Ranks {
    /// How many the engine advertises; unknown counts those that were heard.
    advertised: Option<u32>,
    /// By rank; most engines have one.
    last: Vec<(u32, RankLoad)>,
    /// Arrival of the newest report of any rank.
    heard: Option<Instant>,
}

impl Ranks {
    fn complete(&self) -> bool {
        self.advertised
            .is_none_or(|ranks| self.last.len() as u64 == u64::from(ranks))
    }

    fn sum(&self) -> Option<Arc<EngineLoad>> {
        self.complete()
            .then(|| EngineLoad::sum(self.last.iter().map(|(_, load)| load)))?
            .map(Arc::new)
    }
}

/// Ids come from the operator, so a quick hash is safe.
type Slots = HashMap<WorkerId, Arc<Slot>, DefaultHashBuilder>;

/// Loads by engine, last value wins. Many readers; engines come and go rarely.
#[derive(Debug, Default)]
pub struct EngineLoadTable {
    slots: ArcSwap<Slots>,
    /// Time stands still here.
    frozen: Option<Instant>,
}

impl EngineLoadTable {
    /// A table for which it is always `now`, so that what is explained does not age meanwhile.
    #[must_use]
    pub fn frozen(now: Instant) -> Self {
        Self {
            frozen: Some(now),
            ..Self::default()
        }
    }

    /// The moment by which this table tells fresh from stale.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.frozen.unwrap_or_else(Instant::now)
    }

    /// Takes in a report of one rank that arrived at `at`. A rank beyond the advertised ones is
    /// ignored, and then the answer is false.
    pub fn report(&self, engine: &WorkerId, rank: u32, report: Report, at: Instant) -> bool {
        self.put(engine, rank, |previous| {
            RankLoad::after(previous, report, at)
        })
    }

    /// Stores the whole load of one rank, with the rate it is said to have.
    pub fn store(&self, engine: &WorkerId, rank: u32, load: RankLoad) -> bool {
        self.put(engine, rank, |_| load)
    }

    fn put(
        &self,
        engine: &WorkerId,
        rank: u32,
        load: impl FnOnce(Option<&RankLoad>) -> RankLoad,
    ) -> bool {
        self.slot(engine).put(rank, load)
    }

    /// A way to report one rank again and again. It ends with the engine: what is reported through
    /// it after [`Self::forget`] is lost.
    #[must_use]
    pub fn writer(&self, engine: &WorkerId, rank: u32) -> LoadWriter {
        LoadWriter {
            slot: self.slot(engine),
            rank,
        }
    }

    /// The engine has `ranks` ranks: from now on each of them must report. Reports of others are
    /// forgotten.
    pub fn advertise(&self, engine: &WorkerId, ranks: u32) {
        let slot = self.slot(engine);
        let mut known = slot.ranks.lock();
        if known.advertised == Some(ranks) {
            return;
        }
        known.advertised = Some(ranks);
        known.last.retain(|(rank, _)| *rank < ranks);
        slot.load.store(known.sum());
    }

    /// Stores the load of a whole engine.
    pub fn publish(&self, engine: &WorkerId, load: EngineLoad) {
        let slot = self.slot(engine);
        slot.ranks.lock().heard = Some(load.captured_at);
        slot.load.store(Some(Arc::new(load)));
    }

    /// Forgets one engine, so that a successor of the same id starts without a report.
    pub fn forget(&self, engine: &WorkerId) {
        self.change(|slots| slots.remove(engine).is_some());
    }

    /// The loads of `engines` as they are now; one pick uses one snapshot throughout.
    #[must_use]
    pub fn capture<'a>(&self, engines: impl IntoIterator<Item = &'a WorkerId>) -> LoadSnapshot {
        let slots = self.slots.load();
        if slots.is_empty() {
            return LoadSnapshot::default();
        }
        let now = self.now();
        let read = |engine: &WorkerId| {
            let load = slots.get(engine)?.load.load_full();
            load.filter(|load| now.saturating_duration_since(load.captured_at) <= FRESHNESS)
        };
        let loads = engines
            .into_iter()
            .map(|engine| (engine.clone(), read(engine)));
        let loads: SmallVec<_> = loads.collect();
        LoadSnapshot {
            sorted: loads.is_sorted_by(|(a, _), (b, _)| a <= b),
            loads,
        }
    }

    /// The last load of `engine` however old, and when any rank of it was last heard.
    #[must_use]
    pub fn last(&self, engine: &WorkerId) -> (Option<Arc<EngineLoad>>, Option<Instant>) {
        let slots = self.slots.load();
        slots.get(engine).map_or((None, None), |slot| {
            (slot.load.load_full(), slot.ranks.lock().heard)
        })
    }

    fn slot(&self, engine: &WorkerId) -> Arc<Slot> {
        if let Some(slot) = self.slots.load().get(engine) {
            return Arc::clone(slot);
        }
        let fresh = Arc::new(Slot::default());
        let mut slot = Arc::clone(&fresh);
        self.change(|slots| {
            slot = Arc::clone(slots.entry(engine.clone()).or_insert(Arc::clone(&fresh)));
            true
        });
        slot
    }

    /// Copies the list of slots, not the slots. `change` says whether it did anything.
    fn change(&self, mut change: impl FnMut(&mut Slots) -> bool) {
        self.slots.rcu(|slots| {
            let mut next = Slots::clone(slots);
            match change(&mut next) {
                true => Arc::new(next),
                false => Arc::clone(slots),
            }
        });
    }
}

/// An immutable view of some engines at one moment.
#[derive(Debug, Clone, Default)]
pub struct LoadSnapshot {
    /// In the order asked for.
    loads: SmallVec<[(WorkerId, Option<Arc<EngineLoad>>); 4]>,
    /// As candidates are; a sample is short and may not be.
    sorted: bool,
}

impl LoadSnapshot {
    /// The engine's load, unless it is missing, stale, incomplete or was not asked for.
    #[must_use]
    pub fn get(&self, engine: &WorkerId) -> Option<&EngineLoad> {
        let place = if self.sorted {
            self.loads.binary_search_by(|(id, _)| id.cmp(engine)).ok()?
        } else {
            self.loads.iter().position(|(id, _)| id == engine)?
        };
        self.at(place)
    }

    /// The load of the engine that was asked for in this place, likewise.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&EngineLoad> {
        self.loads.get(place)?.1.as_deref()
    }
}

#[cfg(test)]
mod tests;
