//! The accepting side: a listener that can vanish and come back on the same address.
//!
//! Axum serves the connections (HTTP/1.1, or HTTP/2 with prior knowledge); this file only
//! decides whether there is a socket to connect to.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::conn::{Connection, ConnectionTable, MockStream};
use super::faults::{Faults, FaultsHandle};

/// Pause before an accept or a bind that failed is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The connection a request came on, for handlers.
#[derive(Clone)]
pub(crate) struct ConnectionInfo(pub(crate) Arc<Connection>);

impl fmt::Debug for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} from {}", self.0.number, self.0.peer)
    }
}

impl Connected<IncomingStream<'_, MockListener>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, MockListener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// Accepts into a [`ConnectionTable`], unless `refuse_connections` is on.
#[derive(Debug)]
pub(crate) struct MockListener {
    address: SocketAddr,
    socket: Option<TcpListener>,
    /// Keeps the port ours while nobody listens: else the next engine or client gets it.
    _port: TcpSocket,
    table: Arc<ConnectionTable>,
    handle: FaultsHandle,
    faults: watch::Receiver<Faults>,
}

impl MockListener {
    /// Binds at once; a port that is taken is an error.
    pub(crate) async fn bind(
        address: SocketAddr,
        table: Arc<ConnectionTable>,
        handle: FaultsHandle,
    ) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        };
        let port = bound(address).map_err(named)?;
        let address = port.local_addr()?;
        let socket = bound(address).and_then(listening).map_err(named)?;
        Ok(Self {
            address,
            socket: Some(socket),
            _port: port,
            faults: handle.subscribe(),
            table,
            handle,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until connections are wanted again, then listens again.
    async fn pause(&mut self) {
        self.socket = None;
        self.handle.set_listening(false);
        loop {
            let (refuse, limit) = {
                let faults = self.faults.borrow_and_update();
                (faults.refuse_connections, faults.refuse_for_ms)
            };
            if !refuse {
                match bound(self.address).and_then(listening) {
                    Ok(socket) => {
                        self.socket = Some(socket);
                        self.handle.set_listening(true);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(address = %self.address, %error, "cannot listen again");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            } else if let Some(limit) = limit {
                let limit = Duration::from_millis(limit);
                if tokio::time::timeout(limit, self.faults.changed())
                    .await
                    .is_err()
                {
                    self.handle.update(|faults| {
                        faults.refuse_connections = false;
                        faults.refuse_for_ms = None;
                    });
                }
            } else if self.faults.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn next(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let socket = self.socket.as_ref()?;
        if self.faults.borrow_and_update().refuse_connections {
            return None;
        }
        tokio::select! {
            biased;
            _ = self.faults.changed() => None,
            accepted = socket.accept() => match accepted {
                Ok(accepted) => Some(accepted),
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "accept failed");
                    tokio::time::sleep(RETRY).await;
                    None
                }
            },
        }
    }
}

/// Two sockets may have an address if both say so and only one of them listens.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listening(socket: TcpSocket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)
}

impl Listener for MockListener {
    type Io = MockStream;
    type Addr = ConnectionInfo;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Some((socket, peer)) = self.next().await {
                // A token must leave at once; without this the kernel may hold small writes.
                let _ = socket.set_nodelay(true);
                let stream = self.table.wrap(socket, peer);
                let info = ConnectionInfo(stream.connection());
                return (stream, info);
            }
            if self.socket.is_none() || self.faults.borrow().refuse_connections {
                self.pause().await;
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Err(io::Error::other(
            "the address of a mock listener is not a connection",
        ))
    }
}

/// Closes idle connections while `close_idle_after_ms` is set; runs as long as the engine.
pub(crate) async fn reap_idle(table: Arc<ConnectionTable>, mut faults: watch::Receiver<Faults>) {
    loop {
        let limit = faults.borrow_and_update().close_idle_after_ms;
        if let Some(limit) = limit {
            table.close_idle(Duration::from_millis(limit));
            tokio::time::sleep(Duration::from_millis((limit / 4).clamp(1, 50))).await;
        } else if faults.changed().await.is_err() {
            return;
        }
    }
}
