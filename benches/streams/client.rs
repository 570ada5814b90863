//! One client connection: a chat whose answer is a stream, read as HTTP/1.1 and as server-sent events.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// For one short answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A request for a stream.
#[derive(Debug)]
pub(crate) struct Chat {
    bytes: Vec<u8>,
    /// How many tokens its answer has.
    tokens: usize,
}

impl Chat {
    /// An engine says its prompt again, up to `max_tokens` words of it.
    pub(crate) fn new(tokens: usize) -> Self {
        let words = vec!["word"; tokens].join(" ");
        let body = format!(
            r#"{{"model":"demo","stream":true,"max_tokens":{tokens},"messages":[{{"role":"user","content":"{words}"}}]}}"#
        );
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        Self {
            bytes: (head + &body).into_bytes(),
            tokens,
        }
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Token,
    Done,
    Other,
}

/// A connection that is kept.
#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    /// As it came.
    raw: Vec<u8>,
    /// Without the framing of chunks; begins with the next event.
    text: Vec<u8>,
}

impl Client {
    /// # Errors
    /// No connection.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, String> {
        let socket = TcpStream::connect(address).await;
        let socket = socket.map_err(|error| format!("connect: {error}"))?;
        socket
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            socket,
            raw: Vec::new(),
            text: Vec::new(),
        })
    }

    /// Sends a chat and reads its answer to the end; `arrived` is told of every token.
    ///
    /// # Errors
    /// Anything but a complete answer.
    pub(crate) async fn chat(
        &mut self,
        chat: &Chat,
        mut arrived: impl FnMut(Instant),
    ) -> Result<(), String> {
        let sent = self.socket.write_all(&chat.bytes).await;
        sent.map_err(|error| format!("write: {error}"))?;
        self.head().await?;
        let (mut tokens, mut done) = (0, false);
        while self.chunk().await? {
            let now = Instant::now();
            while let Some(event) = self.event() {
                match event {
                    Event::Token => {
                        tokens += 1;
                        arrived(now);
                    }
                    Event::Done => done = true,
                    Event::Other => {}
                }
            }
        }
        if tokens == chat.tokens && done && self.text.is_empty() && self.raw.is_empty() {
            return Ok(());
        }
        let wanted = chat.tokens;
        Err(format!("{tokens} of {wanted} tokens, [DONE]: {done}"))
    }

    /// Reads more.
    async fn more(&mut self) -> Result<(), String> {
        self.raw.reserve(2_048);
        match self.socket.read_buf(&mut self.raw).await {
            Ok(0) => Err("cut".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("read: {error}")),
        }
    }

    async fn head(&mut self) -> Result<(), String> {
        let end = loop {
            match memmem::find(&self.raw, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more().await?,
            }
        };
        let head = String::from_utf8_lossy(&self.raw[..end]).to_ascii_lowercase();
        self.raw.drain(..end);
        if head.starts_with("http/1.1 200") && head.contains("transfer-encoding: chunked") {
            return Ok(());
        }
        Err(head.lines().next().unwrap_or_default().to_owned())
    }

    /// Moves the next chunk to `text`; false after the last one.
    async fn chunk(&mut self) -> Result<bool, String> {
        loop {
            if let Some((size, line)) = chunk_size(&self.raw)? {
                let end = line + size + 2;
                if self.raw.len() >= end {
                    self.text.extend_from_slice(&self.raw[line..line + size]);
                    self.raw.drain(..end);
                    return Ok(size > 0);
                }
            }
            self.more().await?;
        }
    }

    fn event(&mut self) -> Option<Event> {
        let end = memmem::find(&self.text, b"\n\n")?;
        let said = &self.text[..end];
        // The first event has an empty content, the last but one has none.
        let content = memmem::find(said, b"\"content\":\"");
        let event = match content {
            _ if said == b"data: [DONE]" => Event::Done,
            Some(at) if said.get(at + 11) != Some(&b'"') => Event::Token,
            _ => Event::Other,
        };
        self.text.drain(..end + 2);
        Some(event)
    }
}

/// Size of the chunk that begins here, and of the line that says so.
fn chunk_size(raw: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let Some(end) = memmem::find(raw, b"\r\n") else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(&raw[..end]).unwrap_or_default();
    let size = usize::from_str_radix(digits, 16);
    let size = size.map_err(|_| format!("no chunk: {digits:?}"))?;
    Ok(Some((size, end + 2)))
}

/// One chat on a connection of its own, which is returned.
///
/// # Errors
/// Anything but a complete answer within ten seconds.
pub(crate) async fn once(address: SocketAddr, chat: &Chat) -> Result<Client, String> {
    let exchange = async {
        let mut client = Client::connect(address).await?;
        client.chat(chat, |_| ()).await?;
        Ok(client)
    };
    let answered = tokio::time::timeout(LIMIT, exchange).await;
    answered.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}
