//! Who holds which block: one index per namespace (model, block format).
//!
//! A block's name stands for its whole prefix (`kv::hash`), so the index is flat: name, position,
//! owner set. Chains need no tree: a query walks its own names and counts, per owner, the unbroken
//! run from the first. What follows from that:
//!
//! * A store whose parent is unknown, or not held by that owner, is kept under its own name and
//!   counts for nothing until the owner holds every block before it. It is adopted by the mere
//!   arrival of the missing block; nothing has to be moved.
//! * A removal in the middle cuts the run there and leaves what lies behind, which counts again when
//!   the hole is filled.
//! * Removing a block that an owner does not hold changes nothing, whatever the other blocks of the
//!   event are.
//! * Clearing a rank or removing an engine takes effect at once and costs the same for any number of
//!   blocks; memory comes back as [`PrefixIndex::sweep`] goes over the blocks in small steps.
//!
//! Queries take no lock and are never waited for; writers (any number) take turns. Token ids are not
//! kept: two prompts whose names are equal in 64 bits are one prompt. Engines publish equal names for
//! equal tokens under different `extra_key`s without an adapter, and such copies are one block here.
//! Source: engine-wire §1.9.

mod arena;
mod owners;
mod query;
mod sets;
mod sweep;
mod table;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::kv::{KvEvent, Medium, Tier};
use arena::{Allocator, Arena, Meta, Pages, Position, Slot};
use owners::{Lives, Owner, OwnerId, Owners};
use sets::{Change, Interner, NO_OWNERS, SetId, Sets};
use sweep::Sweep;
use table::{Counts, Table};

pub use query::{EngineDepths, Found, Holder};

/// All four tiers.
const EVERYWHERE: u8 = 15;

/// What an index holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexSize {
    /// Different blocks, those that only cleared ranks held included until they are swept.
    pub blocks: usize,
    /// Pairs of a block and a rank that holds it.
    pub holdings: u64,
    /// Ranks that have a place in the index.
    pub owners: usize,
    /// Different owner sets.
    pub sets: usize,
    /// Bytes of everything, an estimate from the sizes of its parts.
    pub bytes: usize,
}

/// What became of the blocks of some events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Blocks stored.
    pub stored: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Blocks to be removed that the rank did not hold.
    pub unknown_removals: u64,
    /// Events with a medium that nobody knows.
    pub unknown_mediums: u64,
    /// Store events with larger blocks than the index.
    pub wrong_sizes: u64,
    /// Events of a class that nobody knows.
    pub unknown_events: u64,
    /// Times everything was cleared.
    pub clears: u64,
    /// Blocks that found no room (2^32 positions).
    pub no_room: u64,
}

/// The index.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    arena: Arena,
    table: Table,
    sets: Sets,
    owners: Owners,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    slots: Allocator,
    counts: Counts,
    interner: Interner,
    lives: Lives,
    sweep: Sweep,
}

impl PrefixIndex {
    /// Applies the events of one rank of `engine`, in order.
    ///
    /// * `block_size`: units per block of this index. Stores of larger blocks are counted and left
    ///   out, because no query could reach them; shorter ones are the last, partial pages that
    ///   engines up to 0.5.9 announce.
    ///
    /// A store without medium is a device copy, one with an unknown medium is left out; a removal
    /// with either ends every copy. Source: engine-wire §1.9.
    pub fn apply(&self, engine: &str, rank: u32, block_size: u32, events: &[KvEvent]) -> Applied {
        let mut applied = Applied::default();
        let mut writer = self.writer.lock();
        let mut work = Work {
            index: self,
            writer: &mut writer,
            applied: &mut applied,
        };
        for event in events {
            match event {
                KvEvent::Stored {
                    hashes,
                    parent,
                    block_size: size,
                    medium,
                } => {
                    let tier = match medium {
                        Medium::Absent => Tier::Device,
                        Medium::Known(tier) => *tier,
                        Medium::Unknown => {
                            work.applied.unknown_mediums += 1;
                            continue;
                        }
                    };
                    if (1..=block_size).contains(size) {
                        work.store(engine, rank, tier, *parent, hashes);
                    } else {
                        work.applied.wrong_sizes += 1;
                    }
                }
                KvEvent::Removed { hashes, medium } => {
                    let tiers = match medium {
                        Medium::Known(tier) => tier.bit(),
                        Medium::Absent => EVERYWHERE,
                        Medium::Unknown => {
                            work.applied.unknown_mediums += 1;
                            EVERYWHERE
                        }
                    };
                    work.remove(engine, rank, tiers, hashes);
                }
                KvEvent::Cleared => {
                    work.applied.clears += 1;
                    work.clear(engine, rank);
                }
                KvEvent::Unknown => work.applied.unknown_events += 1,
            }
        }
        applied
    }

    /// Forgets what one rank holds, at once.
    pub fn clear(&self, engine: &str, rank: u32) {
        let writer = &mut self.writer.lock();
        writer.lives.end(&self.owners, engine, rank);
    }

    /// Forgets an engine with all its ranks, at once.
    pub fn remove_engine(&self, engine: &str) {
        let writer = &mut self.writer.lock();
        for rank in writer.lives.ranks(engine) {
            writer.lives.end(&self.owners, engine, rank);
        }
    }

    /// Forgets everything, at once.
    pub fn clear_all(&self) {
        let writer = &mut self.writer.lock();
        for (engine, rank) in writer.lives.all() {
            writer.lives.end(&self.owners, &engine, rank);
        }
    }

    /// Blocks that one rank holds.
    #[must_use]
    pub fn blocks_of(&self, engine: &str, rank: u32) -> u64 {
        let living = self.owners.living();
        let mut owners = living.all();
        let owner = owners.find(|owner| owner.rank == rank && *owner.engine == *engine);
        owner.map_or(0, |owner| owner.blocks())
    }

    /// What it holds.
    #[must_use]
    pub fn size(&self) -> IndexSize {
        let living = self.owners.living();
        let writer = self.writer.lock();
        let bytes = [
            writer.slots.bytes(),
            writer.counts.bytes(),
            writer.interner.bytes(),
        ];
        IndexSize {
            blocks: writer.slots.taken(),
            holdings: living.all().map(|owner| owner.blocks()).sum(),
            owners: living.all().count(),
            sets: writer.interner.len(),
            bytes: bytes.iter().sum(),
        }
    }
}

/// One writer at work.
struct Work<'a> {
    index: &'a PrefixIndex,
    writer: &'a mut Writer,
    applied: &'a mut Applied,
}

impl Work<'_> {
    fn store(&mut self, engine: &str, rank: u32, tier: Tier, parent: Option<i64>, names: &[i64]) {
        let Some((owner, id)) = self.owner(engine, rank) else {
            self.applied.no_room += names.len() as u64;
            return;
        };
        let change = Change::Add(id, tier.bit());
        let mut pages = self.index.arena.pages();
        let mut before = parent.and_then(|parent| self.index.table.find(&pages, parent));
        for (at, name) in names.iter().enumerate() {
            let found = self.index.locate(&pages, before, *name);
            let run = names.len() - at;
            let Some(position) = found.or_else(|| self.place(&mut pages, before, *name, run))
            else {
                self.applied.no_room += 1;
                continue;
            };
            if let Some(before) = before
                && before + 1 != position
                && let Some(slot) = pages.slot(before)
                && slot.meta().next() != position
            {
                slot.set_meta(Meta::new(slot.meta().set(), position));
            }
            owner.count(self.change(&pages, position, change).unwrap_or(0));
            if found.is_none() {
                self.index
                    .table
                    .insert(&mut self.writer.counts, *name, position);
            }
            self.applied.stored += 1;
            before = Some(position);
        }
    }

    fn remove(&mut self, engine: &str, rank: u32, tiers: u8, names: &[i64]) {
        let Some(id) = self.writer.lives.find(engine, rank) else {
            self.applied.unknown_removals += names.len() as u64;
            return;
        };
        let Some((owner, id)) = self.living(id) else {
            return;
        };
        let change = Change::Take(id, tiers);
        let pages = self.index.arena.pages();
        let mut before = None;
        for name in names {
            let Some(position) = self.index.locate(&pages, before, *name) else {
                self.applied.unknown_removals += 1;
                before = None;
                continue;
            };
            match self.change(&pages, position, change) {
                Some(step) => {
                    owner.count(step);
                    self.applied.removed += 1;
                }
                None => self.applied.unknown_removals += 1,
            }
            before = Some(position);
        }
    }

    fn clear(&mut self, engine: &str, rank: u32) {
        let holds = self
            .writer
            .lives
            .find(engine, rank)
            .and_then(|id| self.living(id));
        if holds.is_some_and(|(owner, _)| owner.blocks() > 0) {
            self.writer.lives.end(&self.index.owners, engine, rank);
        }
    }

    fn owner(&mut self, engine: &str, rank: u32) -> Option<(Arc<Owner>, OwnerId)> {
        let id = self.writer.lives.of(&self.index.owners, engine, rank)?;
        self.living(id)
    }

    fn living(&self, id: OwnerId) -> Option<(Arc<Owner>, OwnerId)> {
        let living = self.index.owners.living();
        Some((Arc::clone(living.get(id)?), id))
    }

    /// A slot for a new block, named and still without owners.
    fn place(
        &mut self,
        pages: &mut Pages,
        before: Option<Position>,
        name: i64,
        run: usize,
    ) -> Option<Position> {
        let position = self.writer.slots.take(&self.index.arena, before, run)?;
        if pages.slot(position).is_none() {
            *pages = self.index.arena.pages();
        }
        pages.slot(position)?.set_name(name);
        Some(position)
    }

    /// Changes the owners of the block at `position`. +1 if the owner came, -1 if it left, 0 if
    /// only its tiers changed; `None` if nothing did.
    fn change(&mut self, pages: &Pages, position: Position, change: Change) -> Option<i8> {
        let slot = pages.slot(position)?;
        let from = slot.meta().set();
        let (to, step) = self.writer.interner.change(&self.index.sets, from, change);
        if to == from {
            return None;
        }
        self.index.give(self.writer, position, slot, to);
        Some(step)
    }
}

impl PrefixIndex {
    /// Gives a block another owner set and frees it when that is empty. True if its former set has
    /// lost its number.
    fn give(&self, writer: &mut Writer, position: Position, slot: &Slot, to: SetId) -> bool {
        let meta = slot.meta();
        writer.interner.hold(to);
        let next = if to == NO_OWNERS { 0 } else { meta.next() };
        slot.set_meta(Meta::new(to, next));
        let lost = writer.interner.release(&self.sets, meta.set());
        if to == NO_OWNERS && meta.set() != NO_OWNERS {
            self.table.remove(&mut writer.counts, slot.name(), position);
            writer.slots.free(position);
        }
        lost
    }
}

#[cfg(test)]
mod tests;
