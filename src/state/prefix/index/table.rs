//! From a block's name to its position: open addressing in 256 shards that grow one at a time.
//!
//! An entry is 8 bytes: 32 bits of the mixed name and a position. The bits alone give an entry its
//! place, so a shard is rebuilt by reading it in order, without a look at the blocks. Readers hold
//! a shard while they search it and verify the name in the slot; a rebuilt shard replaces the old
//! one by one pointer. One writer changes entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::arena::{Pages, Position};

const SHARDS: usize = 256;
const LEAST: usize = 16;
/// An entry that was removed; searches go on past it.
const GONE: Position = Position::MAX;

type Shard = Box<[AtomicU64]>;

/// All entries.
#[derive(Debug)]
pub(super) struct Table {
    shards: Vec<ArcSwap<Shard>>,
}

/// The writer's count of one shard.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    live: usize,
    gone: usize,
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct Counts {
    loads: Vec<Load>,
    places: usize,
}

impl Default for Table {
    fn default() -> Self {
        let shard = || ArcSwap::from_pointee(empty(LEAST));
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            loads: vec![Load::default(); SHARDS],
            places: SHARDS * LEAST,
        }
    }
}

/// Names are digests, but nothing relies on it: names chosen by hand are spread as well.
#[derive(Clone, Copy)]
struct Mixed {
    shard: usize,
    bits: u32,
}

impl Mixed {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bits are meant to be cut"
    )]
    const fn of(name: i64) -> Self {
        let mixed = name.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Self {
            shard: (mixed >> 56) as usize,
            bits: (mixed >> 24) as u32,
        }
    }

    const fn entry(self, position: Position) -> u64 {
        ((self.bits as u64) << 32) | position as u64
    }
}

fn empty(places: usize) -> Shard {
    std::iter::repeat_with(AtomicU64::default)
        .take(places)
        .collect()
}

const fn home(bits: u32, places: usize) -> usize {
    ((bits as u64 * places as u64) >> 32) as usize
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the position"
)]
const fn position(entry: u64) -> Position {
    entry as u32
}

const fn bits(entry: u64) -> u32 {
    (entry >> 32) as u32
}

/// Places from an entry's home on, around the end.
fn probe(places: usize, home: usize) -> impl Iterator<Item = usize> {
    (home..places).chain(0..home)
}

impl Table {
    /// Where the block `name` lies, if somebody holds it.
    pub(super) fn find(&self, pages: &Pages, name: i64) -> Option<Position> {
        let mixed = Mixed::of(name);
        let shard = self.shards[mixed.shard].load();
        for place in probe(shard.len(), home(mixed.bits, shard.len())) {
            let entry = shard[place].load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            if bits(entry) == mixed.bits
                && position(entry) != GONE
                && pages
                    .slot(position(entry))
                    .is_some_and(|slot| slot.is(name))
            {
                return Some(position(entry));
            }
        }
        None
    }

    /// Enters a block that is not there yet.
    pub(super) fn insert(&self, counts: &mut Counts, name: i64, at: Position) {
        let mixed = Mixed::of(name);
        let load = &mut counts.loads[mixed.shard];
        let places = self.shards[mixed.shard].load().len();
        if (load.live + load.gone + 1) * 4 > places * 3 {
            counts.places -= places;
            counts.places += self.rebuild(mixed.shard, load.live + 1);
            load.gone = 0;
        }
        let shard = self.shards[mixed.shard].load();
        for place in probe(shard.len(), home(mixed.bits, shard.len())) {
            let entry = shard[place].load(Ordering::Relaxed);
            if entry == 0 || position(entry) == GONE {
                load.gone -= usize::from(entry != 0);
                load.live += 1;
                shard[place].store(mixed.entry(at), Ordering::Release);
                return;
            }
        }
    }

    /// Takes out the entry that points from `name` to `at`.
    pub(super) fn remove(&self, counts: &mut Counts, name: i64, at: Position) {
        let mixed = Mixed::of(name);
        let shard = self.shards[mixed.shard].load();
        let wanted = mixed.entry(at);
        for place in probe(shard.len(), home(mixed.bits, shard.len())) {
            let entry = shard[place].load(Ordering::Relaxed);
            if entry == wanted {
                shard[place].store(mixed.entry(GONE), Ordering::Release);
                let load = &mut counts.loads[mixed.shard];
                load.live -= 1;
                load.gone += 1;
            }
            if entry == wanted || entry == 0 {
                return;
            }
        }
    }

    /// Replaces a shard by one that is half full with `live` entries; returns its places.
    fn rebuild(&self, shard: usize, live: usize) -> usize {
        let old = self.shards[shard].load();
        let places = (live * 2).max(LEAST);
        let new = empty(places);
        for entry in old.iter().map(|entry| entry.load(Ordering::Relaxed)) {
            if entry == 0 || position(entry) == GONE {
                continue;
            }
            let free = probe(places, home(bits(entry), places))
                .find(|place| new[*place].load(Ordering::Relaxed) == 0);
            if let Some(place) = free {
                new[place].store(entry, Ordering::Relaxed);
            }
        }
        self.shards[shard].store(Arc::new(new));
        places
    }
}

impl Counts {
    /// Bytes of all shards.
    pub(super) const fn bytes(&self) -> usize {
        self.places * size_of::<AtomicU64>()
    }
}
