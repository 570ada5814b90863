//! Prompt to token ids without holding up the event loop.
//!
//! Short bodies are encoded inline; long ones on the runtime's blocking threads, at most one per
//! core at a time and with a bounded queue. When the queue is full the length is estimated and
//! counted. Nothing here can fail a request. Source: http-and-operations §9, field-lessons L71.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::server::metrics::Metrics;
use crate::server::prepare::{PromptFacts, count};
use crate::server::routing::ModelRouting;
use crate::tokenizer::{TokenSource, Tokenizer, estimate_tokens};

/// Bodies up to this size, bytes, are encoded on the calling thread: about a millisecond of work.
/// Chosen; the issue on prompt tokens measures it.
const INLINE_BYTES: usize = 4 * 1024;

/// Long prompts that may wait per running one before the estimate is taken. Chosen.
const QUEUE_PER_WORKER: usize = 32;

/// Bounds how much tokenizing happens at once.
#[derive(Debug)]
pub struct TokenizePool {
    running: Arc<Semaphore>,
    admitted: Arc<Semaphore>,
}

impl TokenizePool {
    /// A pool for a machine with `cores` cores.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        let cores = cores.max(1);
        Self {
            running: Arc::new(Semaphore::new(cores)),
            admitted: Arc::new(Semaphore::new(cores * QUEUE_PER_WORKER)),
        }
    }

    /// Length and ids of the prompt in `body`, or the estimate when they cannot be had.
    pub async fn prompt_facts(
        &self,
        model: &ModelRouting,
        body: &Bytes,
        metrics: &Metrics,
    ) -> PromptFacts {
        let Some(tokenizer) = &model.tokenizer else {
            return estimate(body);
        };
        let started = Instant::now();
        let encoded = if body.len() <= INLINE_BYTES {
            encode(tokenizer, body)
        } else {
            self.encode_aside(Arc::clone(tokenizer), body.clone()).await
        };
        metrics
            .tokenize_seconds
            .observe(started.elapsed().as_secs_f64());
        let facts = encoded.unwrap_or_else(|| estimate(body));
        if facts.source != TokenSource::Chat {
            metrics.tokenize_fell(&model.id);
        }
        facts
    }

    async fn encode_aside(&self, tokenizer: Arc<Tokenizer>, body: Bytes) -> Option<PromptFacts> {
        let _place = self.admitted.try_acquire().ok()?;
        let running = Arc::clone(&self.running).acquire_owned().await.ok()?;
        // The permit moves into the work: a client that leaves does not make room for more
        // threads than there are cores.
        let work = tokio::task::spawn_blocking(move || {
            let _running = running;
            encode(&tokenizer, &body)
        });
        work.await.ok().flatten()
    }
}

fn encode(tokenizer: &Tokenizer, body: &[u8]) -> Option<PromptFacts> {
    let prompt = tokenizer.encode_chat(body)?;
    Some(PromptFacts {
        input_tokens: count(&prompt.ids),
        source: prompt.source,
        token_ids: Some(prompt.ids),
    })
}

fn estimate(body: &[u8]) -> PromptFacts {
    PromptFacts {
        input_tokens: estimate_tokens(u64::try_from(body.len()).unwrap_or(u64::MAX)),
        source: TokenSource::Estimate,
        token_ids: None,
    }
}
