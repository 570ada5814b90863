//! Prefix matches made up for an explanation: what an index would say of one prompt.

use std::sync::{Arc, OnceLock};

use super::source::{
    BoxFuture, CacheSource, LookupRejected, PrefixAnswer, PrefixMatches, PrefixQuery, Unavailable,
};

/// What is assumed of the index.
#[derive(Debug, Clone, Default)]
pub struct Assumption {
    /// Tokens per block; `None` means that the index has learned none yet.
    pub block_size: Option<u32>,
    /// Engine and the blocks it holds from the start of the prompt.
    pub holders: Vec<(Arc<str>, u32)>,
    /// The lookup fails like this instead; `Err` is a rejected query.
    pub failure: Option<Result<Unavailable, LookupRejected>>,
}

/// A source that answers every lookup as assumed; without an assumption it has no signal.
#[derive(Debug, Default)]
pub struct AssumedPrefixes(OnceLock<Assumption>);

impl AssumedPrefixes {
    /// Sets the assumption; only the first one counts.
    pub fn assume(&self, assumption: Assumption) {
        // One explanation sets it once.
        let _ = self.0.set(assumption);
    }

    fn answer(&self, query: PrefixQuery<'_>) -> Result<PrefixAnswer, LookupRejected> {
        let Some(assumed) = self.0.get() else {
            return Ok(PrefixAnswer::NoSignal);
        };
        match &assumed.failure {
            Some(Ok(why)) => return Ok(PrefixAnswer::Unavailable(*why)),
            Some(Err(rejected)) => return Err(rejected.clone()),
            None => {}
        }
        let Some(size) = assumed.block_size.filter(|size| *size > 0) else {
            return Ok(PrefixAnswer::NoSignal);
        };
        let tokens = u32::try_from(query.ids.len()).unwrap_or(u32::MAX);
        let holders = assumed.holders.iter().filter(|(_, blocks)| *blocks > 0);
        let matches = PrefixMatches::new(tokens.div_ceil(size), Some(size), holders.cloned());
        Ok(PrefixAnswer::Matches(matches))
    }
}

impl CacheSource for AssumedPrefixes {
    fn lookup<'a>(
        &'a self,
        query: PrefixQuery<'a>,
    ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>> {
        Box::pin(std::future::ready(self.answer(query)))
    }
}
