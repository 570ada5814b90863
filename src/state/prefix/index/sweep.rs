//! Taking ended lives out of the blocks that still name them, a few blocks at a time.

use std::collections::HashMap;

use super::arena::{Position, Slot};
use super::owners::OwnerId;
use super::sets::{Holding, NO_OWNERS, SetId};
use super::{PrefixIndex, Writer};

/// A pass over all positions for the lives that had ended when it began.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    ended: Vec<OwnerId>,
    at: Position,
}

impl PrefixIndex {
    /// Goes on sweeping for at most `positions` positions; true while there is more to do.
    ///
    /// Writers wait for as long as one call takes (about 2 ns a position), queries never.
    pub fn sweep(&self, positions: usize) -> bool {
        let writer = &mut *self.writer.lock();
        if writer.sweep.ended.is_empty() {
            let mut ended = writer.lives.take_ended();
            ended.sort_unstable();
            writer.sweep = Sweep { ended, at: 0 };
        }
        if writer.sweep.ended.is_empty() {
            return false;
        }
        let all = writer.slots.positions();
        let from = writer.sweep.at as usize;
        let to = from.saturating_add(positions).min(all);
        let pages = self.arena.pages();
        let mut known = Known::default();
        for position in from..to {
            if let Ok(position) = Position::try_from(position)
                && let Some(slot) = pages.slot(position)
                && slot.meta().set() != NO_OWNERS
            {
                self.sweep_one(writer, position, slot, &mut known);
            }
        }
        if to < all {
            writer.sweep.at = Position::try_from(to).unwrap_or(Position::MAX);
            return true;
        }
        let swept = std::mem::take(&mut writer.sweep.ended);
        writer.lives.swept(swept);
        writer.lives.any_ended()
    }

    fn sweep_one(&self, writer: &mut Writer, position: Position, slot: &Slot, known: &mut Known) {
        let from = slot.meta().set();
        let to = known.get(from).unwrap_or_else(|| {
            let to = self.without_ended(writer, from);
            known.put(from, to);
            to
        });
        if to != from && self.give(writer, position, slot, to) {
            known.forget(from);
        }
    }

    /// The number of the set without ended lives; the same number when it has none.
    fn without_ended(&self, writer: &mut Writer, from: SetId) -> SetId {
        let ended = &writer.sweep.ended;
        let lives = |holding: &&Holding| ended.binary_search(&holding.owner()).is_err();
        let Some(set) = self.sets.get(from) else {
            return from;
        };
        let left: Vec<Holding> = set.iter().filter(lives).copied().collect();
        if left.len() == set.len() {
            return from;
        }
        writer.interner.number(&self.sets, left)
    }
}

/// What sets become; neighbours mostly have the same one.
#[derive(Debug, Default)]
struct Known {
    last: Option<(SetId, SetId)>,
    all: HashMap<SetId, SetId>,
}

impl Known {
    fn get(&mut self, from: SetId) -> Option<SetId> {
        if let Some((last, to)) = self.last
            && last == from
        {
            return Some(to);
        }
        let to = self.all.get(&from).copied()?;
        self.last = Some((from, to));
        Some(to)
    }

    fn put(&mut self, from: SetId, to: SetId) {
        self.last = Some((from, to));
        self.all.insert(from, to);
    }

    fn forget(&mut self, from: SetId) {
        self.last = None;
        self.all.remove(&from);
    }
}
