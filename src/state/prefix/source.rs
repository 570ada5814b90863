//! Where prefix matches come from, and what they look like: one answer for a local index, a remote
//! one, and one made up for an explanation.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;

use super::index::EngineDepths;

/// A boxed future, so that [`CacheSource`] is object safe and a lookup may go over a network.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A prompt to be looked up.
#[derive(Debug, Clone, Copy)]
pub struct PrefixQuery<'a> {
    /// Token ids as the engine will see them.
    pub ids: &'a [u32],
    /// The request's `cache_salt`.
    pub salt: Option<&'a str>,
}

/// How a lookup ended. Source: policy-semantics §17.
#[derive(Debug, Clone)]
pub enum PrefixAnswer {
    /// Nothing was asked: no ids, no block size known yet, or no blocks.
    NoSignal,
    /// The index gave no answer; routed like a miss and counted apart from one.
    Unavailable(Unavailable),
    /// It answered, perhaps with nobody.
    Matches(PrefixMatches),
}

/// Why an index gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// Not within the deadline.
    Timeout,
    /// No connection.
    Unreachable,
    /// It, or this router's own limit on queries, has too much to do.
    Overloaded,
    /// The query is larger than it takes.
    TooLarge,
}

impl Unavailable {
    /// All of them, for registering counters.
    pub const ALL: [Self; 4] = [
        Self::Timeout,
        Self::Unreachable,
        Self::Overloaded,
        Self::TooLarge,
    ];

    /// Metric label, and the word in `explain`'s state file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Overloaded => "overloaded",
            Self::TooLarge => "too_large",
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The index refused the query itself: routing stops.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the prefix index rejected the query: {0}")]
pub struct LookupRejected(pub String);

/// Who holds the beginning of a prompt.
#[derive(Debug, Clone)]
pub struct PrefixMatches {
    query_blocks: u32,
    block_size: Option<u32>,
    depths: Depths,
}

#[derive(Debug, Clone)]
enum Depths {
    Local(EngineDepths),
    Named(HashMap<Arc<str>, u32>),
}

impl PrefixMatches {
    /// * `query_blocks`: blocks of the whole prompt, a last partial one included, at least 1.
    /// * `block_size`: tokens per block, where known.
    /// * `holders`: engine URL and blocks from the start; the largest counts where a URL repeats
    ///   (ranks), never more than `query_blocks`.
    #[must_use]
    pub fn new(
        query_blocks: u32,
        block_size: Option<u32>,
        holders: impl IntoIterator<Item = (Arc<str>, u32)>,
    ) -> Self {
        let mut depths = HashMap::new();
        for (engine, blocks) in holders {
            let depth = depths.entry(engine).or_insert(0);
            *depth = blocks.max(*depth);
        }
        Self {
            query_blocks,
            block_size,
            depths: Depths::Named(depths),
        }
    }

    /// The same from the local index.
    #[must_use]
    pub const fn local(query_blocks: u32, block_size: u32, depths: EngineDepths) -> Self {
        Self {
            query_blocks,
            block_size: Some(block_size),
            depths: Depths::Local(depths),
        }
    }

    /// Blocks of the whole prompt.
    #[must_use]
    pub const fn query_blocks(&self) -> u32 {
        self.query_blocks
    }

    /// Blocks that the engine at `url` holds; URLs are compared byte for byte.
    #[must_use]
    pub fn blocks(&self, url: &str) -> u32 {
        let blocks = match &self.depths {
            Depths::Local(depths) => depths.blocks(url),
            Depths::Named(depths) => depths.get(url).copied().unwrap_or(0),
        };
        blocks.min(self.query_blocks)
    }

    /// Tokens that the engine at `url` should report as cached of a prompt of `tokens` tokens: whole
    /// blocks, and never the last token, which is always computed. `None` where the block size is
    /// not known.
    #[must_use]
    pub fn cached_tokens(&self, url: &str, tokens: usize) -> Option<u64> {
        let size = u64::from(self.block_size?);
        let most = (tokens as u64).saturating_sub(1) / size;
        Some(u64::from(self.blocks(url)).min(most) * size)
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.depths {
            Depths::Local(depths) => depths.is_empty(),
            Depths::Named(depths) => depths.is_empty(),
        }
    }
}

/// Something that knows prefixes. One object per namespace; its identity is the memo's key.
pub trait CacheSource: Send + Sync + fmt::Debug {
    /// Looks one prompt up.
    ///
    /// # Errors
    /// [`LookupRejected`] for a query that the index calls wrong. An index that cannot answer is
    /// not an error ([`PrefixAnswer::Unavailable`]).
    fn lookup<'a>(
        &'a self,
        query: PrefixQuery<'a>,
    ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>>;
}
