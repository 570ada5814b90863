//! The walk of a query: names in, depth per owner out.
//!
//! Blocks of a chain lie next to each other, so most steps compare one name in memory that is
//! already on its way. The table is asked where the chain goes on somewhere else.

use std::sync::Arc;

use super::PrefixIndex;
use super::arena::{Meta, Pages, Position, Slot};
use super::owners::{Living, OwnerId};
use super::sets::{NO_OWNERS, OwnerSet, SetId};

/// One rank that holds the beginning of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The engine, as it was named when its events were applied.
    pub engine: Arc<str>,
    /// The rank.
    pub rank: u32,
    /// Length of the unbroken run from the first block, blocks, at least 1.
    pub blocks: u32,
}

/// Who holds the beginning of a prompt, at the moment of the query.
#[derive(Debug, Clone, Default)]
pub struct Found {
    living: Arc<Living>,
    runs: Vec<(OwnerId, u32)>,
}

impl Found {
    /// Every rank that holds something, in no particular order.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        self.runs.iter().filter_map(|(id, blocks)| {
            let owner = self.living.get(*id)?;
            Some(Holder {
                engine: Arc::clone(&owner.engine),
                rank: owner.rank,
                blocks: *blocks,
            })
        })
    }

    /// The same by engine, its best rank counting.
    #[must_use]
    pub fn by_engine(self) -> EngineDepths {
        let mut depths = vec![0; self.living.numbers()];
        for (id, blocks) in &self.runs {
            if let Some(owner) = self.living.get(*id)
                && let Some(depth) = depths.get_mut(owner.number as usize)
            {
                *depth = (*blocks).max(*depth);
            }
        }
        EngineDepths {
            living: self.living,
            depths,
        }
    }
}

/// Depth of each engine's prefix.
#[derive(Debug, Clone, Default)]
pub struct EngineDepths {
    living: Arc<Living>,
    /// By number of the engine, blocks.
    depths: Vec<u32>,
}

impl EngineDepths {
    /// Blocks that `engine` holds from the start.
    #[must_use]
    pub fn blocks(&self, engine: &str) -> u32 {
        let number = self.living.number(engine);
        number.map_or(0, |number| {
            self.depths.get(number as usize).copied().unwrap_or(0)
        })
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.depths.iter().all(|depth| *depth == 0)
    }
}

/// Owners that hold everything so far, and those that dropped out with their depth.
#[derive(Default)]
struct Runs {
    alive: Vec<OwnerId>,
    ended: Vec<(OwnerId, u32)>,
    set: SetId,
}

/// Attempts to read a block whose owners change at the same moment.
const ATTEMPTS: usize = 4;

impl PrefixIndex {
    /// Every rank that holds the first of `names`, with the length of its unbroken run. Takes no
    /// lock.
    #[must_use]
    pub fn lookup(&self, names: &[i64]) -> Found {
        let pages = self.arena.pages();
        let mut runs = Runs::default();
        let mut depth = 0;
        let mut before = None;
        while let Some(name) = names.get(depth) {
            let Some(position) = self.locate(&pages, before, *name) else {
                break;
            };
            if !self.visit(&pages, position, *name, depth, &mut runs) {
                break;
            }
            depth += 1;
            let (end, passed) = same_owners(&pages, position, &names[depth..], runs.set);
            depth += passed;
            before = Some(end);
        }
        runs.end(depth);
        // Read last: whoever was cleared while the query ran is not there any more.
        let living = Arc::clone(&self.owners.living());
        Found {
            living,
            runs: runs.ended,
        }
    }

    /// Where the block `name` lies, looked for behind the block at `before` first.
    pub(super) fn locate(
        &self,
        pages: &Pages,
        before: Option<Position>,
        name: i64,
    ) -> Option<Position> {
        if let Some(before) = before {
            let is = |at: &Position| pages.slot(*at).is_some_and(|slot| slot.is(name));
            if let Some(behind) = before.checked_add(1).filter(is) {
                return Some(behind);
            }
            let next = pages.slot(before).map_or(0, |slot| slot.meta().next());
            if next != 0 && is(&next) {
                return Some(next);
            }
        }
        self.table.find(pages, name)
    }

    /// Drops the runs that do not go through this block; false when none is left.
    fn visit(
        &self,
        pages: &Pages,
        position: Position,
        name: i64,
        depth: usize,
        runs: &mut Runs,
    ) -> bool {
        let Some(slot) = pages.slot(position) else {
            return false;
        };
        for _ in 0..ATTEMPTS {
            let meta = slot.meta();
            if meta.set() == NO_OWNERS || slot.name() != name {
                return false;
            }
            if meta.set() == runs.set {
                return true;
            }
            let Some(set) = self.owners_at(slot, meta) else {
                continue;
            };
            runs.narrow(&set, depth);
            runs.set = meta.set();
            return !runs.alive.is_empty();
        }
        false
    }

    /// The owners of a block; `None` when they changed while they were read.
    fn owners_at(&self, slot: &Slot, meta: Meta) -> Option<Arc<OwnerSet>> {
        let set = self.sets.get(meta.set())?;
        (slot.meta().set() == meta.set()).then_some(set)
    }
}

/// Follows `names` behind `position` as long as they lie there in order with the owners `set`.
/// The last position, and how many names were passed.
fn same_owners(pages: &Pages, position: Position, names: &[i64], set: SetId) -> (Position, usize) {
    let Some((page, offset)) = pages.page(position) else {
        return (position, 0);
    };
    let behind = page[offset + 1..].iter().zip(names);
    let passed = behind
        .take_while(|(slot, name)| slot.name() == **name && slot.meta().set() == set)
        .count();
    // Within one page, so it fits.
    (position + u32::try_from(passed).unwrap_or(0), passed)
}

impl Runs {
    /// Ends the runs of owners that are not in `set` at `depth`.
    fn narrow(&mut self, set: &OwnerSet, depth: usize) {
        if depth == 0 {
            self.alive.extend(set.iter().map(|holding| holding.owner()));
            return;
        }
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let mut others = set.iter().map(|holding| holding.owner()).peekable();
        let ended = &mut self.ended;
        self.alive.retain(|owner| {
            while others.next_if(|other| other < owner).is_some() {}
            let stays = others.peek() == Some(owner);
            if !stays {
                ended.push((*owner, depth));
            }
            stays
        });
    }

    /// Ends the runs that are left.
    fn end(&mut self, depth: usize) {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let left = self.alive.drain(..).map(|owner| (owner, depth));
        self.ended.extend(left);
    }
}

#[cfg(test)]
impl PrefixIndex {
    /// The names that one rank holds on `tier`.
    pub(super) fn names_on(&self, engine: &str, rank: u32, tier: crate::kv::Tier) -> Vec<i64> {
        let writer = self.writer.lock();
        let Some(id) = writer.lives.find(engine, rank) else {
            return Vec::new();
        };
        let pages = self.arena.pages();
        let held = |slot: &&Slot| {
            let set = self.sets.get(slot.meta().set());
            set.is_some_and(|set| {
                set.iter()
                    .any(|holding| holding.owner() == id && holding.tiers() & tier.bit() != 0)
            })
        };
        let positions = 0..u32::try_from(writer.slots.positions()).unwrap();
        let slots = positions.filter_map(|position| pages.slot(position));
        slots.filter(held).map(Slot::name).collect()
    }
}
