//! Which headers pass in which direction.
//!
//! To the engine: a whitelist, everything else is dropped, cookies included; names that this
//! router owns are set once and never taken from the client. To the client: everything except
//! hop-by-hop headers, `server`, and names that this router owns. Source: http-and-operations §13.

use http::header::{self, HeaderName};
use http::{HeaderMap, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;
use rand::distr::{Alphanumeric, SampleString};

use crate::buckets::BucketPick;
use crate::ids::WorkerId;
use crate::proxy::ctx::RequestCtx;
use crate::workers::Worker;

/// Longest request id taken from a client, bytes.
const MAX_REQUEST_ID: usize = 256;

/// Names under which clients send a request id, best first.
const REQUEST_ID_NAMES: [&str; 4] = [
    "x-request-id",
    "x-correlation-id",
    "x-trace-id",
    "request-id",
];

/// The client's request id if it sent a sane one, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let sane = |id: &&str| {
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|b| b.is_ascii_graphic())
    };
    let given = REQUEST_ID_NAMES.iter().find_map(|name| {
        let value = headers.get(*name)?.to_str().ok()?.trim();
        Some(value).filter(sane)
    });
    given.map_or_else(mint_request_id, str::to_owned)
}

#[expect(clippy::disallowed_methods, reason = "an id, not a policy's choice")]
pub(crate) fn mint_request_id() -> String {
    format!(
        "chatcmpl-{}",
        Alphanumeric.sample_string(&mut rand::rng(), 24)
    )
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

/// The request head for the engine that answers the client.
///
/// # Errors
/// An internal error when nothing has been selected.
pub(crate) fn to_engine(client: &RequestHeader, ctx: &RequestCtx) -> Result<RequestHeader> {
    let Some(dispatch) = &ctx.dispatch else {
        return Err(Error::new(ErrorType::InternalError));
    };
    let decode = match dispatch.selection.pick {
        BucketPick::Pd { .. } => Some(dispatch.main.engine().as_ref()),
        BucketPick::Plain(_) => None,
    };
    to_engine_leg(
        client,
        &Leg {
            engine: dispatch.main.engine(),
            body_bytes: dispatch.body.len(),
            stream: dispatch.stream,
            request_id: &ctx.request_id,
            decode,
        },
    )
}

/// The request head for one leg.
///
/// # Errors
/// When a header value cannot be written, which would be a fault of this router.
pub(crate) fn to_engine_leg(client: &RequestHeader, leg: &Leg<'_>) -> Result<RequestHeader> {
    let mut head = RequestHeader::build("POST", b"/v1/chat/completions", Some(12))?;
    head.set_version(Version::HTTP_11);
    head.insert_header(header::HOST, leg.engine.authority())?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, leg.body_bytes)?;
    if leg.stream {
        head.insert_header(header::ACCEPT, "text/event-stream")?;
    }
    head.insert_header("x-request-id", leg.request_id)?;
    if let Some(decode) = leg.decode {
        head.insert_header("x-sgl-decode-url", decode.url().to_string())?;
    }
    let hop = nominated(&client.headers);
    for (name, value) in &client.headers {
        if passes(name) && !hop.iter().any(|hop| hop == name.as_str()) {
            head.append_header(name.clone(), value.clone())?;
        }
    }
    Ok(head)
}

/// Cleans an engine's answer head for the client and adds ours.
///
/// # Errors
/// When a header value cannot be written, which would be a fault of this router.
pub(crate) fn to_client(response: &mut ResponseHeader, ctx: &RequestCtx) -> Result<()> {
    for name in nominated(&response.headers) {
        response.remove_header(&name);
    }
    let drop: Vec<HeaderName> = response
        .headers
        .keys()
        .filter(|name| {
            is_hop_by_hop(name.as_str())
                || is_ours(name.as_str())
                || names_engine(&response.headers, name, ctx)
        })
        .cloned()
        .collect();
    for name in drop {
        response.remove_header(&name);
    }
    if response.version < Version::HTTP_11 {
        response.set_version(Version::HTTP_11);
    }
    response.insert_header("x-request-id", ctx.request_id.as_str())?;
    if ctx.routing.config.response_headers {
        for (name, value) in edge_headers(ctx) {
            response.insert_header(name, value)?;
        }
    }
    Ok(())
}

/// Whether a header holds the address of the engine that answers, as `location` and `via` may.
fn names_engine(headers: &HeaderMap, name: &HeaderName, ctx: &RequestCtx) -> bool {
    let Some(dispatch) = &ctx.dispatch else {
        return false;
    };
    let authority = dispatch.main.engine().authority().as_bytes();
    let mut values = headers.get_all(name).iter();
    values.any(|value| {
        let mut windows = value.as_bytes().windows(authority.len());
        windows.any(|window| window.eq_ignore_ascii_case(authority))
    })
}

/// An id for the outside. One that is an address, because the configuration gave none, is replaced
/// by a name made of it.
fn public_id(id: &WorkerId) -> String {
    if !id.as_str().contains("://") {
        return id.to_string();
    }
    let hash = id
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("engine-{hash:016x}")
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
pub(crate) fn edge_headers(ctx: &RequestCtx) -> Vec<(&'static str, String)> {
    let Some(dispatch) = &ctx.dispatch else {
        return Vec::new();
    };
    let selection = &dispatch.selection;
    let (main, prefill) = match &selection.pick {
        BucketPick::Plain(pick) => (pick, None),
        BucketPick::Pd { prefill, decode } => (decode, Some(prefill)),
    };
    let mut headers = vec![
        ("x-edge-bucket", selection.bucket.to_string()),
        ("x-edge-engine", public_id(main.engine.id())),
        ("x-edge-reason", main.reason.to_string()),
    ];
    if let Some(prefill) = prefill {
        headers.push(("x-edge-prefill-engine", public_id(prefill.engine.id())));
        headers.push(("x-edge-prefill-reason", prefill.reason.to_string()));
    }
    headers
}

#[cfg(test)]
mod tests;
