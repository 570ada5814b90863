//! What was of use lately, within a number of bytes; what was not asked for longest is forgotten first.
//!
//! Values lie in parts by their key, each behind a lock of its own that is held for the time of one
//! lookup, so that threads seldom meet. A key is a 64-bit digest under a seed of this memory: two values
//! that share one push each other out. **It does not compare**: who asks has to see whether the value
//! is the one that was meant.

use std::fmt;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use lru::LruCache;
use parking_lot::Mutex;

/// Chosen: more than the cores that look things up at the same time.
const PARTS: usize = 16;

/// A memory of values, which are cheap to clone.
pub struct Recent<V> {
    parts: [Mutex<Part<V>>; PARTS],
    seed: RandomState,
    /// Bytes that a part holds.
    most: usize,
}

struct Part<V> {
    values: LruCache<u64, (V, usize), RandomState>,
    held: usize,
}

// === impl Recent ===

impl<V: Clone> Recent<V> {
    /// A memory of up to `bytes` bytes, counted as [`keep`](Self::keep) is told.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::new(Part::new())),
            seed: RandomState::default(),
            most: bytes / PARTS,
        }
    }

    /// The key of what is told apart by `of`.
    pub fn key(&self, of: &(impl Hash + ?Sized)) -> u64 {
        self.seed.hash_one(of)
    }

    /// The value kept last under `key`, if it is still there.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<V> {
        let mut part = self.part(key).lock();
        part.values.get(&key).map(|(value, _)| value.clone())
    }

    /// Keeps a value of `bytes` bytes, unless a part is too small for it.
    pub fn keep(&self, key: u64, value: V, bytes: usize) {
        if bytes > self.most {
            return;
        }
        let mut part = self.part(key).lock();
        let before = part.values.put(key, (value, bytes));
        part.held = part.held + bytes - before.map_or(0, |(_, bytes)| bytes);
        while part.held > self.most
            && let Some((_, (_, bytes))) = part.values.pop_lru()
        {
            part.held -= bytes;
        }
    }

    /// Bytes held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.parts.iter().map(|part| part.lock().held).sum()
    }

    fn part(&self, key: u64) -> &Mutex<Part<V>> {
        let high = usize::try_from(key >> 32).unwrap_or_default();
        &self.parts[high % PARTS]
    }
}

// === impl Part ===

impl<V> Part<V> {
    fn new() -> Self {
        Self {
            values: LruCache::unbounded_with_hasher(RandomState::default()),
            held: 0,
        }
    }
}

impl<V: Clone> fmt::Debug for Recent<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent")
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_its_bytes_the_latest_are_kept() {
        let recent = Recent::new(PARTS * 100);
        for number in 0..10_000_u64 {
            let key = recent.key(&number);
            recent.keep(key, number, 10);
            assert_eq!(recent.get(key), Some(number));
            let steady = recent.get(recent.key(&0_u64));
            assert_eq!(steady, Some(0), "asked for all the time");
            assert!(recent.held() <= PARTS * 100);
        }
        assert_eq!(recent.held(), PARTS * 100, "every part is full");
        assert_eq!(recent.get(recent.key(&1_u64)), None);
    }

    #[test]
    fn a_value_takes_the_place_of_the_one_before_and_a_huge_one_none() {
        let recent = Recent::new(PARTS * 100);
        recent.keep(7, "long", 90);
        recent.keep(7, "short", 40);
        assert_eq!((recent.get(7), recent.held()), (Some("short"), 40));
        recent.keep(7, "huge", 101);
        assert_eq!((recent.get(7), recent.held()), (Some("short"), 40));
    }
}
