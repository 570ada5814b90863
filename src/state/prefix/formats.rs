//! How the engines of one namespace cut prompts into blocks: learned from what they announce.
//!
//! The first announcement sets the format. An engine that announces another one is refused: its
//! blocks could never be found, so they are kept out of the index while it still serves by load.
//! When no engine announces the format in force any more, the oldest other announcement takes its
//! place. Source: policy-semantics §17, field-lessons L17.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::kv::BlockFormat;

/// What became of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// The engine's events belong into the index.
    Accepted {
        /// The format in force was replaced: nothing that the index holds can be found any more.
        replaced: bool,
    },
    /// They do not: this format is in force.
    Refused(BlockFormat),
}

/// The announcements of one namespace.
#[derive(Debug, Default)]
pub struct Formats {
    current: ArcSwapOption<BlockFormat>,
    /// In the order of their first announcement.
    announced: Mutex<Vec<(Arc<str>, BlockFormat)>>,
}

impl Formats {
    /// The format in force; `None` until an engine has announced one.
    #[must_use]
    pub fn current(&self) -> Option<BlockFormat> {
        self.current.load().as_deref().copied()
    }

    /// `engine` cuts prompts like this. May be repeated, also to learn whether a refused engine is
    /// accepted by now.
    pub fn announce(&self, engine: &str, format: BlockFormat) -> Announced {
        let mut announced = self.announced.lock();
        match announced.iter_mut().find(|(known, _)| **known == *engine) {
            Some((_, known)) => *known = format,
            None => announced.push((engine.into(), format)),
        }
        let replaced = self.settle(&announced);
        match self.current() {
            Some(current) if current != format => Announced::Refused(current),
            _ => Announced::Accepted { replaced },
        }
    }

    /// `engine` has left or announces nothing any more. True if the format in force was replaced.
    pub fn withdraw(&self, engine: &str) -> bool {
        let mut announced = self.announced.lock();
        announced.retain(|(known, _)| **known != *engine);
        self.settle(&announced)
    }

    /// Keeps the format in force while somebody announces it; true if it was replaced by another.
    fn settle(&self, announced: &[(Arc<str>, BlockFormat)]) -> bool {
        let before = self.current();
        if announced.iter().any(|(_, format)| Some(*format) == before) {
            return false;
        }
        // With nobody left the format stays: the engines may come back as they were.
        let Some((_, format)) = announced.first() else {
            return false;
        };
        self.current.store(Some(Arc::new(*format)));
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockUnit;

    fn of(size: u32, unit: BlockUnit) -> BlockFormat {
        BlockFormat::new(size, unit).unwrap()
    }

    const OK: Announced = Announced::Accepted { replaced: false };

    #[test]
    fn the_first_format_wins_and_disagreement_is_refused() {
        let formats = Formats::default();
        assert_eq!(formats.current(), None);
        let (small, large) = (of(16, BlockUnit::Unigram), of(64, BlockUnit::Unigram));
        assert_eq!(formats.announce("a", small), OK);
        assert_eq!(formats.announce("b", large), Announced::Refused(small));
        assert_eq!(
            formats.announce("c", of(16, BlockUnit::Bigram)),
            Announced::Refused(small)
        );
        assert_eq!(formats.announce("d", small), OK);
        assert_eq!(formats.current(), Some(small));
    }

    #[test]
    fn when_all_engines_have_changed_the_new_format_is_taken() {
        let formats = Formats::default();
        let (small, large) = (of(16, BlockUnit::Unigram), of(64, BlockUnit::Unigram));
        formats.announce("a", small);
        formats.announce("b", small);
        assert_eq!(formats.announce("a", large), Announced::Refused(small));
        let replaced = formats.announce("b", large);
        assert_eq!(replaced, Announced::Accepted { replaced: true });
        assert_eq!(formats.announce("a", large), OK);
    }

    #[test]
    fn a_refused_engine_is_accepted_when_the_others_have_left() {
        let formats = Formats::default();
        let (small, large) = (of(16, BlockUnit::Unigram), of(64, BlockUnit::Unigram));
        formats.announce("a", small);
        formats.announce("b", large);
        assert!(formats.withdraw("a"));
        assert_eq!(formats.announce("b", large), OK);
        assert!(!formats.withdraw("b"));
        assert_eq!(formats.current(), Some(large));
    }
}
