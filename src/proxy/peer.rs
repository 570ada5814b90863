//! Selected engine to Pingora peer.

use std::sync::Arc;
use std::time::Duration;

use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use crate::config::Timeouts;
use crate::proxy::dial::Dial;
use crate::proxy::wire::{self, Wire};
use crate::workers::Worker;

/// How long an engine connection may idle in the pool. Python engines close theirs after 5 s;
/// reusing one they are about to close costs a client a 502. Source: pingora-notes §5.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// The peer of `engine`, with every timeout that Pingora leaves unset.
///
/// The read timeout is only a net below the janitor, which ends silence at the exact limit.
///
/// # Errors
/// An internal error when the engine's name has not been resolved.
pub(crate) fn of(
    engine: &Worker,
    timeouts: &Timeouts,
    exchange: Option<(&Arc<Wire>, Dial)>,
) -> Result<HttpPeer> {
    let Some(address) = engine.address() else {
        return Err(Error::new(ErrorType::InternalError));
    };
    let mut peer = HttpPeer::new(address, false, String::new());
    let silence = timeouts.first_byte.max(timeouts.stream_idle) + Duration::from_secs(5);
    peer.options.connection_timeout = Some(timeouts.connect);
    peer.options.total_connection_timeout = Some(timeouts.connect);
    peer.options.read_timeout = Some(silence);
    peer.options.write_timeout = Some(silence);
    peer.options.idle_timeout = Some(POOL_IDLE);
    if let Some((wire, dial)) = exchange {
        peer.options.tracer = Some(wire::tracer(wire));
        peer.options.custom_l4 = Some(Arc::new(dial));
    }
    Ok(peer)
}
