//! A client of a few lines: HTTP/1.1 written and read by hand, so that nothing is hidden.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::mock::{Engine, EngineConfig, start};

/// An answer; `whole` is false when it broke off.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
    pub(super) whole: bool,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The data of each event.
    pub(super) fn events(&self) -> Vec<String> {
        let events = self.body.split("\n\n").filter(|event| !event.is_empty());
        events
            .map(|event| event.strip_prefix("data: ").unwrap_or(event).to_owned())
            .collect()
    }

    /// The text of choice 0, put together from the events.
    pub(super) fn streamed_text(&self) -> String {
        let chunks = self.events();
        let deltas = chunks
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok());
        deltas
            .filter(|chunk| chunk["choices"][0]["index"] == 0)
            .filter_map(|chunk| {
                let content = &chunk["choices"][0]["delta"]["content"];
                Some(content.as_str()?.to_owned())
            })
            .collect()
    }

    /// `finish_reason` of the last chunk that has one.
    pub(super) fn streamed_finish(&self) -> Option<String> {
        self.events().iter().rev().find_map(|event| {
            let chunk: Value = serde_json::from_str(event).ok()?;
            let reason = &chunk["choices"][0]["finish_reason"];
            Some(reason.as_str()?.to_owned())
        })
    }
}

pub(super) async fn engine() -> Engine {
    start(EngineConfig::default()).await.unwrap()
}

pub(super) fn user(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

pub(super) fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The bytes of a chat request on a connection of its own.
pub(super) fn chat_bytes(body: &Value, headers: &str) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request and leaves the connection to the caller.
pub(super) async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

/// Reads until `needle` has come.
pub(super) async fn read_until(socket: &mut TcpStream, needle: &str) -> String {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(needle) {
        let count = socket.read(&mut piece).await.unwrap();
        assert_ne!(count, 0, "ended before `{needle}`");
        seen.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(seen).unwrap()
}

/// Reads everything; `None` for an answer without a head.
pub(super) async fn receive(mut socket: TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    let clean = socket.read_to_end(&mut bytes).await.is_ok();
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let rest = &bytes[split + 4..];
    let (body, complete) = if head.contains("transfer-encoding: chunked") {
        unchunk(rest)
    } else {
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|text| text.split("\r\n").next()?.parse().ok());
        (rest.to_vec(), length.is_none_or(|l: usize| l == rest.len()))
    };
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().unwrap(),
        head,
        body: String::from_utf8(body).unwrap(),
        whole: clean && complete,
    })
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
    (body, false)
}

/// One chat request, one answer.
pub(super) async fn chat(engine: &Engine, body: &Value, headers: &str) -> Option<Answer> {
    receive(send(engine.addr(), &chat_bytes(body, headers)).await).await
}

/// The same where an answer is certain.
pub(super) async fn answer(engine: &Engine, body: &Value, headers: &str) -> Answer {
    chat(engine, body, headers).await.expect("an answer")
}

pub(super) async fn get(engine: &Engine, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n");
    let socket = send(engine.addr(), request.as_bytes()).await;
    receive(socket).await.expect("an answer")
}

pub(super) async fn post(engine: &Engine, path: &str, body: &str) -> Answer {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let socket = send(engine.addr(), request.as_bytes()).await;
    receive(socket).await.expect("an answer")
}

/// Waits until something has become true; the test hangs visibly if it never does.
pub(super) async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_true() {
            return;
        }
        // A real sleep: the event comes from another task over a real socket.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}
