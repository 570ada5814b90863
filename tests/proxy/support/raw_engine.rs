//! An engine that says exactly the bytes it is given, for answers that no decent server writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{leaks, pause, spawn};

/// What happens after a request has been read.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes these bytes.
    Say(Vec<u8>),
    /// Waits, milliseconds.
    Wait(u64),
    /// Says nothing more and keeps the connection until the other side ends it.
    Hold,
    /// Resets the connection (RST).
    Reset,
    /// Waits for the next request on the same connection and starts over.
    Again,
}

/// A running raw engine.
#[derive(Debug)]
pub(crate) struct RawEngine {
    pub(crate) address: SocketAddr,
    /// Requests read so far.
    pub(crate) requests: Arc<AtomicU32>,
}

/// Text to say.
pub(crate) fn say(text: &str) -> Step {
    Step::Say(text.as_bytes().to_vec())
}

/// Starts an engine that follows `script` for every request and then closes.
pub(crate) async fn start(script: Vec<Step>) -> RawEngine {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    leaks::guard(address);
    let requests = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&requests);
    spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (script, counter) = (script.clone(), Arc::clone(&counter));
            spawn(async move {
                // The other side may leave at any point.
                let _ = follow(socket, &script, &counter).await;
            });
        }
    });
    RawEngine { address, requests }
}

/// Starts an engine that answers at once and reads nothing of the body.
pub(crate) async fn start_deaf(answer: &'static str) -> RawEngine {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    leaks::guard(address);
    spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            spawn(async move {
                // The other side may leave at any point.
                let _ = socket.write_all(answer.as_bytes()).await;
                pause(1_000).await;
            });
        }
    });
    RawEngine {
        address,
        requests: Arc::default(),
    }
}

impl RawEngine {
    /// Settings with the one model `m` over this engine.
    pub(crate) fn settings(&self) -> Value {
        let url = format!("http://{}", self.address);
        json!({"models": [{
            "id": "m", "engines": {"static": [{"id": "raw", "url": url, "role": "plain"}]},
        }]})
    }

    pub(crate) fn seen(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn follow(mut socket: TcpStream, script: &[Step], seen: &AtomicU32) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    loop {
        let Some(chat) = read_request(&mut socket).await? else {
            return Ok(());
        };
        // The router also asks what an engine can do; only chats count.
        seen.fetch_add(u32::from(chat), Ordering::SeqCst);
        let mut again = false;
        for step in script {
            match step {
                Step::Say(bytes) => socket.write_all(bytes).await?,
                Step::Wait(milliseconds) => pause(*milliseconds).await,
                Step::Hold => {
                    let mut rest = [0; 1024];
                    while socket.read(&mut rest).await? > 0 {}
                    return Ok(());
                }
                Step::Reset => return socket.set_zero_linger(),
                Step::Again => again = true,
            }
        }
        if !again {
            return socket.shutdown().await;
        }
    }
}

/// Reads one request; whether it was a chat, or nothing when the peer has closed.
async fn read_request(socket: &mut TcpStream) -> std::io::Result<Option<bool>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.split("content-length:").nth(1);
            let length = length.and_then(|rest| rest.split("\r\n").next()?.trim().parse().ok());
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Ok(Some(bytes.starts_with(b"POST /v1/chat")));
            }
        }
        if socket.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}
