//! Which headers pass in which direction.
//!
//! To the engine: a whitelist, everything else is dropped, cookies included; names that this
//! router owns are set once and never taken from the client. To the client: everything except
//! hop-by-hop headers, `server`, and names that this router owns. Source: http-and-operations §13.

use std::borrow::Cow;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Uri};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorType, OrErr, Result};
use pingora_proxy::Session;
use rand::Rng;

use crate::buckets::BucketPick;
use crate::ids::WorkerId;
use crate::proxy::ctx::RequestCtx;
use crate::workers::Worker;

/// Longest request id taken from a client, bytes.
const MAX_REQUEST_ID: usize = 256;

/// Names under which clients send a request id, best first.
const REQUEST_ID_NAMES: [HeaderName; 4] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-trace-id"),
    HeaderName::from_static("request-id"),
];

/// The client's request id if it sent a sane one, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let sane = |id: &&str| {
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|b| b.is_ascii_graphic())
    };
    let given = REQUEST_ID_NAMES.iter().find_map(|name| {
        let value = headers.get(name)?.to_str().ok()?.trim();
        Some(value).filter(sane)
    });
    given.map_or_else(mint_request_id, str::to_owned)
}

/// A new request id: 120 random bits as 24 letters and digits.
#[expect(clippy::disallowed_methods, reason = "an id, not a policy's choice")]
pub(crate) fn mint_request_id() -> String {
    const SYMBOLS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits: u128 = rand::rng().random();
    let mut id = String::with_capacity(33);
    id.push_str("chatcmpl-");
    for _ in 0..24 {
        id.push(char::from(SYMBOLS[(bits & 31) as usize]));
        bits >>= 5;
    }
    id
}

/// Whether a client's header goes on to the engine.
fn passes(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "authorization" | "x-correlation-id" | "traceparent" | "tracestate"
    ) || name.starts_with("x-request-id-")
        || (name.starts_with("x-sgl-") && !is_ours(name))
}

/// Names that this router owns.
fn is_ours(name: &str) -> bool {
    matches!(
        name,
        "x-sgl-decode-url" | "x-router-error-code" | "x-router-upstream-status"
    ) || name.starts_with("x-edge-")
}

/// What the head of one leg needs to know.
pub(crate) struct Leg<'a> {
    pub(crate) engine: &'a Worker,
    pub(crate) body_bytes: usize,
    pub(crate) stream: bool,
    pub(crate) request_id: &'a str,
    /// The decode engine of a pair.
    pub(crate) decode: Option<&'a Worker>,
}

/// Puts the head for the engine that answers the client in the place of the client's own, which
/// has been read. Pingora copies the head of a session for its engine: this one is short, needs no
/// cleaning, and passes through the same whitelist unchanged when a prefill leg is made of it.
///
/// # Errors
/// An internal error when nothing has been selected.
pub(crate) fn replace(head: &mut RequestHeader, ctx: &RequestCtx) -> Result<()> {
    let Some(dispatch) = &ctx.dispatch else {
        return Err(Error::new(ErrorType::InternalError));
    };
    let decode = match dispatch.selection.pick {
        BucketPick::Pd { .. } => Some(dispatch.main.engine().as_ref()),
        BucketPick::Plain(_) => None,
    };
    let mut new = to_engine_leg(
        head,
        &Leg {
            engine: dispatch.main.engine(),
            body_bytes: dispatch.body.len(),
            stream: dispatch.stream,
            request_id: &ctx.request_id,
            decode,
        },
    )?;
    // By the client's version Pingora knows how to answer it.
    new.set_version(head.version);
    *head = new;
    Ok(())
}

/// The request head for one leg.
///
/// # Errors
/// When a header value cannot be written, which would be a fault of this router.
pub(crate) fn to_engine_leg(client: &RequestHeader, leg: &Leg<'_>) -> Result<RequestHeader> {
    let hop = nominated(&client.headers);
    let passed = client
        .headers
        .iter()
        .filter(|(name, _)| passes(name) && !hop.iter().any(|hop| hop == name.as_str()));
    let text =
        |text: &str| HeaderValue::from_str(text).or_err(ErrorType::InternalError, "a header");
    // Built as a map, because every name that Pingora is given is parsed again.
    let mut headers = HeaderMap::with_capacity(12);
    headers.insert(header::HOST, text(leg.engine.authority())?);
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.insert(header::CONTENT_LENGTH, leg.body_bytes.into());
    if leg.stream {
        headers.insert(header::ACCEPT, EVENT_STREAM);
    }
    headers.insert(X_REQUEST_ID, text(leg.request_id)?);
    if let Some(decode) = leg.decode {
        headers.insert(X_SGL_DECODE_URL, text(decode.origin())?);
    }
    for (name, value) in passed {
        headers.append(name, value.clone());
    }
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = Method::POST;
    parts.uri = Uri::from_static("/v1/chat/completions");
    parts.headers = headers;
    Ok(parts.into())
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_SGL_DECODE_URL: HeaderName = HeaderName::from_static("x-sgl-decode-url");

/// Cleans an engine's answer head for the client and adds ours.
///
/// # Errors
/// When a header value cannot be written, which would be a fault of this router.
pub(crate) fn to_client(response: &mut ResponseHeader, ctx: &RequestCtx) -> Result<()> {
    for name in nominated(&response.headers) {
        response.remove_header(&name);
    }
    let authority = ctx
        .dispatch
        .as_ref()
        .map(|dispatch| dispatch.main.engine().authority());
    let dropped = response.headers.iter().filter(|(name, value)| {
        is_hop_by_hop(name.as_str())
            || is_ours(name.as_str())
            || authority.is_some_and(|authority| names(value, authority))
    });
    let dropped: Vec<HeaderName> = dropped.map(|(name, _)| name.clone()).collect();
    for name in dropped {
        response.remove_header(&name);
    }
    if response.version < http::Version::HTTP_11 {
        response.set_version(http::Version::HTTP_11);
    }
    response.insert_header("x-request-id", ctx.request_id.as_str())?;
    if ctx.routing.config.response_headers {
        for (name, value) in edge_headers(ctx) {
            response.insert_header(name, value.as_ref())?;
        }
    }
    Ok(())
}

/// Whether a header's value holds the address of the engine that answers, as `location` and `via`
/// may.
fn names(value: &HeaderValue, authority: &str) -> bool {
    let value = value.as_bytes();
    // An authority has a colon, which most values have not.
    value.contains(&b':')
        && value
            .windows(authority.len())
            .any(|window| window.eq_ignore_ascii_case(authority.as_bytes()))
}

/// An id for the outside. One that is an address, because the configuration gave none, is replaced
/// by a name made of it.
fn public_id(id: &WorkerId) -> Cow<'_, str> {
    if !id.as_str().contains("://") {
        return Cow::Borrowed(id.as_str());
    }
    let hash = id
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("engine-{hash:016x}").into()
}

/// An HTTP/1.0 client knows no chunks: an answer without a length ends with its connection.
pub(crate) fn for_http10(session: &mut Session, response: &mut ResponseHeader) {
    if response.headers.contains_key(header::TRANSFER_ENCODING) {
        response.remove_header(&header::TRANSFER_ENCODING);
        session.set_keepalive(None);
    }
}

/// Hop-by-hop names, `transfer-encoding` excepted: Pingora owns the framing towards the client.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection" | "keep-alive" | "te" | "trailer" | "upgrade" | "server"
    ) || name.starts_with("proxy-")
}

/// Names that a `Connection` header takes with it.
fn nominated(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter();
    let tokens = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|v| v.split(','));
    tokens
        .map(|token| token.trim().to_ascii_lowercase())
        .filter(|token| {
            !matches!(
                token.as_str(),
                "" | "close" | "keep-alive" | "content-length" | "transfer-encoding"
            )
        })
        .collect()
}

/// `x-edge-…`: ids only, never an address. Source: contract §2 `response_headers`.
pub(crate) fn edge_headers(ctx: &RequestCtx) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let selection = ctx.dispatch.as_ref().map(|dispatch| &dispatch.selection);
    let chosen = selection.map(|selection| match &selection.pick {
        BucketPick::Plain(pick) => (pick, None),
        BucketPick::Pd { prefill, decode } => (decode, Some(prefill)),
    });
    let main = chosen.map(|(main, _)| main);
    let prefill = chosen.and_then(|(_, prefill)| prefill);
    let bucket = selection.map(|selection| selection.bucket.as_str().into());
    [
        bucket.map(|bucket| ("x-edge-bucket", bucket)),
        main.map(|pick| ("x-edge-engine", public_id(pick.engine.id()))),
        main.map(|pick| ("x-edge-reason", pick.reason.as_str().into())),
        prefill.map(|pick| ("x-edge-prefill-engine", public_id(pick.engine.id()))),
        prefill.map(|pick| ("x-edge-prefill-reason", pick.reason.as_str().into())),
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests;
