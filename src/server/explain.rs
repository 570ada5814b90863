//! Why this engine? The whole decision for one request, dispatching nothing.
//!
//! The request is prepared and selected by the code that serves real ones; this module only writes
//! down what that code saw. No guard is taken, no breaker probe claimed, no cursor moved, no
//! binding made, no counter of the process counts. Caps of the whole router, keys of clients and
//! what happens after dispatch are not part of it. Source: `explain.md`, contract §1, §4.

pub mod offline;
pub mod state_file;
mod text;
mod view;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;

use crate::buckets::{Bucket, BucketPick};
use crate::ids::{ModelId, Stage, WorkerId};
use crate::server::metrics::Metrics;
use crate::server::pool::WorkPool;
use crate::server::prepare::{self, Counting, Prepared};
use crate::server::routing::Routing;
use crate::server::select::{self, Selection};
use crate::server::{ApiError, chat_body};
use crate::state::EngineLoadTable;

pub use view::{AttemptView, BucketView, EngineView, GroupView, Outcome, ReportView};

/// What an explanation is made from.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The routing that decides.
    pub routing: &'a Routing,
    /// What its engines reported.
    pub loads: &'a EngineLoadTable,
    /// Where long prompts are tokenized.
    pub pool: &'a WorkPool,
    /// Whether to show the caller's text: the rendered prompt and its ids.
    pub show_prompt: bool,
}

/// The explanation. All keys are always there; null means unknown or not applicable.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    /// The configured id.
    pub model: Option<ModelId>,
    /// The facts; null when the request was refused before they existed.
    pub request: Option<RequestView>,
    /// Every bucket of the model: the kept ones in the order in which they are tried, then the
    /// others.
    pub buckets: Vec<BucketView>,
    /// Buckets that were tried.
    pub attempts: Vec<AttemptView>,
    /// What it comes to.
    pub outcome: Outcome,
}

/// The facts of one request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestView {
    /// Length used for buckets, tokens.
    pub input_tokens: u64,
    /// Where the length comes from.
    pub token_source: &'static str,
    /// Whether the same request would not be tokenized when sent for real.
    pub tokenizing_skipped: bool,
    /// Requested output, tokens.
    pub output_tokens: Option<u64>,
    /// Their sum.
    pub expected_peak_tokens: Option<u64>,
    /// Session header, where a policy reads it.
    pub session_key: Option<Box<str>>,
    /// Routing-key header, where a policy reads it.
    pub routing_key: Option<Box<str>>,
    /// Enabled and given target for the time to first token, milliseconds.
    pub ttft_slo_ms: Option<f64>,
    /// Enabled and given target for the generation speed, tokens per second.
    pub tps_slo: Option<f64>,
    /// The rendered prompt, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Option<String>>,
    /// The token ids, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Option<Vec<u32>>>,
}

/// Explains one request: its headers and its chat body.
///
/// May wait for a tokenizer or a remote prefix index, as a real request does.
pub async fn explain(subject: Subject<'_>, headers: &HeaderMap, body: Bytes) -> Explained {
    // What would be counted is counted here and dropped.
    let metrics = Arc::new(Metrics::default());
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if length > subject.routing.config.limits.max_body {
        return Explained::refused(None, &ApiError::PayloadTooLarge);
    }
    let named = chat_body::parse(&body).ok();
    let model = named
        .as_ref()
        .and_then(|fields| subject.routing.model(&fields.model))
        .map(|(model, _)| model.id.clone());
    let prepared = prepare::prepare(
        subject.routing,
        subject.pool,
        &metrics,
        headers,
        body.clone(),
        Counting::Always,
    );
    let prepared = match prepared.await {
        Ok(prepared) => prepared,
        Err(refusal) => return Explained::refused(model, &refusal),
    };
    let (attempts, result) = select::explain(&prepared, &subject.routing.workers).await;
    let attempts = attempts.into_iter().map(|attempt| {
        let workers = &subject.routing.workers;
        AttemptView::new(attempt, workers, &prepared.model.id, subject.loads)
    });
    Explained {
        request: Some(request(&prepared, subject.show_prompt, &body)),
        buckets: buckets(&prepared),
        attempts: attempts.collect(),
        outcome: Outcome::of(&result),
        model,
    }
}

fn request(prepared: &Prepared, show_prompt: bool, body: &[u8]) -> RequestView {
    let prompt = &prepared.prompt;
    let peak = prepared.expected_peak_tokens;
    let text = || {
        let tokenizer = prepared.model.tokenizer.as_ref()?;
        tokenizer.prompt_text(body, prompt.source)
    };
    RequestView {
        input_tokens: prompt.input_tokens,
        token_source: prompt.source.label(),
        tokenizing_skipped: prompt.skipped,
        output_tokens: peak.map(|peak| peak - prompt.input_tokens),
        expected_peak_tokens: peak,
        session_key: prepared.headers.session_key.clone(),
        routing_key: prepared.headers.routing_key.clone(),
        ttft_slo_ms: prepared.headers.slo.ttft_ms,
        tps_slo: prepared.headers.slo.tokens_per_second,
        prompt: show_prompt.then(text),
        ids: show_prompt.then(|| prompt.token_ids.clone()),
    }
}

/// Every bucket of the model, in the order of the resolver's answer and then the rest.
fn buckets(prepared: &Prepared) -> Vec<BucketView> {
    let (input, peak) = (prepared.prompt.input_tokens, prepared.expected_peak_tokens);
    let resolver = &prepared.model.resolver;
    let kept: Vec<&Bucket> = match resolver.resolve(input, peak, prepared.headers.slo) {
        Ok(kept) => kept.collect(),
        Err(_) => Vec::new(),
    };
    let dropped = resolver
        .misfits(input, peak)
        .filter_map(|(bucket, misfit)| Some(BucketView::new(bucket, Some(misfit?.to_string()))));
    let kept = kept.into_iter().map(|bucket| BucketView::new(bucket, None));
    kept.chain(dropped).collect()
}

impl Outcome {
    fn of(result: &Result<Selection, ApiError>) -> Self {
        match result {
            Ok(selection) => Self {
                status: 200,
                code: None,
                message: None,
                bucket: Some(selection.bucket.clone()),
                engines: Some(engines(&selection.pick)),
            },
            Err(refusal) => Self::refused(refusal),
        }
    }

    fn refused(refusal: &ApiError) -> Self {
        Self {
            status: refusal.status(),
            code: Some(refusal.code()),
            message: Some(refusal.message().into_owned()),
            bucket: None,
            engines: None,
        }
    }
}

fn engines(pick: &BucketPick) -> std::collections::BTreeMap<Stage, WorkerId> {
    let picks = match pick {
        BucketPick::Plain(pick) => vec![(Stage::Plain, pick)],
        BucketPick::Pd { prefill, decode } => {
            vec![(Stage::Prefill, prefill), (Stage::Decode, decode)]
        }
    };
    let ids = picks
        .into_iter()
        .map(|(stage, pick)| (stage, pick.engine.id().clone()));
    ids.collect()
}

impl Explained {
    /// The explanation of a request that is refused before its facts exist.
    #[must_use]
    pub fn refused(model: Option<ModelId>, refusal: &ApiError) -> Self {
        Self {
            model,
            request: None,
            buckets: Vec::new(),
            attempts: Vec::new(),
            outcome: Outcome::refused(refusal),
        }
    }

    /// The same in lines for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        text::render(self)
    }
}
