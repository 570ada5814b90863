//! The client ends of ZMQ that the router uses: SUB and DEALER.
//!
//! Built on a bounded reading of the protocol of our own, because no library has one: `zeromq`
//! 0.7 reserves whatever length a peer announces, so nine bytes from one engine abort the process.
//! Everything here can be dropped at any await point and leaves nothing behind: no task, no queue.
//! It binds no socket.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{setsockopt, sockopt};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::feeds::zmtp::{self, Decoder, Item, ZmtpError};
use crate::workers::TcpEndpoint;

/// First pause before connecting again; doubles up to [`MAX_BACK_OFF`]. Source: engine-wire §1.9.
pub const MIN_BACK_OFF: Duration = Duration::from_millis(50);
/// Longest pause. A connection that lived this long resets the pause.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(2);

/// For the connection and the handshake together.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Least room made before a read, bytes.
const READ: usize = 4096;

/// The frames of one message.
pub type Message = Vec<Bytes>;

/// Why a connection could not be made or ended.
#[derive(Debug, Error)]
pub enum ZmqError {
    /// The network said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer broke the protocol or a limit.
    #[error(transparent)]
    Protocol(#[from] ZmtpError),
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
    /// No connection, or no answer, in time.
    #[error("no answer in time")]
    Late,
    /// Nothing came for longer than a subscription accepts.
    #[error("silent for {} s", .0.as_secs())]
    Silent(Duration),
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    decoder: Decoder,
}

impl Connection {
    async fn open(
        endpoint: &TcpEndpoint,
        socket_type: &str,
        max_message: usize,
    ) -> Result<Self, ZmqError> {
        let handshake = async {
            let mut stream = TcpStream::connect(endpoint.host_and_port()).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            stream.write_all(&zmtp::greeting()).await?;
            let mut greeting = [0; zmtp::GREETING];
            stream.read_exact(&mut greeting).await?;
            zmtp::check_greeting(&greeting)?;
            stream.write_all(&zmtp::ready(socket_type)).await?;
            let mut connection = Self {
                stream,
                buffer: BytesMut::new(),
                decoder: Decoder::new(max_message),
            };
            match connection.item().await? {
                Item::Command(body) if zmtp::is_ready(&body) => Ok(connection),
                Item::Command(_) | Item::Message(_) => Err(ZmtpError::NotReady.into()),
            }
        };
        timeout(CONNECT_LIMIT, handshake)
            .await
            .unwrap_or(Err(ZmqError::Late))
    }

    /// The next thing the peer sends. Loses nothing when dropped while it waits.
    async fn item(&mut self) -> Result<Item, ZmqError> {
        loop {
            if let Some(item) = self.decoder.next(&mut self.buffer)? {
                return Ok(item);
            }
            // Grows with what has arrived, in the steps of the buffer itself.
            self.buffer.reserve(READ);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(ZmqError::Closed);
            }
        }
    }

    async fn message(&mut self) -> Result<Message, ZmqError> {
        loop {
            match self.item().await? {
                Item::Message(frames) => return Ok(frames),
                // A peer that speaks 3.0 sends none; nothing that we could need is in them.
                Item::Command(_) => {}
            }
        }
    }

    /// The socket, and what has come over it and was not asked for yet.
    ///
    /// # Errors
    /// The system does not let go of the socket.
    pub(super) fn into_parts(self) -> io::Result<(std::net::TcpStream, BytesMut)> {
        Ok((self.stream.into_std()?, self.buffer))
    }

    async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmqError> {
        Ok(self.stream.write_all(&zmtp::message(frames)).await?)
    }
}

/// Lets the kernel find out within half a minute that the other machine is gone.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &10)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &5)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    Ok(())
}

/// What a subscription has to tell.
#[derive(Debug)]
pub enum Event {
    /// Connected and subscribed; messages sent before are lost.
    Connected,
    /// A message.
    Message(Message),
    /// The connection ended or could not be made; the next attempt is due after the pause.
    Lost(ZmqError, Duration),
}

#[derive(Debug)]
enum State {
    Waiting(Instant),
    Open {
        connection: Connection,
        since: Instant,
    },
}

/// A SUB socket on one endpoint that connects again for ever, and ends when it is dropped.
#[derive(Debug)]
pub struct Subscription {
    endpoint: TcpEndpoint,
    topic: Bytes,
    max_message: usize,
    state: State,
    back_off: BackOff,
}

impl Subscription {
    /// A subscription to messages whose first frame starts with `topic` (empty: all), of at most
    /// `max_message` bytes. Connects when first asked for an event.
    #[must_use]
    pub fn new(endpoint: TcpEndpoint, topic: &str, max_message: usize) -> Self {
        Self {
            endpoint,
            topic: Bytes::copy_from_slice(topic.as_bytes()),
            max_message,
            state: State::Waiting(Instant::now()),
            back_off: BackOff::default(),
        }
    }

    /// The next event. Loses nothing when dropped while it waits, except an attempt to connect.
    pub async fn next(&mut self) -> Event {
        match &mut self.state {
            State::Waiting(until) => {
                tokio::time::sleep_until(*until).await;
                match subscribe(&self.endpoint, &self.topic, self.max_message).await {
                    Ok(connection) => {
                        let since = Instant::now();
                        self.state = State::Open { connection, since };
                        Event::Connected
                    }
                    Err(error) => self.lost(error, Duration::ZERO),
                }
            }
            State::Open { connection, since } => match connection.message().await {
                Ok(message) => Event::Message(message),
                Err(error) => {
                    let lived = since.elapsed();
                    self.lost(error, lived)
                }
            },
        }
    }

    fn lost(&mut self, error: ZmqError, lived: Duration) -> Event {
        let pause = self.back_off.after(lived);
        self.state = State::Waiting(Instant::now() + pause);
        Event::Lost(error, pause)
    }
}

/// A connection to a PUB that sends messages whose first frame starts with `topic`.
///
/// # Errors
/// [`ZmqError`].
pub(super) async fn subscribe(
    endpoint: &TcpEndpoint,
    topic: &[u8],
    max_message: usize,
) -> Result<Connection, ZmqError> {
    let mut connection = Connection::open(endpoint, "SUB", max_message).await?;
    connection.send(&[&[b"\x01", topic].concat()]).await?;
    Ok(connection)
}

/// The pauses between attempts to connect.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackOff(Duration);

impl Default for BackOff {
    fn default() -> Self {
        Self(MIN_BACK_OFF)
    }
}

impl BackOff {
    /// The pause after a connection that lived so long, zero for one that was not made.
    pub(super) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= MAX_BACK_OFF {
            self.0 = MIN_BACK_OFF;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_BACK_OFF);
        pause
    }
}

/// The replies to one request of a DEALER.
#[derive(Debug)]
pub struct Replies {
    connection: Connection,
    until: Instant,
}

/// Sends `request` to the ROUTER at `endpoint`; all replies must come within `limit` from now, each
/// of at most `max_message` bytes. Frames are sent as given, an empty delimiter included.
///
/// # Errors
/// [`ZmqError`].
pub async fn ask(
    endpoint: &TcpEndpoint,
    request: &[&[u8]],
    max_message: usize,
    limit: Duration,
) -> Result<Replies, ZmqError> {
    let until = Instant::now() + limit;
    let open = async {
        let mut connection = Connection::open(endpoint, "DEALER", max_message).await?;
        connection.send(request).await?;
        Ok(Replies { connection, until })
    };
    timeout_at(until, open).await.unwrap_or(Err(ZmqError::Late))
}

impl Replies {
    /// The next reply. The caller knows which one is the last.
    ///
    /// # Errors
    /// [`ZmqError`]; [`ZmqError::Late`] once the limit has passed.
    pub async fn next(&mut self) -> Result<Message, ZmqError> {
        timeout_at(self.until, self.connection.message())
            .await
            .unwrap_or(Err(ZmqError::Late))
    }
}

#[cfg(test)]
mod tests;
