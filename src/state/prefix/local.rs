//! The index that engines' events fill, as a source of prefix matches.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::formats::{Announced, Formats};
use super::index::{Applied, IndexSize, PrefixIndex};
use super::names::BlockNames;
use super::source::{
    BoxFuture, CacheSource, LookupRejected, PrefixAnswer, PrefixMatches, PrefixQuery,
};
use crate::ids::ModelId;
use crate::kv::hash::whole_part;
use crate::kv::{BlockFormat, KvEvent, block_count};

/// The local indexes of one process by model; they survive a reload.
#[derive(Debug, Default)]
pub struct PrefixIndexes {
    models: ArcSwap<HashMap<ModelId, Arc<LocalPrefixes>>>,
}

impl PrefixIndexes {
    /// The index of `model`, made at its first use.
    #[must_use]
    pub fn of(&self, model: &ModelId) -> Arc<LocalPrefixes> {
        if let Some(known) = self.models.load().get(model) {
            return Arc::clone(known);
        }
        let fresh = Arc::<LocalPrefixes>::default();
        self.models.rcu(|models| {
            let mut models = HashMap::clone(models);
            models
                .entry(model.clone())
                .or_insert_with(|| Arc::clone(&fresh));
            models
        });
        Arc::clone(self.models.load().get(model).unwrap_or(&fresh))
    }

    /// Drops the indexes of models for which `keep` says no.
    pub fn retain(&self, keep: impl Fn(&ModelId) -> bool) {
        if self.models.load().keys().all(&keep) {
            return;
        }
        self.models.rcu(|models| {
            let mut models = HashMap::clone(models);
            models.retain(|model, _| keep(model));
            models
        });
    }

    /// All of them as they are now.
    #[must_use]
    pub fn all(&self) -> Arc<HashMap<ModelId, Arc<LocalPrefixes>>> {
        self.models.load_full()
    }
}

/// One model's index and block format.
#[derive(Debug, Default)]
pub struct LocalPrefixes {
    index: PrefixIndex,
    formats: Formats,
    names: BlockNames,
}

impl LocalPrefixes {
    /// Learns how `engine` cuts blocks; see [`Formats::announce`].
    pub fn announce(&self, engine: &str, format: BlockFormat) -> Announced {
        let announced = self.formats.announce(engine, format);
        if announced == (Announced::Accepted { replaced: true }) {
            self.index.clear_all();
        }
        announced
    }

    /// Forgets an engine, its blocks at once.
    pub fn remove_engine(&self, engine: &str) {
        self.index.remove_engine(engine);
        if self.formats.withdraw(engine) {
            self.index.clear_all();
        }
    }

    /// Applies the events of one rank; nothing before the engine's format is in force.
    pub fn apply(&self, engine: &str, rank: u32, events: &[KvEvent]) -> Applied {
        match self.formats.current() {
            Some(format) => self
                .index
                .apply(engine, rank, format.block_size.get(), events),
            None => Applied::default(),
        }
    }

    /// Forgets what one rank holds, at once.
    pub fn clear(&self, engine: &str, rank: u32) {
        self.index.clear(engine, rank);
    }

    /// See [`PrefixIndex::sweep`].
    pub fn sweep(&self, positions: usize) -> bool {
        self.index.sweep(positions)
    }

    /// Blocks that one rank holds.
    #[must_use]
    pub fn blocks_of(&self, engine: &str, rank: u32) -> u64 {
        self.index.blocks_of(engine, rank)
    }

    /// What the index holds.
    #[must_use]
    pub fn size(&self) -> IndexSize {
        self.index.size()
    }

    /// The block format in force.
    #[must_use]
    pub fn format(&self) -> Option<BlockFormat> {
        self.formats.current()
    }

    /// The names of a prompt's blocks; see [`BlockNames::of`].
    pub async fn names(&self, ids: &[u32], format: BlockFormat, salt: Option<&str>) -> Vec<i64> {
        self.names.of(ids, format, salt).await
    }

    async fn matches(&self, query: PrefixQuery<'_>) -> PrefixAnswer {
        let tokens = query.ids.len();
        let format = match self.formats.current() {
            Some(format) if block_count(tokens, format) > 0 => format,
            _ => return PrefixAnswer::NoSignal,
        };
        // A last partial block is never held.
        let whole = whole_part(query.ids, format);
        let names = self.names.of(whole, format, query.salt).await;
        let blocks = u32::try_from(block_count(tokens, format)).unwrap_or(u32::MAX);
        let depths = self.index.lookup(&names).by_engine();
        PrefixAnswer::Matches(PrefixMatches::local(
            blocks,
            format.block_size.get(),
            depths,
        ))
    }
}

impl CacheSource for LocalPrefixes {
    fn lookup<'a>(
        &'a self,
        query: PrefixQuery<'a>,
    ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>> {
        Box::pin(async move { Ok(self.matches(query).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{BlockUnit, Medium, Tier, block_hashes};

    fn holding(ids: &[u32], format: BlockFormat, salt: Option<&str>) -> LocalPrefixes {
        let local = LocalPrefixes::default();
        local.announce("http://a:1", format);
        let stored = KvEvent::Stored {
            hashes: block_hashes(whole_part(ids, format), format, salt),
            parent: None,
            block_size: format.block_size.get(),
            medium: Medium::Known(Tier::Device),
        };
        local.apply("http://a:1", 0, &[stored]);
        local
    }

    async fn found(
        local: &LocalPrefixes,
        ids: &[u32],
        salt: Option<&str>,
    ) -> Option<PrefixMatches> {
        match local.lookup(PrefixQuery { ids, salt }).await.unwrap() {
            PrefixAnswer::Matches(matches) => Some(matches),
            PrefixAnswer::NoSignal => None,
            PrefixAnswer::Unavailable(why) => panic!("{why}"),
        }
    }

    #[tokio::test]
    async fn before_any_engine_has_announced_its_blocks_there_is_no_signal() {
        let local = LocalPrefixes::default();
        assert!(found(&local, &[1, 2, 3], None).await.is_none());
        local.announce(
            "http://a:1",
            BlockFormat::new(2, BlockUnit::Bigram).unwrap(),
        );
        assert!(
            found(&local, &[1], None).await.is_none(),
            "no pair, no block"
        );
        let nobody = found(&local, &[1, 2, 3], None).await.unwrap();
        assert!(nobody.is_empty() && nobody.query_blocks() == 1);
    }

    /// Long enough to be hashed elsewhere, and short enough not to be; with a partial last block.
    #[tokio::test]
    async fn prompts_of_any_length_are_found_with_their_salt_and_unit() {
        for (tokens, size, unit) in [
            (100_u32, 16, BlockUnit::Unigram),
            (100, 16, BlockUnit::Bigram),
            (5000, 1, BlockUnit::Unigram),
            (30_001, 4, BlockUnit::Bigram),
        ] {
            let ids: Vec<u32> = (0..tokens).collect();
            let format = BlockFormat::new(size, unit).unwrap();
            let local = holding(&ids, format, Some("tenant"));
            let matches = found(&local, &ids, Some("tenant")).await.unwrap();
            let units = tokens - u32::from(unit == BlockUnit::Bigram);
            assert_eq!(matches.query_blocks(), units.div_ceil(size));
            assert_eq!(matches.blocks("http://a:1"), units / size);
            let other = found(&local, &ids, None).await.unwrap();
            assert!(other.is_empty(), "another salt is another prefix");
        }
    }

    #[tokio::test]
    async fn when_the_format_is_replaced_the_old_blocks_are_gone() {
        let ids: Vec<u32> = (0..64).collect();
        let small = BlockFormat::new(16, BlockUnit::Unigram).unwrap();
        let large = BlockFormat::new(32, BlockUnit::Unigram).unwrap();
        let local = holding(&ids, small, None);
        assert_eq!(
            local.announce("http://b:1", large),
            Announced::Refused(small)
        );
        local.remove_engine("http://a:1");
        let accepted = Announced::Accepted { replaced: false };
        assert_eq!(local.announce("http://b:1", large), accepted);
        assert_eq!((local.size().holdings, local.format()), (0, Some(large)));
    }
}
