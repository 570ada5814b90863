//! Connecting to an engine while somebody still wants the answer.
//!
//! Pingora watches the client while it relays, but not while it connects. This connector looks at
//! the client's socket a few times a second meanwhile, without reading from it, and gives up when
//! the client has closed. It can see that of an HTTP/1.1 client whose request has been read to its
//! end; for others the connect limit is the bound. Source: field-lessons L01, pingora-notes §0.7.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::{Error, ErrorType, OrErr, Result};
use tokio::net::TcpStream;

use crate::server::live::{EndCause, Exchange};

/// How often the client is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Connects for one exchange.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) client: Option<RawFd>,
    pub(crate) limit: Duration,
}

#[async_trait]
impl L4Connect for Dial {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let SocketAddr::Inet(address) = address else {
            return Err(Error::new(ErrorType::InternalError));
        };
        let mut connecting = std::pin::pin!(TcpStream::connect(address));
        let deadline = tokio::time::Instant::now() + self.limit;
        loop {
            let look = (tokio::time::Instant::now() + LOOK).min(deadline);
            match tokio::time::timeout_at(look, &mut connecting).await {
                Ok(connected) => {
                    return connected
                        .map(Stream::from)
                        .or_err(ErrorType::ConnectError, "connecting to an engine");
                }
                Err(_) if self.client.is_some_and(closed) => {
                    self.exchange.end(EndCause::ClientGone);
                    return Err(Error::new_down(ErrorType::ConnectionClosed));
                }
                Err(_) if self.exchange.cause().is_some() => {
                    return Err(Error::new(ErrorType::ConnectionClosed));
                }
                Err(_) if look >= deadline => return Err(Error::new(ErrorType::ConnectTimedout)),
                Err(_) => {}
            }
        }
    }
}

/// Whether the peer of this socket has closed; looks without taking anything.
fn closed(client: RawFd) -> bool {
    let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match recv(client, &mut [0_u8; 1], look) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error, Errno::EAGAIN | Errno::EINTR),
    }
}
