//! Breaking off an engine connection from another task.
//!
//! Pingora polls no hook while it waits for an engine's headers, so a failed prefill leg or an
//! expired limit must wake the request by ending its socket. A [`Wire`] knows the socket number
//! only while the socket is open: Pingora's tracer callback takes the number back, under the same
//! lock, before the socket is closed, so a recycled number can never be hit. Works for HTTP/1.1
//! connections, which one request owns at a time; never used for shared HTTP/2 ones.
//! Source: pingora-notes §4.

use std::os::fd::RawFd;
use std::sync::Arc;

use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use parking_lot::Mutex;
use pingora::upstreams::peer::{Tracer, Tracing};

use crate::server::live::Cut;

/// One engine connection, from connect to close.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    fd: Mutex<Option<RawFd>>,
}

impl Cut for Wire {
    fn cut(&self) {
        if let Some(fd) = *self.fd.lock() {
            // An error means that the peer has gone already, which is what was wanted.
            let _ = shutdown(fd, Shutdown::Both);
        }
    }

    fn unread(&self) -> bool {
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let fd = self.fd.lock();
        fd.is_some_and(|fd| recv(fd, &mut [0; 1], look).is_ok_and(|read| read > 0))
    }
}

/// Tells a wire when its socket goes.
#[derive(Debug, Clone)]
struct WireTracer(Arc<Wire>);

impl Tracing for WireTracer {
    fn on_connected(&self) {}

    fn on_disconnected(&self) {
        *self.0.fd.lock() = None;
    }

    fn boxed_clone(&self) -> Box<dyn Tracing> {
        Box::new(self.clone())
    }
}

/// The tracer to put on a peer, in case the connection is made for this request.
pub(crate) fn tracer(wire: &Arc<Wire>) -> Tracer {
    Tracer(Box::new(WireTracer(Arc::clone(wire))))
}

/// Wires of open connections by socket number, so that a request on a reused connection finds the
/// wire that was made with it.
#[derive(Debug)]
pub(crate) struct WireTable {
    shards: Vec<Mutex<Vec<Option<Arc<Wire>>>>>,
}

const SHARDS: usize = 64;

impl Default for WireTable {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl WireTable {
    /// The wire of the connection on `fd`. `new` is the wire whose tracer the peer carried; it is
    /// the connection's own when the connection was made just now.
    pub(crate) fn attach(&self, fd: RawFd, reused: bool, new: &Arc<Wire>) -> Arc<Wire> {
        let number = usize::try_from(fd).unwrap_or_default();
        let mut shard = self.shards[number % SHARDS].lock();
        let slot = number / SHARDS;
        if shard.len() <= slot {
            shard.resize(slot + 1, None);
        }
        if reused && let Some(wire) = &shard[slot] {
            return Arc::clone(wire);
        }
        *new.fd.lock() = Some(fd);
        shard[slot] = Some(Arc::clone(new));
        Arc::clone(new)
    }
}
