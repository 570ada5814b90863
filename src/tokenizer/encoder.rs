//! Text to ids and back: a fast library where it is exact, the Hugging Face crate everywhere else.
//!
//! The Hugging Face crate defines what is right. It stays loaded, decodes, and takes every tokenizer
//! that the fast library cannot. [`pieces`](super::pieces) spare both what they did before.
//!
//! **Proofs are not waited for.** Loading and proving the fast library takes seconds, and until that is
//! done the Hugging Face crate encodes. Nobody sees the change but by the clock: the ids are the same by
//! what is proved.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use parking_lot::Mutex;

use super::fast::{Fast, Unfit};
use super::length::TokenRange;
use super::outcome::FallReason;
use super::pieces::{CacheStats, Pieces};
use super::probe;

/// Which library encodes for a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The fast one, proved equal at load.
    Fast,
    /// The Hugging Face crate, because of this.
    Plain(Unfit),
}

impl Backend {
    /// The labels that there are.
    pub const LABELS: [&str; 2] = ["fastokens", "tokenizers"];

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fast => Self::LABELS[0],
            Self::Plain(_) => Self::LABELS[1],
        }
    }
}

/// What was proved about a tokenizer.
struct Proved {
    fast: Result<Fast, Unfit>,
    pieces: Option<Pieces>,
}

type Verdict = OnceLock<Proved>;

/// One proof at a time: a machine with few cores is to serve meanwhile, whatever the number of its
/// tokenizers.
static PROVING: Mutex<()> = Mutex::new(());

/// One tokenizer's encoder and decoder.
pub(super) struct Encoder {
    plain: Arc<tokenizers::Tokenizer>,
    verdict: Arc<Verdict>,
}

// === impl Encoder ===

impl Encoder {
    /// * `json` — the text of the `tokenizer.json` that `plain` was made from.
    pub(super) fn new(json: String, plain: tokenizers::Tokenizer) -> Self {
        let (plain, verdict) = (Arc::new(plain), Arc::new(Verdict::new()));
        let (reference, awaited) = (Arc::clone(&plain), Arc::downgrade(&verdict));
        let prover = thread::Builder::new().name("prove-tokenizer".to_owned());
        let started = prover.spawn(move || reach_verdict(json, &reference, &awaited));
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to prove the fast tokenizer library on");
            verdict.get_or_init(|| Proved::nothing(Unfit::Unproved));
        }
        Self { plain, verdict }
    }

    /// Waits until it is decided which library encodes: seconds at most.
    pub(super) fn settle(&self) {
        self.verdict.wait();
    }

    pub(super) fn backend(&self) -> Backend {
        let verdict = self.verdict.get();
        match verdict.map(|proved| proved.fast.as_ref()) {
            Some(Ok(fast)) if fast.retired() => Backend::Plain(Unfit::Panicked),
            Some(Ok(_)) => Backend::Fast,
            Some(Err(reason)) => Backend::Plain(*reason),
            None => Backend::Plain(Unfit::Unproved),
        }
    }

    pub(super) fn cache_stats(&self) -> CacheStats {
        let pieces = self.verdict.get().and_then(|proved| proved.pieces.as_ref());
        pieces.map(Pieces::stats).unwrap_or_default()
    }

    /// How many tokens a text of `bytes` bytes can have, without special tokens at its ends.
    pub(super) fn tokens_in(&self, bytes: usize) -> TokenRange {
        let fast = self
            .verdict
            .get()
            .and_then(|proved| proved.fast.as_ref().ok());
        fast.map_or(TokenRange::ANY, |fast| fast.tokens_in(bytes))
    }

    pub(super) fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, FallReason> {
        let ids = match self.verdict.get() {
            Some(proved) => proved.encode(&self.plain, text, add_special_tokens),
            None => plainly(&self.plain, text, add_special_tokens),
        };
        ids.ok_or(FallReason::Encode)
    }

    pub(super) fn decode(
        &self,
        ids: &[u32],
        skip_special_tokens: bool,
    ) -> Result<String, FallReason> {
        self.plain
            .decode(ids, skip_special_tokens)
            .map_err(|_| FallReason::Encode)
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.plain.token_to_id(token)
    }
}

// === impl Proved ===

impl Proved {
    const fn nothing(unfit: Unfit) -> Self {
        Self {
            fast: Err(unfit),
            pieces: None,
        }
    }

    /// Tries both the fast library and pieces on every probe text.
    fn about(json: String, plain: &tokenizers::Tokenizer, wanted: &dyn Fn() -> bool) -> Self {
        let mut proved = Self {
            fast: Fast::try_new(json, plain, wanted),
            pieces: Pieces::of(plain),
        };
        let differs = |text: &String| {
            let right = plainly(plain, text, false);
            // Twice, so that answers from memory are compared as well.
            let equal = || proved.encode(plain, text, false) == right;
            !(wanted() && equal() && equal())
        };
        if proved.pieces.is_some() && probe::texts(plain).iter().any(differs) {
            proved.pieces = None;
        }
        proved.pieces.iter_mut().for_each(Pieces::clear);
        proved
    }

    fn encode(
        &self,
        plain: &tokenizers::Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Option<Vec<u32>> {
        let whole = |text: &str| {
            let fast = self.fast.as_ref().ok();
            let ids = fast.and_then(|fast| fast.encode(text, add_special_tokens));
            ids.or_else(|| plainly(plain, text, add_special_tokens))
        };
        match &self.pieces {
            Some(pieces) if !add_special_tokens => pieces.encode(text, whole),
            Some(_) | None => whole(text),
        }
    }
}

/// What the Hugging Face crate says.
fn plainly(
    plain: &tokenizers::Tokenizer,
    text: &str,
    add_special_tokens: bool,
) -> Option<Vec<u32>> {
    let encoding = plain.encode_fast(text, add_special_tokens).ok()?;
    Some(encoding.get_ids().to_vec())
}

/// Decides which library encodes, unless nobody wants to know any more.
fn reach_verdict(json: String, plain: &tokenizers::Tokenizer, verdict: &Weak<Verdict>) {
    let _turn = PROVING.lock();
    let wanted = || verdict.strong_count() > 0;
    let proof = || Proved::about(json, plain, &wanted);
    // The Hugging Face crate may panic as well.
    let proved = catch_unwind(AssertUnwindSafe(proof));
    let proved = proved.unwrap_or_else(|_| Proved::nothing(Unfit::Panicked));
    let Some(verdict) = verdict.upgrade() else {
        return;
    };
    let unfit = proved.fast.as_ref().err().map(|unfit| unfit.label());
    let remembers = proved.pieces.is_some();
    tracing::info!(fast = unfit.is_none(), unfit, remembers, "tokenizer proved");
    verdict.get_or_init(|| proved);
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::fast::tests::bytes_and_one_pair;

    fn encoder(json: &str) -> Encoder {
        let plain = tokenizers::Tokenizer::from_bytes(json).expect("loads");
        Encoder::new(json.to_owned(), plain)
    }

    #[test]
    fn nobody_waits_for_the_proof_and_the_ids_do_not_depend_on_it() {
        let turn = PROVING.lock();
        let encoder = encoder(&bytes_and_one_pair());
        assert_eq!(encoder.backend(), Backend::Plain(Unfit::Unproved));
        let ids = |text| encoder.encode(text, false).map_err(FallReason::label);
        let before = [ids("this"), ids("<|x|> th")];
        drop(turn);
        encoder.settle();
        assert_eq!(encoder.backend(), Backend::Fast);
        assert_eq!([ids("this"), ids("<|x|> th")], before);
    }

    #[test]
    fn a_proof_that_nobody_waits_for_ends() {
        let turn = PROVING.lock();
        let encoder = encoder(&bytes_and_one_pair());
        let plain = Arc::downgrade(&encoder.plain);
        drop(encoder);
        drop(turn);
        while plain.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
