//! From a chat body to the facts a pick needs and the body an engine gets.
//!
//! Contacts no engine, takes no guard, claims nothing. Everything it refuses is the client's
//! fault (400, 404); a tokenizer that cannot cope is not an error but the next rung of the ladder.
//! Source: http-and-operations §2 steps 3 to 7, §9.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;

use crate::buckets::BucketRequest;
use crate::ids::ModelId;
use crate::server::chat_body::{self, ChatFields};
use crate::server::header_facts::HeaderFacts;
use crate::server::metrics::Metrics;
use crate::server::pool::{Cost, WorkPool};
use crate::server::routing::{ModelRouting, NameMatch, Routing};
use crate::server::tokenize::{PromptFacts, Question, prompt_facts};
use crate::server::{ApiError, bootstrap, forward_ids, rid, sampling, splice};
use crate::state::prefix::{PrefixMemo, PrefixQuery};

/// Bodies up to this size, bytes, are read for their routing fields on the calling thread, and copied
/// there when something is added. Chosen: less than half a millisecond for the worst of them, a list of
/// ids; `benches/event_loop`.
const INLINE_BYTES: usize = 64 << 10;

/// When a prompt is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// When the count can change something.
    AsNeeded,
    /// Always, for whoever wants to see it.
    Always,
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
    /// The caller's cache namespace.
    pub cache_salt: Option<String>,
    /// Whether a LoRA adapter serves the request.
    pub adapter: bool,
}

impl Prepared {
    /// What prefix indexes may be asked; `None` unless the ids are the engine's own. Text ids and
    /// adapters never are: blocks of an adapter carry names that only the engine can tell.
    #[must_use]
    pub fn prefix_query(&self) -> Option<PrefixQuery<'_>> {
        let ids = self.prompt.engine_ids().filter(|_| !self.adapter)?;
        let salt = self.cache_salt.as_deref();
        Some(PrefixQuery { ids, salt })
    }

    /// The facts for the bucket loop, whose attempts share `prefix`.
    #[must_use]
    pub fn bucket_request<'a>(&'a self, prefix: &'a PrefixMemo<'a>) -> BucketRequest<'a> {
        BucketRequest {
            model: &self.model.id,
            input_tokens: self.prompt.input_tokens,
            expected_peak_tokens: self.expected_peak_tokens,
            token_ids: self.prompt.engine_ids(),
            session_key: self.headers.session_key.as_deref(),
            routing_key: self.headers.routing_key.as_deref(),
            prefix,
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
    pool: &WorkPool,
    metrics: &Arc<Metrics>,
    headers: &HeaderMap,
    body: Bytes,
    counting: Counting,
) -> Result<Prepared, ApiError> {
    let text = body.clone();
    let mut fields = aside(pool, body.len(), move || chat_body::parse(&text)).await?;
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
        Some(ids) => PromptFacts::of_caller(ids),
        None => {
            let question = Question {
                model,
                body: &body,
                output_tokens: fields.output_tokens,
                always: counting == Counting::Always,
            };
            prompt_facts(question, pool, metrics).await
        }
    };
    let forwarded = model.forward_input_ids.then(|| {
        let verdict = forward_ids::verdict(&prompt);
        let outcome = forward_ids::outcome(verdict);
        metrics
            .tokenizing
            .forwarding(&model.id, outcome, prompt.source);
        verdict.map(<[u32]>::to_vec)
    });
    let forwarded = forwarded.and_then(Result::ok);
    let expected_peak_tokens = peak(prompt.input_tokens, fields.output_tokens)?;
    let stream = fields.stream;
    let adapter = fields.has_adapter || names_adapter(&fields, model);
    let cache_salt = fields.cache_salt.take();
    let name = (matched == NameMatch::Alias).then(|| model.id.clone());
    let changes = Changes {
        name,
        additions,
        forwarded,
    };
    let body = if changes.none() {
        body
    } else {
        aside(pool, body.len(), move || changes.applied_to(&body, &fields)).await
    };
    Ok(Prepared {
        model: Arc::clone(model),
        stream,
        prompt,
        expected_peak_tokens,
        headers,
        body,
        rid,
        adapter,
        cache_salt,
    })
}

/// Whether the name as sent is `base:adapter` of a configured base.
fn names_adapter(fields: &ChatFields, model: &ModelRouting) -> bool {
    let rest = fields.model.strip_prefix(model.id.as_str());
    rest.is_some_and(|rest| rest.starts_with(':'))
}

/// `work` on a body of `bytes` bytes: here when that is quick or the pool has no room, else there.
async fn aside<T: Send + 'static>(
    pool: &WorkPool,
    bytes: usize,
    work: impl FnOnce() -> T + Clone + Send + 'static,
) -> T {
    if bytes > INLINE_BYTES
        && let Ok(done) = pool.run(Cost { bytes }, work.clone(), || ()).await
    {
        return done;
    }
    work()
}

/// What the engine's body has that the client's has not.
#[derive(Debug, Clone)]
struct Changes {
    /// The configured name in place of an alias.
    name: Option<ModelId>,
    /// Fields, as `"key":value` joined by commas; may be empty.
    additions: String,
    /// Ids to be passed on.
    forwarded: Option<Vec<u32>>,
}

impl Changes {
    fn none(&self) -> bool {
        self.name.is_none() && self.additions.is_empty() && self.forwarded.is_none()
    }

    fn applied_to(self, body: &Bytes, fields: &ChatFields) -> Bytes {
        let mut added = self.additions;
        if let Some(ids) = &self.forwarded {
            add_field(&mut added, &forward_ids::field(ids));
        }
        let renamed = self
            .name
            .map(|name| rename_model(body, fields, name.as_str()));
        let body = renamed.as_ref().unwrap_or(body);
        match added.as_str() {
            "" => body.clone(),
            added => splice::before_last_brace(body, added),
        }
    }
}

/// Appends `"key":value` to others.
fn add_field(fields: &mut String, field: &str) {
    if !fields.is_empty() {
        fields.push(',');
    }
    fields.push_str(field);
}

/// `additions` and the id, as `"key":value` joined by commas.
fn with_rid(mut additions: String, rid: Option<&str>) -> String {
    if let Some(rid) = rid {
        add_field(&mut additions, &format!(r#""rid":"{rid}""#));
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
