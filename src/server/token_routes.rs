//! `POST /v1/tokenize` and `/v1/detokenize`: what the router's tokenizer makes of a text, to see why a
//! request went to its bucket.
//!
//! A text is encoded as the engine encodes a completion's `prompt`: with the tokenizer's own start
//! and end tokens, where it adds any, and without a chat template. Contacts no engine.
//! Source: http-and-operations §1.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use crate::server::ApiError;
use crate::server::pool::{Cost, WorkPool};
use crate::server::routing::Routing;
use crate::tokenizer::{FallReason, Tokenizer};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// Text to ids.
    Tokenize,
    /// Ids to text.
    Detokenize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    model: String,
    prompt: String,
}

#[derive(Serialize)]
struct Tokens<'a> {
    model: &'a str,
    count: usize,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ids {
    model: String,
    tokens: Vec<u32>,
    #[serde(default)]
    skip_special_tokens: bool,
}

#[derive(Serialize)]
struct Decoded<'a> {
    model: &'a str,
    text: String,
}

/// The JSON answer to a body, made on `pool`.
///
/// # Errors
/// 400 for a body that is no JSON and for a model without a tokenizer, 422 for one with other fields
/// than the route has, 404 for an unknown model, 503 when too much work waits, 500 when the
/// tokenizer fails.
pub async fn answer(
    conversion: Conversion,
    routing: Arc<Routing>,
    pool: &WorkPool,
    body: Bytes,
) -> Result<Bytes, ApiError> {
    // Which model is meant is read on the pool, so the slowest tokenizer counts.
    let tokenizers = routing
        .models()
        .filter_map(|model| model.tokenizer.as_ref());
    let bytes = tokenizers.map(|tokenizer| tokenizer.work(body.len())).max();
    let cost = Cost {
        bytes: bytes.unwrap_or_default(),
    };
    let work = move || match conversion {
        Conversion::Tokenize => tokenize(&routing, &body),
        Conversion::Detokenize => detokenize(&routing, &body),
    };
    let done = pool.run(cost, work, || ()).await;
    done.map_err(|_| ApiError::Overloaded)?
}

fn tokenize(routing: &Routing, body: &[u8]) -> Result<Bytes, ApiError> {
    let Text { model, prompt } = parse(body, "`model` and `prompt`, both strings")?;
    let tokenizer = tokenizer(routing, &model)?;
    let tokens = tokenizer.encode_text(&prompt, true).map_err(failed)?;
    json(&Tokens {
        model: &model,
        count: tokens.len(),
        tokens,
    })
}

fn detokenize(routing: &Routing, body: &[u8]) -> Result<Bytes, ApiError> {
    let wanted = "`model`, a string, `tokens`, a list of ids, and maybe `skip_special_tokens`";
    let Ids {
        model,
        tokens,
        skip_special_tokens,
    } = parse(body, wanted)?;
    let tokenizer = tokenizer(routing, &model)?;
    let text = tokenizer.decode(&tokens, skip_special_tokens);
    json(&Decoded {
        model: &model,
        text: text.map_err(failed)?,
    })
}

fn parse<T: DeserializeOwned>(body: &[u8], wanted: &'static str) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => {
            ApiError::Unprocessable(format!("invalid request: expected {wanted}").into())
        }
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::bad_request("invalid request: body must be a JSON object")
        }
    })
}

fn tokenizer<'r>(routing: &'r Routing, model: &str) -> Result<&'r Tokenizer, ApiError> {
    let found = routing.model(model);
    let (routing, _) = found.ok_or_else(|| ApiError::ModelNotFound(model.to_owned()))?;
    let tokenizer = routing.tokenizer.as_deref();
    tokenizer.ok_or_else(|| {
        ApiError::bad_request("invalid request: this model is served without a tokenizer")
    })
}

fn failed(reason: FallReason) -> ApiError {
    tracing::error!(reason = reason.label(), "the tokenizer failed");
    ApiError::Internal
}

fn json(answer: &impl Serialize) -> Result<Bytes, ApiError> {
    let text = serde_json::to_vec(answer);
    text.map(Bytes::from).map_err(|_| ApiError::Internal)
}
