//! The last requests as they came off the wire, for tests that compare bytes.
//!
//! Bounded in number and in bytes: an engine that runs for days keeps no more than this.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, Version, header};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// Requests kept.
const KEPT_REQUESTS: usize = 256;
/// Bytes of request bodies kept.
const KEPT_BYTES: usize = 128 << 20;
/// Longest body that is shown as text over HTTP.
const SHOWN_BYTES: usize = 1 << 20;

/// How the end of a request body was marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `content-length`, with this value in bytes.
    ContentLength(u64),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Neither (HTTP/2 without a length, or no body).
    Unmarked,
}

/// One chat request as received.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// Number of the connection it came on; 1 is the first one of this engine.
    pub connection: u64,
    /// HTTP version.
    pub version: Version,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// How the end of the body was marked.
    pub framing: Framing,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl RecordedRequest {
    /// Stable hash of the body, for comparing without transferring it: [`fnv64`].
    #[must_use]
    pub fn fnv64(&self) -> u64 {
        fnv64(&self.body)
    }

    /// The JSON of `GET /mock/requests`.
    pub(crate) fn to_json(&self) -> Value {
        let mut headers = Map::new();
        for (name, value) in &self.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            match headers.get_mut(name.as_str()) {
                Some(Value::String(present)) => {
                    present.push_str(", ");
                    present.push_str(&value);
                }
                _ => {
                    headers.insert(name.to_string(), Value::from(value));
                }
            }
        }
        let shown = Some(&self.body).filter(|body| body.len() <= SHOWN_BYTES);
        let (content_length, chunked) = match self.framing {
            Framing::ContentLength(length) => (Some(length), false),
            Framing::Chunked => (None, true),
            Framing::Unmarked => (None, false),
        };
        json!({
            "connection": self.connection,
            "version": format!("{:?}", self.version),
            "path": self.path,
            "headers": headers,
            "content_length": content_length,
            "chunked": chunked,
            "body_len": self.body.len(),
            "fnv64": format!("{:016x}", self.fnv64()),
            "body": shown.and_then(|body| std::str::from_utf8(body).ok()),
        })
    }
}

/// FNV-1a, 64 bits: offset basis `cbf29ce484222325`, prime `100000001b3`.
#[must_use]
pub fn fnv64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How the headers mark the end of the body.
pub(crate) fn framing(headers: &HeaderMap) -> Framing {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Framing::Chunked;
    }
    headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map_or(Framing::Unmarked, Framing::ContentLength)
}

/// The ring of recorded requests.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    requests: VecDeque<RecordedRequest>,
    bytes: usize,
}

impl Recorder {
    pub(crate) fn push(&self, request: RecordedRequest) {
        let mut ring = self.0.lock();
        ring.bytes += request.body.len();
        ring.requests.push_back(request);
        while ring.requests.len() > KEPT_REQUESTS || ring.bytes > KEPT_BYTES {
            let Some(oldest) = ring.requests.pop_front() else {
                return;
            };
            ring.bytes -= oldest.body.len();
        }
    }

    /// The newest `last` requests, oldest first.
    pub(crate) fn last(&self, last: usize) -> Vec<RecordedRequest> {
        let ring = self.0.lock();
        let skip = ring.requests.len().saturating_sub(last);
        ring.requests.iter().skip(skip).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        *self.0.lock() = Ring::default();
    }
}
