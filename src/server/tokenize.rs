//! Prompt to token ids without holding up the event loop.
//!
//! Short bodies are encoded inline, as far as they prove short in work too; all others on
//! [`WorkPool`]. When its queue is full the length is estimated and counted. Where the count cannot
//! change anything ([`skip`]) there is none. Nothing here can fail a request.
//! Source: http-and-operations §9, field-lessons L71.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;

use crate::server::metrics::Metrics;
use crate::server::pool::{Cost, WorkPool};
use crate::server::routing::ModelRouting;
use crate::server::skip;
use crate::tokenizer::{
    Encoded, FallReason, Obstacle, TokenRange, TokenSource, Tokenizer, estimate_tokens,
};

/// Length and ids of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFacts {
    /// Prompt length, tokens, at least 1.
    pub input_tokens: u64,
    /// Where the length comes from.
    pub source: TokenSource,
    /// The token ids, unless the length is an estimate; see [`engine_ids`](Self::engine_ids).
    pub token_ids: Option<Vec<u32>>,
    /// Whether no count could change the decision; there is one all the same where
    /// [`Question::always`] asked for it.
    pub skipped: bool,
    /// The first reason against handing the ids to the engine in place of the messages.
    pub obstacle: Option<Obstacle>,
}

impl PromptFacts {
    /// The ids that the engine will compute: those of a rendered chat, or the caller's. Raw text has a
    /// length, but its ids are not the engine's.
    #[must_use]
    pub fn engine_ids(&self) -> Option<&[u32]> {
        let ids = self.token_ids.as_deref();
        ids.filter(|_| matches!(self.source, TokenSource::Chat | TokenSource::InputIds))
    }

    /// Of ids that the caller sent; not empty.
    #[must_use]
    pub fn of_caller(ids: Vec<u32>) -> Self {
        Self {
            input_tokens: count(&ids),
            source: TokenSource::InputIds,
            token_ids: Some(ids),
            skipped: false,
            obstacle: Some(Obstacle::CallerIds),
        }
    }

    /// Of a body without any.
    #[must_use]
    pub fn estimate(body: &[u8]) -> Self {
        Self {
            input_tokens: estimate_tokens(u64::try_from(body.len()).unwrap_or(u64::MAX)),
            source: TokenSource::Estimate,
            token_ids: None,
            skipped: false,
            obstacle: Some(Obstacle::NotRendered),
        }
    }

    /// Of a body whose count does not matter, but lies in `range`.
    fn skipped(body: &[u8], range: TokenRange) -> Self {
        let estimate = Self::estimate(body);
        Self {
            input_tokens: range.closest(estimate.input_tokens),
            skipped: true,
            ..estimate
        }
    }

    fn of_encoded(body: &[u8], encoded: Encoded) -> Self {
        match encoded {
            Encoded::Range(range) => Self::skipped(body, range),
            Encoded::Prompt(prompt) => Self {
                input_tokens: count(&prompt.ids),
                source: prompt.source,
                token_ids: Some(prompt.ids),
                skipped: false,
                obstacle: prompt.obstacle,
            },
        }
    }
}

/// Number of ids, tokens.
fn count(ids: &[u32]) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}

/// One prompt to be counted.
#[derive(Debug)]
pub struct Question<'a> {
    /// Its model.
    pub model: &'a Arc<ModelRouting>,
    /// The whole body, without `input_ids` of the caller's.
    pub body: &'a Bytes,
    /// Requested output, tokens; `None` when unknown.
    pub output_tokens: Option<u64>,
    /// Whether to count where no count can change the decision.
    pub always: bool,
}

impl Question<'_> {
    /// Whether counts in this range change nothing.
    fn indifferent(&self, range: TokenRange) -> bool {
        skip::decided(self.model, range, self.output_tokens)
    }
}

/// Length and ids of the prompt, or the estimate when they cannot be had or do not matter.
pub async fn prompt_facts(
    question: Question<'_>,
    pool: &WorkPool,
    metrics: &Arc<Metrics>,
) -> PromptFacts {
    let Question { model, body, .. } = question;
    let Some(tokenizer) = &model.tokenizer else {
        return PromptFacts::estimate(body);
    };
    let indifferent = question.indifferent(TokenRange::ANY);
    if indifferent && !question.always {
        metrics.tokenizing.skipped(&model.id);
        return PromptFacts::skipped(body, TokenRange::ANY);
    }
    let started = Instant::now();
    let skipped = AtomicBool::new(indifferent);
    let enough = |range| noted(&skipped, question.indifferent(range)) && !question.always;
    let (encoded, skipped) = match tokenizer.encode_briefly(body, enough) {
        Some(encoded) => (encoded.map_err(FallReason::label), skipped.into_inner()),
        None => encode_aside(tokenizer, &question, pool, metrics).await,
    };
    let mut facts = match encoded {
        Ok(encoded) => {
            if let Encoded::Prompt(prompt) = &encoded
                && let Some(reason) = prompt.fell
            {
                metrics.tokenizing.fell(&model.id, reason.label());
            }
            PromptFacts::of_encoded(body, encoded)
        }
        Err(reason) => {
            metrics.tokenizing.fell(&model.id, reason);
            PromptFacts::estimate(body)
        }
    };
    facts.skipped = skipped;
    if facts.skipped {
        metrics.tokenizing.skipped(&model.id);
    } else {
        let seconds = started.elapsed().as_secs_f64();
        metrics.tokenizing.seconds.observe(seconds);
    }
    facts
}

/// Keeps a verdict.
fn noted(note: &AtomicBool, verdict: bool) -> bool {
    note.fetch_or(verdict, Ordering::Relaxed) || verdict
}

async fn encode_aside(
    tokenizer: &Arc<Tokenizer>,
    question: &Question<'_>,
    pool: &WorkPool,
    metrics: &Arc<Metrics>,
) -> (Result<Encoded, &'static str>, bool) {
    let (model, body) = (Arc::clone(question.model), question.body.clone());
    let (tokenizer, output_tokens) = (Arc::clone(tokenizer), question.output_tokens);
    let (leaver, metrics) = (model.id.clone(), Arc::clone(metrics));
    let cost = Cost {
        bytes: tokenizer.work(body.len()),
    };
    let (always, indifferent) = (question.always, question.indifferent(TokenRange::ANY));
    let work = move || {
        let skipped = AtomicBool::new(indifferent);
        let decided = |range| skip::decided(&model, range, output_tokens);
        let enough = |range| noted(&skipped, decided(range)) && !always;
        let encoded = tokenizer.encode_unless(&body, enough);
        (encoded.map_err(FallReason::label), skipped.into_inner())
    };
    let gone = move || metrics.tokenizing.abandoned(&leaver);
    let done = pool.run(cost, work, gone).await;
    done.unwrap_or_else(|not_done| (Err(not_done.label()), indifferent))
}
