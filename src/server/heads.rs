//! Client connections that owe a request head, and when each of them is ended for that.
//!
//! A timer per request would cost more than the limit is worth: it hardly ever runs out. Here a
//! connection writes down until when its head must be complete, in a slot that belongs to its
//! socket number, and the janitor looks a few times a second. A slot is closed before its socket
//! is, under the lock under which the janitor cuts, so a recycled number is never hit. It reads
//! nothing from sockets. Source: contract §2 `timeouts.client_header`.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use parking_lot::Mutex;
use tokio::time::Instant;

const SHARDS: usize = 64;

/// What is known of one socket number.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    open: bool,
    served: bool,
    until: Option<Instant>,
}

/// Every HTTP/1.1 client connection, in shards so that no lock is shared by all of them.
#[derive(Debug)]
pub struct Heads {
    shards: Vec<Mutex<Vec<Slot>>>,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

/// One open connection. To be dropped before its socket is closed.
#[derive(Debug)]
pub struct OpenHead {
    heads: Arc<Heads>,
    socket: RawFd,
}

impl Drop for OpenHead {
    fn drop(&mut self) {
        self.heads.with(self.socket, |slot| *slot = Slot::default());
    }
}

impl Heads {
    /// A connection is there, on this socket.
    #[must_use]
    pub fn open(self: &Arc<Self>, socket: RawFd) -> OpenHead {
        let open = Slot {
            open: true,
            ..Slot::default()
        };
        self.with(socket, |slot| *slot = open);
        OpenHead {
            heads: Arc::clone(self),
            socket,
        }
    }

    /// From `now` on a head is awaited on this socket, for as long as `head`, and for `idle` longer
    /// when the connection has carried a request before.
    pub fn awaited(&self, socket: RawFd, now: Instant, head: Duration, idle: Duration) {
        self.with(socket, |slot| {
            let idle = if slot.served { idle } else { Duration::ZERO };
            slot.until = slot.open.then(|| now + head + idle);
        });
    }

    /// The head is complete.
    pub fn complete(&self, socket: RawFd) {
        self.with(socket, |slot| {
            slot.served = true;
            slot.until = None;
        });
    }

    /// Ends every connection whose head is overdue at `now`; returns how many.
    pub fn sweep(&self, now: Instant) -> usize {
        let mut ended = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            for (row, slot) in shard.lock().iter_mut().enumerate() {
                if slot.until.is_some_and(|until| until <= now) {
                    slot.until = None;
                    ended += 1;
                    if let Ok(socket) = RawFd::try_from(row * SHARDS + number) {
                        // An error means that the client has gone already.
                        let _ = shutdown(socket, Shutdown::Both);
                    }
                }
            }
        }
        ended
    }

    fn with(&self, socket: RawFd, change: impl FnOnce(&mut Slot)) {
        let Ok(number) = usize::try_from(socket) else {
            return;
        };
        let mut shard = self.shards[number % SHARDS].lock();
        let row = number / SHARDS;
        if shard.len() <= row {
            shard.resize(row + 1, Slot::default());
        }
        change(&mut shard[row]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    const HEAD: Duration = Duration::from_secs(1);
    const IDLE: Duration = Duration::from_secs(75);

    /// Both ends of a connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        (client, server)
    }

    fn ended(mut client: &TcpStream) -> bool {
        matches!(client.read(&mut [0]), Ok(0))
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_and_the_next_one_may_idle_before() {
        let (client, server) = connection();
        let (heads, socket) = (Arc::<Heads>::default(), server.as_raw_fd());
        let _open = heads.open(socket);
        let now = Instant::now();
        heads.awaited(socket, now, HEAD, IDLE);
        let almost = HEAD - Duration::from_millis(1);
        assert_eq!(heads.sweep(now + almost), 0);
        heads.complete(socket);
        assert_eq!(heads.sweep(now + HEAD), 0);
        heads.awaited(socket, now, HEAD, IDLE);
        assert_eq!(heads.sweep(now + IDLE + almost), 0);
        assert!(!ended(&client));
        assert_eq!(heads.sweep(now + IDLE + HEAD), 1);
        assert_eq!(heads.sweep(now + IDLE + HEAD), 0, "once");
        assert!(ended(&client));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_is_forgotten_and_its_number_starts_afresh() {
        let (client, server) = connection();
        let (heads, socket) = (Arc::<Heads>::default(), server.as_raw_fd());
        let now = Instant::now();
        let open = heads.open(socket);
        heads.complete(socket);
        heads.awaited(socket, now, HEAD, IDLE);
        drop(open);
        heads.awaited(socket, now, HEAD, IDLE);
        assert_eq!(heads.sweep(now + IDLE + HEAD), 0, "nobody is there");
        let _next = heads.open(socket);
        heads.awaited(socket, now, HEAD, IDLE);
        assert_eq!(heads.sweep(now + HEAD), 1, "its first head may not idle");
        assert!(ended(&client));
    }
}
