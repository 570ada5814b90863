//! Pages in a tree: a page is the child of the page before it, and only leaves are evicted, the
//! least recently used first.

use std::collections::{BTreeMap, HashMap};

use crate::kv::{BlockFormat, KvEvent, Medium, Tier};

/// Events with the token ids of what they store.
pub type Events = Vec<(KvEvent, Vec<u32>)>;

/// The pages of one rank: what an engine with a prefix cache would hold, store and evict.
///
/// Names are the block hashes of a prompt in order; a name says which pages come before it.
#[derive(Debug)]
pub struct PageCache {
    capacity: u64,
    pages: HashMap<i64, Page>,
    /// Leaves by the time of their last use.
    leaves: BTreeMap<u64, i64>,
    clock: u64,
}

#[derive(Debug)]
struct Page {
    parent: Option<i64>,
    children: u32,
    used: u64,
}

impl PageCache {
    /// An empty cache of `capacity` pages.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            pages: HashMap::new(),
            leaves: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Pages held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether no page is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// How many of the first pages are held.
    #[must_use]
    pub fn held(&self, names: &[i64]) -> usize {
        let held = |name: &&i64| self.pages.contains_key(name);
        names.iter().take_while(held).count()
    }

    /// The same, and they count as used now.
    pub fn touch(&mut self, names: &[i64]) -> usize {
        let held = self.held(names);
        for name in &names[..held] {
            self.used(*name);
        }
        held
    }

    /// Holds all of `names`, the pages of `ids` in order; says what was stored and evicted.
    pub fn insert(&mut self, names: &[i64], format: BlockFormat, ids: &[u32]) -> Events {
        let held = self.touch(names);
        let mut parent = held.checked_sub(1).map(|last| names[last]);
        let fresh = &names[held..];
        if fresh.is_empty() {
            return Vec::new();
        }
        let stored = KvEvent::Stored {
            hashes: fresh.to_vec(),
            parent,
            block_size: format.block_size.get(),
            medium: Medium::Known(Tier::Device),
        };
        for name in fresh {
            if let Some(before) = parent {
                self.adopt(before);
            }
            self.pages.insert(
                *name,
                Page {
                    parent,
                    children: 0,
                    used: 0,
                },
            );
            self.used(*name);
            parent = Some(*name);
        }
        let first = held * usize::try_from(format.block_size.get()).unwrap_or(usize::MAX);
        let mut events = vec![(stored, ids[first.min(ids.len())..].to_vec())];
        events.extend(self.evict());
        events
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.leaves.clear();
    }

    /// `name` has one more child, so it is no leaf.
    fn adopt(&mut self, name: i64) {
        if let Some(page) = self.pages.get_mut(&name) {
            page.children += 1;
            self.leaves.remove(&page.used);
        }
    }

    fn used(&mut self, name: i64) {
        self.clock += 1;
        if let Some(page) = self.pages.get_mut(&name) {
            self.leaves.remove(&page.used);
            page.used = self.clock;
            if page.children == 0 {
                self.leaves.insert(page.used, name);
            }
        }
    }

    fn evict(&mut self) -> Option<(KvEvent, Vec<u32>)> {
        let mut hashes = Vec::new();
        while self.pages.len() as u64 > self.capacity {
            let (_, name) = self.leaves.pop_first()?;
            let page = self.pages.remove(&name)?;
            hashes.push(name);
            let Some(parent) = page.parent else {
                continue;
            };
            if let Some(above) = self.pages.get_mut(&parent) {
                above.children -= 1;
                if above.children == 0 {
                    self.leaves.insert(above.used, parent);
                }
            }
        }
        let medium = Medium::Known(Tier::Device);
        (!hashes.is_empty()).then(|| (KvEvent::Removed { hashes, medium }, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockUnit;

    fn insert(cache: &mut PageCache, names: &[i64]) -> Vec<KvEvent> {
        let format = BlockFormat::new(2, BlockUnit::Unigram).unwrap();
        let ids: Vec<u32> = (0..u32::try_from(names.len() * 2).unwrap()).collect();
        let events = cache.insert(names, format, &ids);
        events.into_iter().map(|(event, _)| event).collect()
    }

    fn stored(event: &KvEvent) -> (&[i64], Option<i64>) {
        match event {
            KvEvent::Stored { hashes, parent, .. } => (hashes, *parent),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_is_new_is_stored_and_it_hangs_on_what_is_there() {
        let mut cache = PageCache::new(10);
        assert_eq!(stored(&insert(&mut cache, &[1, 2])[0]), (&[1, 2][..], None));
        assert_eq!(
            stored(&insert(&mut cache, &[1, 2, 3])[0]),
            (&[3][..], Some(2))
        );
        assert!(insert(&mut cache, &[1, 2]).is_empty());
        assert_eq!(cache.touch(&[1, 2, 9]), 2);
    }

    #[test]
    fn the_least_recently_used_leaves_go_and_parents_only_after_their_children() {
        let mut cache = PageCache::new(6);
        insert(&mut cache, &[1, 2, 3]);
        insert(&mut cache, &[1, 4]);
        cache.touch(&[1, 2, 3]);
        let events = insert(&mut cache, &[7, 8, 9]);
        let KvEvent::Removed { hashes, .. } = &events[1] else {
            panic!("{events:?}");
        };
        assert_eq!(*hashes, [4]);
        assert_eq!(cache.len(), 6);
        let KvEvent::Removed { hashes, .. } = &insert(&mut cache, &[5, 6])[1] else {
            panic!("nothing was removed");
        };
        assert_eq!(
            *hashes,
            [3, 2],
            "a parent becomes a leaf with its last child"
        );
        cache.clear();
        assert_eq!((cache.len(), cache.touch(&[7])), (0, 0));
    }
}
