//! Names of blocks: what engines publish for a page of tokens.
//!
//! `digest(page) = SHA-256(digest of the page before, tokens as 4 bytes little-endian)`, and the
//! published name is the first 8 digest bytes, big-endian, as a signed integer. The whole digest
//! goes on into the next page, so one name stands for the whole prefix up to it.
//!
//! Names of LoRA requests are mapped once more with an id that only the engine knows; nothing here
//! can predict them, and callers must not ask. Source: engine-wire §1.8.

use std::num::NonZeroU32;

use sha2::{Digest, Sha256};

/// A block's whole digest.
pub type Digest32 = [u8; 32];

/// What is counted and hashed in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockUnit {
    /// Single tokens.
    #[default]
    Unigram,
    /// Overlapping pairs of tokens (engines of the EAGLE family): n tokens are n - 1 units.
    Bigram,
}

/// How an engine cuts prompts into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    /// Units per block.
    pub block_size: NonZeroU32,
    /// What a unit is.
    pub unit: BlockUnit,
}

impl BlockFormat {
    /// Blocks of `block_size` units; `None` for a size of 0.
    #[must_use]
    pub fn new(block_size: u32, unit: BlockUnit) -> Option<Self> {
        let block_size = NonZeroU32::new(block_size)?;
        Some(Self { block_size, unit })
    }

    /// Units per block.
    #[must_use]
    pub fn size(self) -> usize {
        usize::try_from(self.block_size.get()).unwrap_or(usize::MAX)
    }

    /// Ids that the last unit of a block shares with the block behind it.
    #[must_use]
    pub fn overlap(self) -> usize {
        usize::from(self.unit == BlockUnit::Bigram)
    }
}

/// Number of blocks of a prompt of `tokens` tokens, a short last one included.
#[must_use]
pub fn block_count(tokens: usize, format: BlockFormat) -> usize {
    let units = tokens.saturating_sub(format.overlap());
    units.div_ceil(format.size())
}

/// The ids that fill whole blocks: engines store nothing else.
#[must_use]
pub fn whole_part(ids: &[u32], format: BlockFormat) -> &[u32] {
    let overlap = format.overlap();
    let blocks = ids.len().saturating_sub(overlap) / format.size();
    match blocks {
        0 => &[],
        _ => &ids[..blocks * format.size() + overlap],
    }
}

/// How often SHA-256 compresses 64 bytes for a prompt: what hashing it costs.
#[must_use]
pub fn compressions(tokens: usize, format: BlockFormat) -> usize {
    let width = match format.unit {
        BlockUnit::Unigram => 4,
        BlockUnit::Bigram => 8,
    };
    // The digest before, the units, and at least nine bytes of padding.
    let of_block = (32 + format.size().saturating_mul(width) + 9).div_ceil(64);
    block_count(tokens, format).saturating_mul(of_block)
}

/// The names of all blocks of a prompt, in prompt order, a short last one included (engines store
/// whole blocks only, so that one can never match).
///
/// * `salt`: the request's `cache_salt`; empty is none.
///
/// These are the names of the default event format. Engines that publish `format: dynamo` name the
/// blocks of salted requests otherwise and do not say so: such prompts are found nowhere, which is
/// a miss and never a wrong hit. Source: engine-wire §1.8.
///
/// About 5 ns a token at 64 tokens a block with SHA instructions (`benches/README.md`).
#[must_use]
pub fn block_hashes(ids: &[u32], format: BlockFormat, salt: Option<&str>) -> Vec<i64> {
    let mut names = Vec::with_capacity(block_count(ids.len(), format));
    Chain::new(salt).extend(ids, format, &mut names);
    names
}

/// A prompt's digests so far.
#[derive(Debug)]
pub struct Chain {
    prior: Option<Digest32>,
    /// Reused for every block: the prior digest, then the block's bytes.
    input: Vec<u8>,
}

// === impl Chain ===

impl Chain {
    /// Before the first block of a prompt with this `cache_salt`.
    #[must_use]
    pub fn new(salt: Option<&str>) -> Self {
        let prior = salt.filter(|salt| !salt.is_empty()).map(|salt| {
            let digest = Sha256::new_with_prefix(b"sglang-cache-salt-v1\0");
            digest.chain_update(salt).finalize().into()
        });
        let input = Vec::new();
        Self { prior, input }
    }

    /// What the next block's name depends on besides its ids.
    #[must_use]
    pub const fn prior(&self) -> Option<Digest32> {
        self.prior
    }

    /// Goes on behind the block of this digest.
    pub const fn resume(&mut self, digest: Digest32) {
        self.prior = Some(digest);
    }

    /// Appends the names of the blocks that `ids` are; see [`block_hashes`]. Blocks of pairs begin with
    /// the last id of the block before.
    pub fn extend(&mut self, ids: &[u32], format: BlockFormat, names: &mut Vec<i64>) {
        let size = format.size();
        match format.unit {
            BlockUnit::Unigram => {
                for block in ids.chunks(size) {
                    names.push(self.next(block.iter().copied()));
                }
            }
            BlockUnit::Bigram => {
                for start in (0..ids.len().saturating_sub(1)).step_by(size) {
                    let end = start.saturating_add(size).min(ids.len() - 1);
                    let pairs = (start..end).flat_map(|at| [ids[at], ids[at + 1]]);
                    names.push(self.next(pairs));
                }
            }
        }
    }

    fn next(&mut self, tokens: impl Iterator<Item = u32>) -> i64 {
        self.input.clear();
        if let Some(prior) = &self.prior {
            self.input.extend_from_slice(prior);
        }
        for token in tokens {
            self.input.extend_from_slice(&token.to_le_bytes());
        }
        let digest: Digest32 = Sha256::digest(&self.input).into();
        self.prior = Some(digest);
        name(&digest)
    }
}

fn name(digest: &Digest32) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

#[cfg(test)]
mod tests;
