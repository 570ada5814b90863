//! From a chat body to the facts a pick needs and the body an engine gets.
//!
//! Contacts no engine, takes no guard, claims nothing. Everything it refuses is the client's
//! fault (400, 404); a tokenizer that cannot cope is not an error but the next rung of the ladder.
//! Source: http-and-operations §2 steps 3 to 7, §9.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;

use crate::buckets::BucketRequest;
use crate::server::chat_body::{self, ChatFields};
use crate::server::header_facts::HeaderFacts;
use crate::server::metrics::Metrics;
use crate::server::routing::{ModelRouting, NameMatch, Routing};
use crate::server::tokenize::TokenizePool;
use crate::server::{ApiError, bootstrap, rid, sampling, splice};
use crate::tokenizer::TokenSource;

/// Length and ids of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFacts {
    /// Prompt length, tokens, at least 1.
    pub input_tokens: u64,
    /// Where the length comes from.
    pub source: TokenSource,
    /// The token ids, unless the length is an estimate.
    pub token_ids: Option<Vec<u32>>,
}

/// One request, ready to be routed.
#[derive(Debug)]
pub struct Prepared {
    /// Its model.
    pub model: Arc<ModelRouting>,
    /// Whether the client asked for an event stream.
    pub stream: bool,
    /// Length and ids of the prompt.
    pub prompt: PromptFacts,
    /// Prompt plus requested output, tokens; `None` when the output budget is unknown.
    pub expected_peak_tokens: Option<u64>,
    /// Keys and latency targets.
    pub headers: HeaderFacts,
    /// The body for a plain engine: the client's bytes, with the model spelled as configured when
    /// an alias was used, and with what the model's sampling contract adds.
    pub body: Bytes,
    /// The request id that this router added, by which it may abort the request.
    pub rid: Option<String>,
}

impl Prepared {
    /// The facts for the bucket loop.
    #[must_use]
    pub fn bucket_request(&self) -> BucketRequest<'_> {
        BucketRequest {
            model: &self.model.id,
            input_tokens: self.prompt.input_tokens,
            expected_peak_tokens: self.expected_peak_tokens,
            token_ids: self.prompt.token_ids.as_deref(),
            session_key: self.headers.session_key.as_deref(),
            routing_key: self.headers.routing_key.as_deref(),
            explain: None,
        }
    }
}

/// Prepares one chat request.
///
/// # Errors
/// [`ApiError::BadRequest`] (body, bootstrap fields on a PD model, sampling contract, latency
/// targets, token sum overflow) and [`ApiError::ModelNotFound`].
pub async fn prepare(
    routing: &Routing,
    pool: &TokenizePool,
    metrics: &Metrics,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Prepared, ApiError> {
    let mut fields = chat_body::parse(&body)?;
    let Some((model, matched)) = routing.model(&fields.model) else {
        return Err(ApiError::ModelNotFound(fields.model));
    };
    let pair = bootstrap::reserves(&model.id, &routing.workers);
    if fields.has_bootstrap && pair {
        return Err(ApiError::bad_request(
            "invalid request: bootstrap_host, bootstrap_port and bootstrap_room are set by the router",
        ));
    }
    let headers = model.headers.read(headers)?;
    let sent = |param| fields.sampling(&body, param);
    let additions = sampling::additions(&model.sampling, sent, metrics)?;
    let rid = rid::mint(&fields, &body, &model.sampling, pair);
    let additions = with_rid(additions, rid.as_deref());
    let prompt = match fields.input_ids.take() {
        Some(ids) => PromptFacts {
            input_tokens: count(&ids),
            source: TokenSource::InputIds,
            token_ids: Some(ids),
        },
        None => pool.prompt_facts(model, &body, metrics).await,
    };
    let expected_peak_tokens = peak(prompt.input_tokens, fields.output_tokens)?;
    let body = match matched {
        NameMatch::AsSent => body,
        NameMatch::Alias => rename_model(&body, &fields, model.id.as_str()),
    };
    let body = match additions.as_str() {
        "" => body,
        fields => splice::before_last_brace(&body, fields),
    };
    Ok(Prepared {
        model: Arc::clone(model),
        stream: fields.stream,
        prompt,
        expected_peak_tokens,
        headers,
        body,
        rid,
    })
}

/// `additions` and the id, as `"key":value` joined by commas.
fn with_rid(mut additions: String, rid: Option<&str>) -> String {
    if let Some(rid) = rid {
        if !additions.is_empty() {
            additions.push(',');
        }
        additions.push_str(r#""rid":""#);
        additions.push_str(rid);
        additions.push('"');
    }
    additions
}

/// Prompt plus requested output, tokens; `None` when the output budget is unknown.
fn peak(input_tokens: u64, output_tokens: Option<u64>) -> Result<Option<u64>, ApiError> {
    let Some(output_tokens) = output_tokens else {
        return Ok(None);
    };
    let sum = input_tokens.checked_add(output_tokens).ok_or_else(|| {
        ApiError::bad_request("invalid request: prompt plus requested output is too large")
    })?;
    Ok(Some(sum))
}

/// Number of ids, tokens.
pub(crate) fn count(ids: &[u32]) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}

/// The body with another model name, every other byte as sent.
fn rename_model(body: &Bytes, fields: &ChatFields, id: &str) -> Bytes {
    let name = serde_json::to_vec(id).expect("a string always serializes");
    let mut renamed = BytesMut::with_capacity(body.len() + name.len());
    renamed.put_slice(&body[..fields.model_span.start]);
    renamed.put_slice(&name);
    renamed.put_slice(&body[fields.model_span.end..]);
    renamed.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_replaced_and_nothing_else_changes() {
        let body = Bytes::from_static(br#"{"x":1e400, "model" : "al\u0069as","y":[1, 2]}"#);
        let fields = chat_body::parse(&body).unwrap();
        let renamed = rename_model(&body, &fields, "real \"name\"");
        assert_eq!(
            renamed,
            Bytes::from_static(br#"{"x":1e400, "model" : "real \"name\"","y":[1, 2]}"#)
        );
    }
}
