//! An engine that counts its probes and answers them as told.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{leaks, spawn};

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<u16>,
    then: u16,
    probes: HashMap<String, u32>,
}

/// A running one.
#[derive(Debug)]
pub(super) struct Probed {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

impl Probed {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        leaks::guard(address);
        let script = Arc::new(Mutex::new(Script {
            then: 200,
            ..Script::default()
        }));
        let shared = Arc::clone(&script);
        spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let script = Arc::clone(&shared);
                spawn(async move {
                    // The other side may leave at any point.
                    let _ = answer(socket, &script).await;
                });
            }
        });
        Self { address, script }
    }

    pub(super) fn entry(&self, id: &str) -> Value {
        json!({"id": id, "url": format!("http://{}", self.address), "role": "plain"})
    }

    /// From now on every probe gets this status.
    pub(super) fn answer(&self, status: u16) {
        let mut script = self.script.lock();
        script.next.clear();
        script.then = status;
    }

    /// The next probes get these; then the answer is as before.
    pub(super) fn script(&self, statuses: &[u16]) {
        self.script.lock().next.extend(statuses);
    }

    pub(super) fn script_is_over(&self) -> bool {
        self.script.lock().next.is_empty()
    }

    /// Probes of this path so far.
    pub(super) fn probes(&self, path: &str) -> u32 {
        let script = self.script.lock();
        script.probes.get(path).copied().unwrap_or(0)
    }
}

/// One request per connection; everything but a probe is answered with 200.
async fn answer(mut socket: TcpStream, script: &Mutex<Script>) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        if socket.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&bytes);
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let status = if method == "GET" && !matches!(path, "/server_info" | "/v1/loads") {
        let mut script = script.lock();
        *script.probes.entry(path.to_owned()).or_default() += 1;
        script.next.pop_front().unwrap_or(script.then)
    } else {
        200
    };
    let answer =
        format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await?;
    // What the proxy still sends must not become a reset.
    let mut rest = [0; 1024];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}
