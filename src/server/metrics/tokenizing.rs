//! Series about prompts and their ids.

use prometheus::{Histogram, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::registrar::Registrar;
use crate::ids::ModelId;
use crate::series::Counters;
use crate::tokenizer::{Backend, TokenSource, Tokenizer};

/// Counted while requests are prepared.
#[derive(Debug)]
pub struct TokenizeMetrics {
    /// Time to encode one prompt, seconds, waiting included.
    pub seconds: Histogram,
    errors: Counters,
    fallbacks: Counters,
    skipped: Counters,
    abandoned: Counters,
    forwarding: Counters,
}

impl TokenizeMetrics {
    pub(super) fn new(new: &Registrar) -> Self {
        Self {
            seconds: new.histogram("tokenize_seconds", "encoding one prompt"),
            errors: new.counter(
                "ingress_tokenize_errors_total",
                "chats that fell down the tokenizing ladder",
                &["model_id"],
            ),
            fallbacks: new.counter(
                "tokenize_fallbacks_total",
                "chats that fell down the tokenizing ladder, by the first reason",
                &["model_id", "reason"],
            ),
            skipped: new.counter(
                "tokenize_skipped_total",
                "chats not tokenized because no count could change the decision",
                &["model_id"],
            ),
            abandoned: new.counter(
                "tokenize_abandoned_total",
                "chats whose client left before a thread was free to tokenize them",
                &["model_id"],
            ),
            forwarding: new.counter(
                "input_ids_forwarding_total",
                "chats by whether their ids went to the engine, or the first reason against",
                &["model_id", "outcome", "tokenized"],
            ),
        }
    }

    /// A chat was not encoded by its template, for this reason.
    pub fn fell(&self, model: &ModelId, reason: &'static str) {
        let model = model.as_str();
        self.errors.inc(&[model]);
        self.fallbacks.inc(&[model, reason]);
    }

    /// A chat needed no count.
    pub fn skipped(&self, model: &ModelId) {
        self.skipped.inc(&[model.as_str()]);
    }

    /// A chat's client left before it was encoded.
    pub fn abandoned(&self, model: &ModelId) {
        self.abandoned.inc(&[model.as_str()]);
    }

    /// A chat of a model with `forward_input_ids`.
    pub fn forwarding(&self, model: &ModelId, outcome: &'static str, source: TokenSource) {
        let labels = [model.as_str(), outcome, source.label()];
        self.forwarding.inc(&labels);
    }
}

/// Series of the tokenizers that are loaded now.
#[must_use]
pub fn of_tokenizers<'t>(
    tokenizers: impl Iterator<Item = (&'t ModelId, &'t Tokenizer)>,
) -> Registry {
    let registry = super::gauges::registry();
    let counter = |name: &str, help: &str| {
        let labels = ["model_id", "result"];
        let counter = IntCounterVec::new(Opts::new(name, help), &labels);
        registered(&registry, counter.expect("names and labels are valid"))
    };
    let gauge = |name: &str, help: &str, labels: &[&str]| {
        let gauge = IntGaugeVec::new(Opts::new(name, help), labels);
        registered(&registry, gauge.expect("names and labels are valid"))
    };
    let pieces = counter(
        "tokenizer_cache_pieces_total",
        "texts between special tokens, remembered or encoded",
    );
    let bytes = counter(
        "tokenizer_cache_bytes_total",
        "bytes of such texts, remembered or encoded",
    );
    let held = gauge(
        "tokenizer_cache_held_bytes",
        "bytes of remembered texts and ids",
        &["model_id"],
    );
    let backend = gauge(
        "tokenizer_backend",
        "1 for the library that encodes",
        &["model_id", "backend"],
    );
    for (model, tokenizer) in tokenizers {
        let model = model.as_str();
        let stats = tokenizer.cache_stats();
        let results = [
            ("hit", stats.hits, stats.hit_bytes),
            ("miss", stats.misses, stats.miss_bytes),
        ];
        for (result, count, size) in results {
            let labels = [model, result];
            pieces.with_label_values(&labels).inc_by(count);
            bytes.with_label_values(&labels).inc_by(size);
        }
        let size = i64::try_from(stats.held_bytes).unwrap_or(i64::MAX);
        held.with_label_values(&[model]).set(size);
        let used = tokenizer.backend().label();
        for label in Backend::LABELS {
            let labels = [model, label];
            backend
                .with_label_values(&labels)
                .set(i64::from(label == used));
        }
    }
    registry
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    series: C,
) -> C {
    let added = registry.register(Box::new(series.clone()));
    added.expect("every name is registered once");
    series
}
