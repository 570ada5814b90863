//! Where blocks lie: slots of 16 bytes in pages that never move.
//!
//! Blocks of one chain are placed next to each other where there is room, so that a query reads
//! memory in order; where a chain continues elsewhere, the slot before says where (`next`, a hint
//! that readers verify by name). Readers hold the list of pages and read atomics; one writer
//! places and frees.
//!
//! A slot whose set is [`NO_OWNERS`] is free, whatever its name says. A writer names a slot before
//! it gives it owners and takes the owners away before it renames it, so a reader that finds name
//! and owners together has a pair that was true at some moment of its query.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::sets::{NO_OWNERS, SetId};

/// Position of a slot; 0 is none.
pub(super) type Position = u32;

const PAGE_BITS: u32 = 16;
/// Slots of one page: 1 MiB.
const PAGE: usize = 1 << PAGE_BITS;

/// One block.
#[derive(Debug, Default)]
pub(super) struct Slot {
    name: AtomicU64,
    /// The owner set, and above it the position of one child that does not lie next to it.
    meta: AtomicU64,
}

/// What a slot says beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta(u64);

impl Meta {
    pub(super) const fn new(set: SetId, next: Position) -> Self {
        Self(((next as u64) << 32) | set as u64)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    pub(super) const fn set(self) -> SetId {
        self.0 as u32
    }

    pub(super) const fn next(self) -> Position {
        (self.0 >> 32) as u32
    }
}

impl Slot {
    pub(super) fn name(&self) -> i64 {
        self.name.load(Ordering::Acquire).cast_signed()
    }

    pub(super) fn meta(&self) -> Meta {
        Meta(self.meta.load(Ordering::Acquire))
    }

    /// Whether it is the block `name`, held by somebody.
    pub(super) fn is(&self, name: i64) -> bool {
        self.name() == name && self.meta().set() != NO_OWNERS
    }

    pub(super) fn set_meta(&self, meta: Meta) {
        self.meta.store(meta.0, Ordering::Release);
    }

    pub(super) fn set_name(&self, name: i64) {
        self.name.store(name.cast_unsigned(), Ordering::Release);
    }
}

type Page = Arc<[Slot]>;

/// The pages as readers see them.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pages: ArcSwap<Vec<Page>>,
}

/// The pages, held for one query.
pub(super) struct Pages(Guard<Arc<Vec<Page>>>);

impl Arena {
    pub(super) fn pages(&self) -> Pages {
        Pages(self.pages.load())
    }
}

impl Pages {
    /// The slot at `position`; `None` beyond the pages that this query holds.
    pub(super) fn slot(&self, position: Position) -> Option<&Slot> {
        let (page, offset) = self.page(position)?;
        page.get(offset)
    }

    /// The page of `position` and the place within it.
    pub(super) fn page(&self, position: Position) -> Option<(&[Slot], usize)> {
        let page = self.0.get((position >> PAGE_BITS) as usize)?;
        Some((page, position as usize & (PAGE - 1)))
    }
}

/// The writer's side: which slots are taken.
#[derive(Debug, Default)]
pub(super) struct Allocator {
    /// One bit per slot, set where it is taken.
    taken: Vec<u64>,
    taken_count: usize,
    /// Word from which the next free place is looked for.
    cursor: usize,
}

const WORDS_OF_PAGE: usize = PAGE / 64;
/// Free slots worth looking for, as a share of all: fewer, and a page is added.
const WORTH: usize = 8;
/// Words looked at for a long free run before any free slot will do.
const PATIENCE: usize = 512;

impl Allocator {
    /// Number of taken slots.
    pub(super) const fn taken(&self) -> usize {
        // Position 0 stands for "none" and is never given out.
        self.taken_count.saturating_sub(1)
    }

    /// Number of positions that exist.
    pub(super) const fn positions(&self) -> usize {
        self.taken.len() * 64
    }

    /// Bytes of pages and bits.
    pub(super) const fn bytes(&self) -> usize {
        self.positions() * size_of::<Slot>() + self.taken.len() * 8
    }

    /// A free slot for the first of `run` blocks; `after` is the position of the block before.
    /// `None` when 32-bit positions are used up.
    pub(super) fn take(
        &mut self,
        arena: &Arena,
        after: Option<Position>,
        run: usize,
    ) -> Option<Position> {
        if let Some(position) = after.and_then(|after| after.checked_add(1))
            && self.is_free(position)
        {
            self.mark(position);
            return Some(position);
        }
        if self.positions() - self.taken_count <= self.positions() / WORTH {
            self.add_page(arena)?;
        }
        let position = self.find(run)?;
        self.mark(position);
        Some(position)
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, position: Position) {
        let (word, bit) = place(position);
        if self.taken[word] & bit != 0 {
            self.taken[word] &= !bit;
            self.taken_count -= 1;
        }
    }

    fn is_free(&self, position: Position) -> bool {
        let (word, bit) = place(position);
        self.taken.get(word).is_some_and(|taken| taken & bit == 0)
    }

    fn mark(&mut self, position: Position) {
        let (word, bit) = place(position);
        self.taken[word] |= bit;
        self.taken_count += 1;
    }

    fn add_page(&mut self, arena: &Arena) -> Option<()> {
        u32::try_from(self.positions() + PAGE).ok()?;
        let page: Page = std::iter::repeat_with(Slot::default).take(PAGE).collect();
        let mut pages = Vec::clone(&arena.pages.load());
        pages.push(page);
        arena.pages.store(Arc::new(pages));
        self.cursor = self.taken.len();
        self.taken.resize(self.taken.len() + WORDS_OF_PAGE, 0);
        if self.cursor == 0 {
            self.mark(0);
        }
        Some(())
    }

    /// From the cursor on, a place with room for the run (eight slots at most); failing that near
    /// the cursor, any free slot.
    fn find(&mut self, run: usize) -> Option<Position> {
        let words = self.taken.len();
        let wanted = run.clamp(1, 8);
        let mut any = None;
        for step in 0..words {
            let word = (self.cursor + step) % words;
            let free = !self.taken[word];
            if free == 0 {
                continue;
            }
            let roomy = (1..wanted).fold(free, |roomy, shift| roomy & (free >> shift));
            if roomy != 0 {
                self.cursor = word;
                return position(word, roomy.trailing_zeros());
            }
            any = any.or_else(|| position(word, free.trailing_zeros()));
            if step >= PATIENCE && any.is_some() {
                self.cursor = word;
                break;
            }
        }
        any
    }
}

fn place(position: Position) -> (usize, u64) {
    (position as usize / 64, 1 << (position % 64))
}

fn position(word: usize, bit: u32) -> Option<Position> {
    u32::try_from(word * 64).ok()?.checked_add(bit)
}
