//! Connections the engine can end on purpose.
//!
//! hyper owns the socket of a connection, so a handler cannot reset it. Every socket is therefore
//! wrapped in a [`MockStream`] which looks at its [`Connection`] before each read and write and
//! fails when told to; hyper then drops the socket, with or without a reset. Nothing in here
//! knows HTTP.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// After what is being written: reads see the end of the stream.
    AfterResponse = 1,
    /// At once, with FIN.
    Close = 2,
    /// At once, with RST.
    Reset = 3,
}

/// One accepted connection, shared by its socket, its requests and the engine.
#[derive(Debug)]
pub(crate) struct Connection {
    /// 1 for the first connection of the engine.
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    ending: AtomicU8,
    waker: AtomicWaker,
    requests: AtomicUsize,
    last_activity: Mutex<Instant>,
}

impl Connection {
    /// Ends the connection; the last and strongest wish counts.
    pub(crate) fn end(&self, ending: Ending) {
        self.ending.fetch_max(ending as u8, Ordering::SeqCst);
        self.waker.wake();
    }

    fn is(&self, ending: Ending) -> bool {
        self.ending.load(Ordering::SeqCst) == ending as u8
    }

    fn is_over(&self) -> bool {
        self.is(Ending::Close) || self.is(Ending::Reset)
    }

    /// Marks a request in progress until the guard is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> BusyGuard {
        self.requests.fetch_add(1, Ordering::SeqCst);
        BusyGuard(self.clone())
    }

    fn touch(&self) {
        *self.last_activity.lock() = Instant::now();
    }

    fn is_idle_for(&self, limit: Duration) -> bool {
        self.requests.load(Ordering::SeqCst) == 0 && self.last_activity.lock().elapsed() >= limit
    }
}

/// Keeps a connection from counting as idle.
#[derive(Debug)]
#[must_use = "the connection counts as idle once this is dropped"]
pub(crate) struct BusyGuard(Arc<Connection>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// All open connections of one engine.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    open_count: watch::Sender<usize>,
    accepted: AtomicU64,
    closed: AtomicBool,
}

impl ConnectionTable {
    pub(crate) fn new() -> Self {
        Self {
            open: Mutex::new(HashMap::new()),
            open_count: watch::Sender::new(0),
            accepted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Takes a fresh socket into the table.
    pub(crate) fn wrap(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) -> MockStream {
        let connection = Arc::new(Connection {
            number: self.accepted.fetch_add(1, Ordering::SeqCst) + 1,
            peer,
            ending: AtomicU8::new(0),
            waker: AtomicWaker::new(),
            requests: AtomicUsize::new(0),
            last_activity: Mutex::new(Instant::now()),
        });
        self.change(|open| {
            open.insert(connection.number, connection.clone());
        });
        if self.closed.load(Ordering::SeqCst) {
            connection.end(Ending::Close);
        }
        MockStream {
            socket,
            connection,
            table: self.clone(),
        }
    }

    /// Connections accepted so far.
    pub(crate) fn total(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.open.lock().len()
    }

    /// Closes what has been idle for this long.
    pub(crate) fn close_idle(&self, limit: Duration) {
        for connection in self.open.lock().values() {
            if connection.is_idle_for(limit) {
                connection.end(Ending::Close);
            }
        }
    }

    /// Closes everything, now and from now on.
    pub(crate) fn close_all(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for connection in self.open.lock().values() {
            connection.end(Ending::Close);
        }
    }

    /// Waits until the last socket is gone.
    pub(crate) async fn wait_empty(&self) {
        let mut count = self.open_count.subscribe();
        // The sender is held by `self`, so waiting cannot fail.
        let _ = count.wait_for(|open| *open == 0).await;
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, Arc<Connection>>)) {
        let mut open = self.open.lock();
        change(&mut open);
        self.open_count.send_replace(open.len());
    }
}

/// A socket that obeys its [`Connection`].
#[derive(Debug)]
pub(crate) struct MockStream {
    socket: TcpStream,
    connection: Arc<Connection>,
    table: Arc<ConnectionTable>,
}

impl MockStream {
    pub(crate) fn connection(&self) -> Arc<Connection> {
        self.connection.clone()
    }

    /// Registers the task that has to notice an ending, then looks for one.
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.connection.waker.register(cx.waker());
        if self.connection.is_over() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for MockStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        if self.connection.is(Ending::AfterResponse) {
            return Poll::Ready(Ok(()));
        }
        let outcome = Pin::new(&mut self.socket).poll_read(cx, buf);
        if outcome.is_ready() {
            self.connection.touch();
        }
        outcome
    }
}

impl AsyncWrite for MockStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let outcome = Pin::new(&mut self.socket).poll_write(cx, data);
        if outcome.is_ready() {
            self.connection.touch();
        }
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, data);
        if outcome.is_ready() {
            self.connection.touch();
        }
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

impl Drop for MockStream {
    fn drop(&mut self) {
        if self.connection.is(Ending::Reset) {
            // A peer that is gone already needs no reset.
            let _ = self.socket.set_zero_linger();
        }
        self.table.change(|open| {
            open.remove(&self.connection.number);
        });
    }
}
