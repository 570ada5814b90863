//! The door of the data listener: one HTTP application around Pingora's proxy.
//!
//! Counts connections against `limits.max_connections`. Bounds the time for a request head, which
//! Pingora bounds only per read, and the idle time of a connection with it ([`Heads`]): the janitor
//! ends a connection whose head is overdue. Source: contract §2 `timeouts.client_header`,
//! pingora-notes §11.
//!
//! [`Heads`]: crate::server::heads::Heads

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::proxy::client_stream::ClientStream;
use crate::proxy::{CLIENT_KEEPALIVE_SECS, EdgeProxy};
use crate::server::app::App;

/// The data listener's application: counts connections, tells HTTP/2 from HTTP/1.1, then hands
/// them to [`Entry`].
#[derive(Debug)]
pub struct Door {
    http1: Arc<Entry>,
    http2: Arc<Entry>,
    app: Arc<App>,
}

impl Door {
    /// A door that obeys `limits.max_connections` and `timeouts.client_header` of the active
    /// configuration.
    #[must_use]
    pub fn new(proxy: HttpProxy<EdgeProxy>, app: Arc<App>) -> Self {
        let proxy = Arc::new(proxy);
        let entry = |h2c| {
            let mut options = HttpServerOptions::default();
            options.h2c = h2c;
            options.h2_idle_timeout = Some(Duration::from_secs(CLIENT_KEEPALIVE_SECS));
            Arc::new(Entry {
                proxy: Arc::clone(&proxy),
                app: Arc::clone(&app),
                options,
            })
        };
        Self {
            http1: entry(false),
            http2: entry(true),
            app,
        }
    }

    /// The entry for what a connection begins with. Pingora's own look waits for 24 bytes, which
    /// a short HTTP/1 request never sends, and without a limit; three bytes tell the two apart.
    async fn entry(&self, connection: &mut Stream) -> std::io::Result<&Arc<Entry>> {
        let mut start = [0; 3];
        connection.try_peek(&mut start).await?;
        if &start != b"PRI" {
            return Ok(&self.http1);
        }
        connection.try_peek(&mut [0; H2_PREFACE_BYTES]).await?;
        Ok(&self.http2)
    }
}

#[async_trait]
impl ServerApp for Door {
    async fn process_new(
        self: &Arc<Self>,
        mut connection: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let mut share = self.app.connections.share();
        let config = Arc::clone(&self.app.routing().config);
        if !share.grow(1, config.limits.max_connections) {
            // Nobody reads a request here, so this is all a client can be told.
            let _ = connection.write_all(FULL).await;
            let _ = connection.flush().await;
            return None;
        }
        let entry = self.entry(&mut connection);
        let entry = tokio::time::timeout(config.timeouts.client_header, entry).await;
        let entry = entry.ok()?.ok()?;
        if !entry.options.h2c {
            let head = self.app.heads.open(connection.id());
            connection = Box::new(ClientStream::new(connection, head, Arc::clone(&self.app)));
        }
        entry.process_new(connection, shutdown).await
    }

    async fn cleanup(&self) {
        self.http1.http_cleanup().await;
    }
}

/// Length of the bytes that begin an HTTP/2 connection.
const H2_PREFACE_BYTES: usize = 24;

/// What a connection beyond the cap gets.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
x-router-error-code: overloaded\r\nretry-after: 1\r\ncontent-length: 99\r\nconnection: close\r\n\r\n\
{\"error\":{\"type\":\"server_error\",\"code\":\"overloaded\",\"message\":\"too many connections\",\"param\":null}}";

/// Pingora's proxy behind a head deadline.
pub struct Entry {
    proxy: Arc<HttpProxy<EdgeProxy>>,
    app: Arc<App>,
    options: HttpServerOptions,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpServerApp for Entry {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() {
            // Its head came whole, in a frame.
            return self.proxy.process_new_http(session, shutdown).await;
        }
        let socket = session.as_http1().map(|http1| http1.stream().id());
        if let Some(socket) = socket {
            // A reused connection may idle before its next head begins.
            let idle = Duration::from_secs(CLIENT_KEEPALIVE_SECS);
            let head = self.app.routing().config.timeouts.client_header;
            self.app.heads.awaited(socket, Instant::now(), head, idle);
        }
        self.proxy.process_new_http(session, shutdown).await
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options.clone()
    }

    async fn http_cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

#[cfg(test)]
mod tests {
    use super::FULL;

    #[test]
    fn the_answer_beyond_the_cap_has_the_right_length() {
        let text = std::str::from_utf8(FULL).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let announced = format!("content-length: {}\r\n", body.len());
        assert!(head.contains(&announced), "{} {head}", body.len());
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
