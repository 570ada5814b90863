//! Who holds a block: sets of owners with their tiers, each kept once and named by a number.
//!
//! Blocks of one chain are nearly always held by the same owners, so millions of blocks share few
//! sets, and "the next block has the same owners" is one comparison. A set never changes; a block
//! gets another one. Numbers that are no longer used are given out again, the longest unused
//! first, and a reader checks that the block still has the number after it has read the set.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::owners::OwnerId;

/// Number of a set.
pub(super) type SetId = u32;

/// The empty set.
pub(super) const NO_OWNERS: SetId = 0;

/// An owner and the tiers on which it holds the block: 28 and 4 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Holding(u32);

impl Holding {
    pub(super) const fn new(owner: OwnerId, tiers: u8) -> Self {
        Self((owner << 4) | tiers as u32)
    }

    pub(super) const fn owner(self) -> OwnerId {
        self.0 >> 4
    }

    pub(super) const fn tiers(self) -> u8 {
        (self.0 & 15) as u8
    }
}

/// Holdings by owner.
pub(super) type OwnerSet = Box<[Holding]>;

const PAGE: usize = 4096;

type Page = Arc<[ArcSwapOption<OwnerSet>]>;

/// Sets as readers see them.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pages: ArcSwap<Vec<Page>>,
}

impl Sets {
    /// The set `id` as it is now; `None` for the empty one and for a number that is unused.
    pub(super) fn get(&self, id: SetId) -> Option<Arc<OwnerSet>> {
        let pages = self.pages.load();
        let at = (id as usize).checked_sub(1)?;
        pages.get(at / PAGE)?.get(at % PAGE)?.load_full()
    }

    fn put(&self, id: SetId, set: Option<Arc<OwnerSet>>) {
        let at = id as usize - 1;
        if at / PAGE == self.pages.load().len() {
            let mut pages = Vec::clone(&self.pages.load());
            let page = std::iter::repeat_with(ArcSwapOption::empty).take(PAGE);
            pages.push(page.collect());
            self.pages.store(Arc::new(pages));
        }
        self.pages.load()[at / PAGE][at % PAGE].store(set);
    }
}

/// A change of one set by one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The owner holds it on these tiers too.
    Add(OwnerId, u8),
    /// The owner no longer holds it on these tiers.
    Take(OwnerId, u8),
}

/// The writer's side: the numbers of sets and how many blocks have each.
#[derive(Debug, Default)]
pub(super) struct Interner {
    numbers: HashMap<Arc<OwnerSet>, SetId>,
    blocks: Vec<u32>,
    unused: VecDeque<SetId>,
    holdings: usize,
    /// The last change that was worked out; runs of blocks repeat it.
    last: Option<(SetId, Change, (SetId, i8))>,
}

/// Numbers that stay unused before the first of them is given out again.
const REST: usize = 1024;

impl Interner {
    /// The set that `change` makes of `from`; +1 if the owner came, -1 if it left, else 0.
    ///
    /// The result must be given to a block with [`hold`](Self::hold) before anything is released.
    pub(super) fn change(&mut self, sets: &Sets, from: SetId, change: Change) -> (SetId, i8) {
        if let Some((last_from, last_change, result)) = self.last
            && (last_from, last_change) == (from, change)
        {
            return result;
        }
        let set = sets.get(from);
        let before = set.as_deref().map_or(&[][..], |set| &set[..]);
        let result = match apply(before, change) {
            None => (from, 0),
            Some(after) => {
                let step = after.len().cmp(&before.len()) as i8;
                (self.number(sets, after), step)
            }
        };
        self.last = Some((from, change, result));
        result
    }

    /// The number of a set with these holdings.
    pub(super) fn number(&mut self, sets: &Sets, set: Vec<Holding>) -> SetId {
        if set.is_empty() {
            return NO_OWNERS;
        }
        let set = Arc::new(set.into_boxed_slice());
        if let Some(id) = self.numbers.get(&set) {
            return *id;
        }
        let id = match self.unused.len() {
            ..=REST => {
                self.blocks.push(0);
                u32::try_from(self.blocks.len()).unwrap_or(SetId::MAX)
            }
            _ => self.unused.pop_front().unwrap_or(SetId::MAX),
        };
        self.holdings += set.len();
        sets.put(id, Some(Arc::clone(&set)));
        self.numbers.insert(set, id);
        id
    }

    /// One more block has the set.
    pub(super) fn hold(&mut self, id: SetId) {
        if id != NO_OWNERS {
            self.blocks[id as usize - 1] += 1;
        }
    }

    /// One block less has the set; true if it was the last one and the number is unused now.
    pub(super) fn release(&mut self, sets: &Sets, id: SetId) -> bool {
        if id == NO_OWNERS {
            return false;
        }
        let blocks = &mut self.blocks[id as usize - 1];
        *blocks -= 1;
        if *blocks > 0 {
            return false;
        }
        if let Some(set) = sets.get(id) {
            self.holdings -= set.len();
            self.numbers.remove(&set);
        }
        sets.put(id, None);
        self.unused.push_back(id);
        self.last = None;
        true
    }

    /// Bytes of all sets, roughly: what each takes here, in the readers' pages and on the heap.
    pub(super) fn bytes(&self) -> usize {
        const HEADERS: usize = 2 * size_of::<usize>() + size_of::<OwnerSet>() + 16;
        let table = self.numbers.capacity() * (size_of::<(Arc<OwnerSet>, SetId)>() + 1);
        let pages = self.blocks.len() * (size_of::<usize>() + size_of::<u32>());
        table + pages + self.numbers.len() * HEADERS + self.holdings * size_of::<Holding>()
    }

    /// Number of different sets.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// `None` when nothing changes.
fn apply(before: &[Holding], change: Change) -> Option<Vec<Holding>> {
    let (Change::Add(owner, tiers) | Change::Take(owner, tiers)) = change;
    let at = before.binary_search_by_key(&owner, |holding| holding.owner());
    let held = at.map_or(0, |at| before[at].tiers());
    let left = match change {
        Change::Add(..) => held | tiers,
        Change::Take(..) => held & !tiers,
    };
    if left == held {
        return None;
    }
    let mut after = before.to_vec();
    match at {
        Ok(at) if left == 0 => {
            after.remove(at);
        }
        Ok(at) => after[at] = Holding::new(owner, left),
        Err(at) => after.insert(at, Holding::new(owner, left)),
    }
    Some(after)
}
