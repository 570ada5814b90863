//! Selected engine to Pingora peer.

use std::sync::Arc;
use std::time::Duration;

use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy};
use pingora::{Error, ErrorType, Result};

use crate::config::Timeouts;
use crate::proxy::dial::Dial;
use crate::proxy::wire::{self, Wire};
use crate::workers::Worker;

/// How long an engine connection may idle in the pool. Python engines close theirs after 5 s;
/// reusing one they are about to close costs a client a 502. Source: pingora-notes §5.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// Streams of one HTTP/2 connection at a time. SGLang's front end allows a hundred and more.
const H2_STREAMS: usize = 100;

/// The HTTP/1.1 peer of `engine`, with every timeout that Pingora leaves unset.
///
/// # Errors
/// An internal error when the engine's name has not been resolved.
pub(crate) fn http1(engine: &Worker, timeouts: &Timeouts) -> Result<HttpPeer> {
    let Some(address) = engine.address() else {
        return Err(Error::new(ErrorType::InternalError));
    };
    let mut peer = HttpPeer::new(address, false, String::new());
    let silence = silence(timeouts) + Duration::from_secs(5);
    peer.options.connection_timeout = Some(timeouts.connect);
    peer.options.total_connection_timeout = Some(timeouts.connect);
    peer.options.read_timeout = Some(silence);
    peer.options.write_timeout = Some(silence);
    peer.options.idle_timeout = Some(POOL_IDLE);
    Ok(peer)
}

/// The peer of one exchange: its connection can be cut, and is not made for a client that left.
///
/// # Errors
/// As [`http1`].
pub(crate) fn of_exchange(
    engine: &Worker,
    timeouts: &Timeouts,
    wire: &Arc<Wire>,
    dial: Dial,
) -> Result<HttpPeer> {
    let mut peer = http1(engine, timeouts)?;
    peer.options.tracer = Some(wire::tracer(wire));
    peer.options.custom_l4 = Some(Arc::new(dial));
    // The janitor cuts the wire at the exact limit; a timer of Pingora's for each read would only
    // cost time.
    peer.options.read_timeout = None;
    peer.options.write_timeout = None;
    // The head is ours from the first byte on, see `headers`.
    peer.options.http_upstream_request_policy = HttpUpstreamRequestPolicy::preserve();
    Ok(peer)
}

/// The HTTP/2 peer (prior knowledge) of an engine that announced it. Requests share connections,
/// so none may be cut: Pingora's own read timeout ends silence instead, at the longer of the two
/// limits.
///
/// # Errors
/// As [`http1`].
pub(crate) fn http2(engine: &Worker, timeouts: &Timeouts) -> Result<HttpPeer> {
    let mut peer = http1(engine, timeouts)?;
    peer.options.set_http_version(2, 2);
    peer.options.max_h2_streams = H2_STREAMS;
    peer.options.read_timeout = Some(silence(timeouts));
    peer.options.http_upstream_request_policy = HttpUpstreamRequestPolicy::preserve();
    Ok(peer)
}

fn silence(timeouts: &Timeouts) -> Duration {
    timeouts.first_byte.max(timeouts.stream_idle)
}
