//! The client's connection, with Pingora's own refusals put into our words.
//!
//! A head that Pingora cannot parse (a bad length, too many fields, CONNECT) never reaches a hook;
//! Pingora writes a bare answer with its own `Server` header and closes. This wrapper recognises
//! that one write and sends the JSON envelope instead, and counts it. Everything else passes
//! untouched: no answer of ours or of an engine carries that header.
//! Source: contract §3, pingora-notes §5.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::headers;
use crate::server::ApiError;
use crate::server::app::App;
use crate::server::heads::OpenHead;

/// One client connection.
#[derive(Debug)]
pub(crate) struct ClientStream {
    /// Dropped before the socket.
    _head: OpenHead,
    inner: Stream,
    app: Arc<App>,
    /// Our words that replace a write in progress.
    instead: Option<Bytes>,
}

impl ClientStream {
    pub(crate) fn new(inner: Stream, head: OpenHead, app: Arc<App>) -> Self {
        Self {
            _head: head,
            inner,
            app,
            instead: None,
        }
    }
}

/// The status of a bare refusal that Pingora writes by itself.
fn bare_refusal(head: &[u8]) -> Option<u16> {
    if !head.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let own = b"\r\nServer: Pingora\r\n";
    head.windows(own.len())
        .find(|window| window.eq_ignore_ascii_case(own))?;
    std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()
}

/// The whole answer that stands for it.
fn envelope(status: u16) -> Bytes {
    let error = match status {
        405 => ApiError::MethodNotAllowed("GET, POST"),
        _ => ApiError::bad_request("invalid request: malformed or oversized head"),
    };
    let body = error.body();
    let allow = match &error {
        ApiError::MethodNotAllowed(allowed) => format!("allow: {allowed}\r\n"),
        _ => String::new(),
    };
    let reason = if status == 405 {
        "Method Not Allowed"
    } else {
        "Bad Request"
    };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-router-error-code: {}\r\nx-request-id: {}\r\n{allow}connection: close\r\n\r\n",
        error.status(),
        body.len(),
        error.code(),
        headers::mint_request_id(),
    );
    [head.as_bytes(), &body].concat().into()
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            let Some(status) = bare_refusal(bytes) else {
                return Pin::new(&mut this.inner).poll_write(cx, bytes);
            };
            this.app.metrics.request("unmatched", "other");
            this.app.metrics.response("unmatched", "other", status);
            this.instead = Some(envelope(status));
        }
        while let Some(rest) = this.instead.as_mut().filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut this.inner).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            rest.advance(written);
        }
        this.instead = None;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = pieces.iter().find(|piece| !piece.is_empty());
        if self.instead.is_some() || first.is_some_and(|first| bare_refusal(first).is_some()) {
            return self.poll_write(cx, first.map_or(&[], |first| first));
        }
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

// What Pingora asks of a connection beside bytes: passed on.

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        self.inner.shutdown().await;
    }
}

#[async_trait]
impl Peek for ClientStream {
    async fn try_peek(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        self.inner.try_peek(buffer).await
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for ClientStream {}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.inner.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.inner.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.inner.get_write_pending_time()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_pingoras_own_is_replaced() {
        let own = b"HTTP/1.1 400 Bad Request\r\nServer: Pingora\r\nDate: x\r\n\r\n";
        assert_eq!(bare_refusal(own), Some(400));
        let rows: [&[u8]; 4] = [
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nServer: Pingora\r\n\r\n",
            b"data: HTTP/1.1 400\r\nServer: Pingora\r\n",
            b"",
        ];
        for bytes in rows {
            assert_eq!(bare_refusal(bytes), None);
        }
    }

    #[test]
    fn the_envelope_is_a_whole_answer() {
        for (status, code) in [(400, "bad_request"), (405, "method_not_allowed")] {
            let answer = envelope(status);
            let text = std::str::from_utf8(&answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")));
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
            assert!(head.contains(&format!("x-router-error-code: {code}\r\n")));
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"]["code"], code);
        }
    }
}
