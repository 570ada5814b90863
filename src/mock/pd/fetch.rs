//! The decode side: asking a bootstrap server until the cache of a room has come.
//!
//! A dozen lines of HTTP/1.1 by hand: one fixed request, one status line to read.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest single question; a lost connection is noticed after this at the latest.
const POLL: Duration = Duration::from_secs(10);
/// Pause after a question that failed.
const RETRY: Duration = Duration::from_millis(20);

/// Returns when the cache of `room` has been fetched from the prefill engine whose bootstrap
/// server is at `host` (IPv6 with or without brackets) and `port`. Never gives up; the caller
/// has the time-out.
pub(crate) async fn fetch_kv(host: &str, port: u16, room: u64) {
    loop {
        match ask(host, port, room).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(host, port, room, %error, "no answer from the bootstrap server");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// One question: is it there?
async fn ask(host: &str, port: u16, room: u64) -> io::Result<bool> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut socket = TcpStream::connect((bare, port)).await?;
    let request = format!(
        "GET /mock/room/{room}?wait_ms={wait} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n",
        wait = POLL.as_millis(),
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await?;
    let head = String::from_utf8_lossy(&answer);
    match head.split(' ').nth(1) {
        Some("200") => Ok(true),
        Some("204") => Ok(false),
        _ => Err(io::Error::other("not a bootstrap server")),
    }
}
