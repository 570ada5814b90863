//! HTTP/1.1 written and read by hand, so that nothing is hidden and nothing repaired.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{LARGE, SOON, body, leaks, within};

/// How long a connection that should close may take.
const HANG_UP: Duration = Duration::from_secs(10);

/// How an answer's body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As announced: by length, or by the last chunk.
    Clean,
    /// The connection went away before that.
    Cut,
    /// By the end of the connection, which cannot be told from a cut.
    Unframed,
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
}

impl Answer {
    /// The only value of a header; twice is a fault.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice: {:?}", self.headers);
        value
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Whether the proxy says that it closes.
    pub(crate) fn says_close(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// A complete answer from an engine: its status, without our code header.
    #[track_caller]
    pub(crate) fn assert_engine(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("x-router-error-code"), None, "{}", self.text());
        assert_eq!(self.end, End::Clean);
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()));
        self
    }

    /// A refusal of this router: status, code in header and body, envelope, length, id.
    #[track_caller]
    pub(crate) fn assert_refusal(&self, status: u16, code: &str) -> &Self {
        assert_eq!(
            (self.status, self.header("x-router-error-code")),
            (status, Some(code)),
            "{}",
            self.text()
        );
        assert_eq!(self.header("content-type"), Some("application/json"));
        let length = self.body.len().to_string();
        assert_eq!(self.header("content-length"), Some(length.as_str()));
        assert_eq!(self.end, End::Clean);
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()));
        let value = self.json();
        let error = value["error"].as_object().expect("an envelope");
        assert_eq!(error["code"], code);
        let kind = if status < 500 {
            "invalid_request_error"
        } else {
            "server_error"
        };
        assert_eq!(error["type"], kind);
        assert!(!error["message"].as_str().expect("a message").is_empty());
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(1));
        let retry = self.header("retry-after").map(str::parse::<u64>);
        assert!(retry.is_none_or(|seconds| seconds.is_ok_and(|seconds| seconds > 0)));
        let waiting_helps = status == 503 && code != "worker_misconfigured";
        assert_eq!(
            self.header("retry-after").is_some(),
            waiting_helps,
            "{code}"
        );
        self
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let connecting = TcpStream::connect(address);
        let socket = within(SOON, "connect", connecting)
            .await
            .expect("the proxy accepts");
        Self::over(socket)
    }

    /// Speaks over a socket that is there already.
    pub(crate) fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).expect("an option of every socket");
        Self {
            socket,
            unread: Vec::new(),
        }
    }

    /// Sends bytes; the proxy must take them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.expect("the proxy takes it");
    }

    /// Sends bytes to a proxy that may have hung up.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(LARGE, "send", self.socket.write_all(bytes)).await
    }

    /// A chat with a length and its answer.
    pub(crate) async fn chat(&mut self, body: &[u8]) -> Answer {
        self.chat_with(body, "").await
    }

    /// The same with more header lines, each ended by CR LF.
    pub(crate) async fn chat_with(&mut self, body: &[u8], headers: &str) -> Answer {
        self.send(&body::with_length(body, headers)).await;
        self.answer().await
    }

    /// A request without a body and its answer.
    pub(crate) async fn call(&mut self, method: &str, path: &str) -> Answer {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: edge\r\n\r\n");
        self.send(request.as_bytes()).await;
        if method == "HEAD" {
            let answer = self.head(LARGE).await.expect("an answer");
            return answer;
        }
        self.answer().await
    }

    /// The final answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer")
    }

    /// The final answer; none when the connection ends before its head.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        loop {
            let mut answer = self.head(LARGE).await?;
            if answer.status >= 200 {
                self.body(&mut answer).await;
                return Some(answer);
            }
        }
    }

    /// The next head, an interim one included; its body is left unread.
    pub(crate) async fn head(&mut self, limit: Duration) -> Option<Answer> {
        let end = within(limit, "an answer's head", self.until(b"\r\n\r\n")).await?;
        let head: Vec<u8> = self.unread.drain(..end).collect();
        leaks::check(&head, b"");
        let text = String::from_utf8(head).expect("a readable head");
        let mut lines = text.trim_end().split("\r\n");
        let first = lines.next().expect("a status line");
        let status = first.split(' ').nth(1).expect("a status");
        assert!(first.starts_with("HTTP/1.1 "), "{first}");
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':').expect("a header");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        Some(Answer {
            status: status.parse().expect("a number"),
            headers: headers.collect(),
            body: Vec::new(),
            end: End::Cut,
        })
    }

    /// Reads the body that belongs to a head.
    pub(crate) async fn body(&mut self, answer: &mut Answer) {
        let length = answer.header("content-length").map(str::to_owned);
        let is_chunked = answer.header("transfer-encoding") == Some("chunked");
        assert!(
            !(is_chunked && length.is_some()),
            "two framings: {:?}",
            answer.headers
        );
        if matches!(answer.status, 204 | 304) {
            answer.end = End::Clean;
        } else if is_chunked {
            while let Some(chunk) = self.chunk().await {
                if chunk.is_empty() {
                    answer.end = End::Clean;
                    break;
                }
                answer.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = length {
            let length: usize = length.parse().expect("a length");
            if self.fill(length).await {
                answer.end = End::Clean;
            }
            let length = length.min(self.unread.len());
            answer.body = self.unread.drain(..length).collect();
        } else {
            while self.more().await {}
            answer.body = std::mem::take(&mut self.unread);
            answer.end = End::Unframed;
        }
        leaks::check(b"", &answer.body);
    }

    /// One chunk, empty for the last one; none when the connection ends instead.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.until(b"\r\n").await?;
        let size = std::str::from_utf8(&self.unread[..line - 2]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a hexadecimal size");
        if !self.fill(line + size + 2).await {
            return None;
        }
        self.unread.drain(..line);
        let mut chunk: Vec<u8> = self.unread.drain(..size + 2).collect();
        chunk.truncate(size);
        Some(chunk)
    }

    /// Waits for the proxy to hang up; false when it sends something instead, or does not.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let reading = self.socket.read_buf(&mut self.unread);
        let read = tokio::time::timeout(HANG_UP, reading).await;
        matches!(read, Ok(Ok(0) | Err(_))) && self.unread.is_empty()
    }

    /// True when nothing arrives for a while.
    pub(crate) async fn is_silent(&mut self, for_ms: u64) -> bool {
        let mut byte = [0];
        let wait = Duration::from_millis(for_ms);
        let peek = tokio::time::timeout(wait, self.socket.peek(&mut byte)).await;
        peek.is_err() && self.unread.is_empty()
    }

    /// After `answer`: a connection that was said to stay serves on, one that was said to close
    /// closes.
    pub(crate) async fn assert_honest(&mut self, answer: &Answer) {
        if answer.says_close() {
            assert!(self.is_closed().await, "said close and goes on");
            return;
        }
        let next = self.call("GET", "/healthz").await;
        assert_eq!(next.status, 200, "said keep-alive after {}", answer.text());
    }

    /// After `answer`: the connection serves on.
    pub(crate) async fn assert_kept(&mut self, answer: &Answer) {
        assert!(!answer.says_close(), "{} closes", answer.status);
        self.assert_honest(answer).await;
    }

    /// Where `needle` ends in what has come; none when the connection ends before.
    async fn until(&mut self, needle: &[u8]) -> Option<usize> {
        let mut seen = 0;
        loop {
            let found = self.unread[seen..]
                .windows(needle.len())
                .position(|window| window == needle);
            if let Some(at) = found {
                return Some(seen + at + needle.len());
            }
            seen = self.unread.len().saturating_sub(needle.len());
            if !self.more().await {
                return None;
            }
        }
    }

    async fn fill(&mut self, length: usize) -> bool {
        while self.unread.len() < length {
            if !self.more().await {
                return false;
            }
        }
        true
    }

    /// Reads a piece; false at the end, however it comes.
    async fn more(&mut self) -> bool {
        let reading = self.socket.read_buf(&mut self.unread);
        matches!(within(LARGE, "read", reading).await, Ok(count) if count > 0)
    }
}
