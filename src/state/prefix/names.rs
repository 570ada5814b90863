//! Names of blocks that were computed before: the prompts of one conversation begin alike.
//!
//! Prompts are cut into sections of some whole blocks. The names of a section follow from its ids and
//! the digest before it, and it is found again by these alone, compared in full. A section that is not
//! whole, at the end of a prompt, is computed every time.
//!
//! Source: engine-wire §1.8 for the names; that they are remembered is ours.

use std::sync::Arc;

use crate::kv::hash::{Chain, Digest32, compressions};
use crate::kv::{BlockFormat, block_count};
use crate::recent::Recent;

/// Bytes that one model's memory holds: about 100 conversations of 60,000 tokens in blocks of 16.
const BYTES: usize = 32 << 20;

/// Units of a section, at least. Chosen.
const SECTION: usize = 256;

/// Bytes of bookkeeping per section, about.
const ENTRY_BYTES: usize = 224;

/// Hash compressions that may run on the event loop: about 0.1 ms with SHA instructions. What a prompt
/// needs beyond is copied and hashed elsewhere.
const INLINE_COMPRESSIONS: usize = 2048;

/// One model's memory of names.
#[derive(Debug)]
pub struct BlockNames(Arc<Recent<Arc<Section>>>);

#[derive(Debug)]
struct Section {
    of: Key<Box<[u32]>>,
    names: Box<[i64]>,
    /// Of its last block.
    digest: Digest32,
}

/// What a section's names follow from.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key<I> {
    format: BlockFormat,
    prior: Option<Digest32>,
    ids: I,
}

/// A prompt on its way to its names.
#[derive(Debug)]
struct Naming {
    format: BlockFormat,
    chain: Chain,
    names: Vec<i64>,
}

// === impl BlockNames ===

impl Default for BlockNames {
    fn default() -> Self {
        Self(Arc::new(Recent::new(BYTES)))
    }
}

impl BlockNames {
    /// What [`block_hashes`](crate::kv::block_hashes) says; many new ones are computed off the event loop.
    pub async fn of(&self, ids: &[u32], format: BlockFormat, salt: Option<&str>) -> Vec<i64> {
        let mut naming = Naming {
            format,
            chain: Chain::new(salt),
            names: Vec::with_capacity(block_count(ids.len(), format)),
        };
        let Err(rest) = naming.advance(&self.0, ids, INLINE_COMPRESSIONS) else {
            return naming.names;
        };
        let (rest, recent) = (Vec::from(rest), Arc::clone(&self.0));
        let hashing = move || {
            let done = naming.advance(&recent, &rest, usize::MAX);
            done.map(|()| naming.names).unwrap_or_default()
        };
        // It fails only when the runtime shuts down.
        tokio::task::spawn_blocking(hashing)
            .await
            .unwrap_or_default()
    }
}

// === impl Naming ===

impl Naming {
    /// Names the blocks of `ids`.
    ///
    /// * `limit` — hash compressions that this may take.
    ///
    /// # Errors
    /// The ids that are left when it does not suffice.
    fn advance<'i>(
        &mut self,
        recent: &Recent<Arc<Section>>,
        mut ids: &'i [u32],
        mut limit: usize,
    ) -> Result<(), &'i [u32]> {
        let size = self.format.size();
        let step = SECTION.div_ceil(size).saturating_mul(size);
        let length = step.saturating_add(self.format.overlap());
        while let Some(section) = ids.get(..length) {
            let of = Key {
                format: self.format,
                prior: self.chain.prior(),
                ids: section,
            };
            let key = recent.key(&of);
            match recent.get(key).filter(|known| known.is(&of)) {
                Some(known) => {
                    self.names.extend_from_slice(&known.names);
                    self.chain.resume(known.digest);
                }
                None => {
                    let work = compressions(length, self.format);
                    limit = limit.checked_sub(work).ok_or(ids)?;
                    self.compute(recent, key, &of);
                }
            }
            ids = &ids[step..];
        }
        if compressions(ids.len(), self.format) > limit {
            return Err(ids);
        }
        self.chain.extend(ids, self.format, &mut self.names);
        Ok(())
    }

    fn compute(&mut self, recent: &Recent<Arc<Section>>, key: u64, of: &Key<&[u32]>) {
        let from = self.names.len();
        self.chain.extend(of.ids, self.format, &mut self.names);
        let Some(digest) = self.chain.prior() else {
            return;
        };
        let names = &self.names[from..];
        let bytes = size_of_val(of.ids) + size_of_val(names) + ENTRY_BYTES;
        let section = Section {
            of: Key {
                format: of.format,
                prior: of.prior,
                ids: of.ids.into(),
            },
            names: names.into(),
            digest,
        };
        recent.keep(key, Arc::new(section), bytes);
    }
}

// === impl Section ===

impl Section {
    fn is(&self, of: &Key<&[u32]>) -> bool {
        let Key { format, prior, ids } = &self.of;
        *format == of.format && *prior == of.prior && **ids == *of.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{BlockUnit, block_hashes};

    fn ids(seed: u32, count: u32) -> Vec<u32> {
        let mix = |at: u32| (at ^ seed).wrapping_mul(0x9E37_79B9) >> 12;
        (0..count).map(mix).collect()
    }

    /// Prompts that begin alike for a while, of every length around a section's, asked for again and
    /// again, in all formats and under salts.
    #[tokio::test]
    async fn names_are_those_computed_without_memory() {
        let memory = BlockNames::default();
        let mut prompts = Vec::new();
        for (seed, shared) in [(1, 0), (2, 100), (3, 256), (4, 257), (5, 700), (6, 5_000)] {
            for more in [0, 1, 255, 256, 257, 3_000] {
                let mut prompt = ids(0, shared);
                prompt.extend(ids(seed, more));
                prompts.push(prompt);
            }
        }
        for round in 0..3 {
            for (size, unit) in [
                (1, BlockUnit::Unigram),
                (1, BlockUnit::Bigram),
                (16, BlockUnit::Unigram),
                (16, BlockUnit::Bigram),
                (100, BlockUnit::Unigram),
                (300, BlockUnit::Bigram),
                (u32::MAX, BlockUnit::Unigram),
            ] {
                let format = BlockFormat::new(size, unit).unwrap();
                for (number, prompt) in prompts.iter().enumerate() {
                    let salt = [None, Some(""), Some("a"), Some("b")][(number + round) % 4];
                    let named = memory.of(prompt, format, salt).await;
                    assert_eq!(named, block_hashes(prompt, format, salt), "{size} {salt:?}");
                }
            }
        }
        assert!(memory.0.held() > 0);
    }

    #[test]
    fn what_was_named_before_needs_no_hashing() {
        let recent = Recent::new(BYTES);
        let (first, format) = (
            ids(1, 1024),
            BlockFormat::new(16, BlockUnit::Unigram).unwrap(),
        );
        let name = |ids: &[u32], limit| {
            let (chain, names) = (Chain::new(None), Vec::new());
            let mut naming = Naming {
                format,
                chain,
                names,
            };
            naming.advance(&recent, ids, limit).map_err(<[u32]>::len)
        };
        // A section is 16 blocks of 2 compressions.
        assert_eq!(name(&first, 95), Err(512));
        assert_eq!(name(&first, 64), Ok(()));
        assert_eq!(name(&first, 0), Ok(()));
        let mut second = first.clone();
        second.extend(ids(2, 40));
        assert_eq!(name(&second, 5), Err(40));
        assert_eq!(name(&second, 6), Ok(()));
    }
}
