//! One request's lookups: at most one per source, shared by bucket attempts and concurrent picks.
//!
//! Misses and unavailable indexes are remembered like hits; a rejected query is not, and neither is
//! a lookup whose caller went away. A memo holds answers only: whoever uses one filters its own
//! candidates, captures its own loads and asks its own admission. Source: design §5,
//! policy-semantics §17.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::source::{CacheSource, LookupRejected, PrefixAnswer, PrefixQuery};

type Cell = Arc<OnceCell<Arc<PrefixAnswer>>>;

/// The lookups of one request.
#[derive(Debug, Default)]
pub struct PrefixMemo<'a> {
    query: Option<PrefixQuery<'a>>,
    entries: Mutex<Vec<(Arc<dyn CacheSource>, Cell)>>,
}

impl<'a> PrefixMemo<'a> {
    /// A memo that knows of no prompt and asks nobody.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            query: None,
            entries: Mutex::new(Vec::new()),
        }
    }

    /// A memo of one prompt; `None` when no ids are known that equal the engine's.
    #[must_use]
    pub fn new(query: Option<PrefixQuery<'a>>) -> Self {
        Self {
            query,
            entries: Mutex::default(),
        }
    }

    /// What `source` knows of the prompt, asked at most once.
    ///
    /// # Errors
    /// [`LookupRejected`]; the next caller asks again.
    pub async fn lookup(
        &self,
        source: &Arc<dyn CacheSource>,
    ) -> Result<Arc<PrefixAnswer>, LookupRejected> {
        let Some(query) = self.query.filter(|query| !query.ids.is_empty()) else {
            return Ok(Arc::new(PrefixAnswer::NoSignal));
        };
        let cell = self.cell(source);
        let ask = || async { source.lookup(query).await.map(Arc::new) };
        cell.get_or_try_init(ask).await.map(Arc::clone)
    }

    /// The matches that some source has answered with, without asking any.
    #[must_use]
    pub fn known(&self) -> Option<Arc<PrefixAnswer>> {
        let entries = self.entries.lock();
        let answers = entries.iter().filter_map(|(_, cell)| cell.get());
        let is_match = |answer: &&Arc<PrefixAnswer>| matches!(***answer, PrefixAnswer::Matches(_));
        answers.rev().find(is_match).cloned()
    }

    /// Tokens that the engine at `url` should have cached, as far as a lookup has told.
    #[must_use]
    pub fn predicted_tokens(&self, url: &str) -> Option<u64> {
        match self.known().as_deref() {
            Some(PrefixAnswer::Matches(matches)) => {
                matches.cached_tokens(url, self.query?.ids.len())
            }
            Some(PrefixAnswer::NoSignal | PrefixAnswer::Unavailable(_)) | None => None,
        }
    }

    fn cell(&self, source: &Arc<dyn CacheSource>) -> Cell {
        let mut entries = self.entries.lock();
        if let Some((_, cell)) = entries.iter().find(|(known, _)| Arc::ptr_eq(known, source)) {
            return Arc::clone(cell);
        }
        let cell = Cell::default();
        entries.push((Arc::clone(source), Arc::clone(&cell)));
        cell
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::state::prefix::{BoxFuture, PrefixMatches, Unavailable};

    #[derive(Debug)]
    struct Scripted {
        asked: AtomicUsize,
        answers: Vec<Result<PrefixAnswer, LookupRejected>>,
    }

    impl Scripted {
        fn shared(answers: Vec<Result<PrefixAnswer, LookupRejected>>) -> Arc<Self> {
            Arc::new(Self {
                asked: AtomicUsize::new(0),
                answers,
            })
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    impl CacheSource for Scripted {
        fn lookup<'a>(
            &'a self,
            _query: PrefixQuery<'a>,
        ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>> {
            let at = self.asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                tokio::task::yield_now().await;
                self.answers[at].clone()
            })
        }
    }

    fn memo(ids: &[u32]) -> PrefixMemo<'_> {
        PrefixMemo::new(Some(PrefixQuery { ids, salt: None }))
    }

    #[tokio::test]
    async fn concurrent_and_later_picks_share_one_query_per_source() {
        let miss = PrefixAnswer::Matches(PrefixMatches::new(1, None, []));
        let down = PrefixAnswer::Unavailable(Unavailable::Timeout);
        for answer in [miss, down, PrefixAnswer::NoSignal] {
            let scripted = Scripted::shared(vec![Ok(answer.clone())]);
            let source: Arc<dyn CacheSource> = scripted.clone();
            let memo = memo(&[1]);
            let (one, two) = tokio::join!(memo.lookup(&source), memo.lookup(&source));
            let three = memo.lookup(&source).await;
            for got in [one, two, three] {
                assert_eq!(format!("{:?}", got.unwrap()), format!("{answer:?}"));
            }
            assert_eq!(scripted.asked(), 1, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn an_error_is_not_remembered() {
        let rejected = LookupRejected("no".to_owned());
        let scripted = Scripted::shared(vec![Err(rejected.clone()), Ok(PrefixAnswer::NoSignal)]);
        let source: Arc<dyn CacheSource> = scripted.clone();
        let memo = memo(&[1]);
        assert_eq!(memo.lookup(&source).await.unwrap_err(), rejected);
        assert!(memo.lookup(&source).await.is_ok());
        assert_eq!(scripted.asked(), 2);
    }

    #[tokio::test]
    async fn sources_are_told_apart_by_identity_and_a_new_request_starts_empty() {
        let answers = || vec![Ok(PrefixAnswer::NoSignal); 2];
        let scripted = [Scripted::shared(answers()), Scripted::shared(answers())];
        for _ in 0..2 {
            let memo = memo(&[1]);
            for source in &scripted {
                let source: Arc<dyn CacheSource> = source.clone();
                memo.lookup(&source).await.unwrap();
            }
        }
        assert_eq!(scripted.map(|source| source.asked()), [2, 2]);
    }

    #[tokio::test]
    async fn without_ids_nobody_is_asked() {
        let scripted = Scripted::shared(Vec::new());
        let source: Arc<dyn CacheSource> = scripted.clone();
        for memo in [PrefixMemo::default(), memo(&[])] {
            let answer = memo.lookup(&source).await.unwrap();
            assert!(matches!(*answer, PrefixAnswer::NoSignal));
        }
        assert_eq!(scripted.asked(), 0);
    }

    #[test]
    fn repeated_urls_merge_by_maximum_and_depth_ends_at_the_query() {
        let holders = [("a", 3), ("a", 9), ("a", 1), ("b", 2)].map(|(url, n)| (url.into(), n));
        let matches = PrefixMatches::new(8, Some(16), holders);
        assert_eq!(
            (
                matches.blocks("a"),
                matches.blocks("b"),
                matches.blocks("b/")
            ),
            (8, 2, 0)
        );
        assert_eq!(matches.cached_tokens("b", 128), Some(32));
        assert_eq!(
            matches.cached_tokens("a", 128),
            Some(112),
            "the last token is computed"
        );
    }
}
