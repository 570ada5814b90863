//! Requests that this router makes to engines itself: prefill legs, aborts, health checks,
//! admin calls.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::Connector;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use crate::proxy::peer;
use crate::server::routing::Routing;
use crate::server::secrets::Secrets;
use crate::workers::Worker;

/// Runs `work` beside the request that starts it, on the same runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that starts request work of its own; it is bounded by its own limits"
)]
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// The head of a call of this router's own: `Host`, the engines' credential where the model has one,
/// else `given`, and for a `body` its framing. A client's key goes in `given` only where the call is
/// about that client's request. Source: field-lessons L34.
///
/// # Errors
/// A path or value that no head can hold.
pub(crate) fn head(
    method: &str,
    path: &str,
    engine: &Worker,
    secrets: &Secrets,
    given: Option<HeaderValue>,
    body: Option<&Bytes>,
) -> Result<RequestHeader> {
    let mut head = RequestHeader::build(method, path.as_bytes(), Some(4))?;
    head.insert_header(header::HOST, engine.url().authority())?;
    if let Some(body) = body {
        head.insert_header(header::CONTENT_TYPE, "application/json")?;
        head.insert_header(header::CONTENT_LENGTH, body.len())?;
    }
    let own = secrets.for_engines(engine.model()).cloned();
    if let Some(authorization) = own.or(given) {
        head.insert_header(header::AUTHORIZATION, authorization)?;
    }
    Ok(head)
}

/// Sends requests of this router's own through a connection pool beside the proxy's.
#[derive(Clone)]
pub(crate) struct EngineClient {
    connector: Arc<Connector>,
}

impl fmt::Debug for EngineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineClient").finish_non_exhaustive()
    }
}

impl EngineClient {
    /// A client with pools sized like the proxy's.
    pub(crate) fn new(conf: &ServerConf) -> Self {
        let options = ConnectorOptions::from_server_conf(conf);
        Self {
            connector: Arc::new(Connector::new(Some(options))),
        }
    }

    /// Takes a pooled connection to `peer` or makes one, with the peer's timeouts.
    ///
    /// # Errors
    /// The engine cannot be reached.
    pub(crate) async fn open(&self, peer: &HttpPeer) -> Result<Call> {
        let (mut session, _reused) = self.connector.get_http_session(peer).await?;
        session.set_read_timeout(peer.options.read_timeout);
        session.set_write_timeout(peer.options.write_timeout);
        Ok(Call { session })
    }

    /// Gives a connection back after a complete answer.
    pub(crate) async fn release(&self, call: Call, peer: &HttpPeer) {
        self.connector
            .release_http_session(call.session, peer, peer.options.idle_timeout)
            .await;
    }

    /// `GET path` of `engine`: status and body.
    ///
    /// # Errors
    /// The engine cannot be reached, breaks off, or answers with more than `most` bytes.
    pub(crate) async fn get(
        &self,
        routing: &Routing,
        engine: &Worker,
        path: &str,
        most: usize,
    ) -> Result<(u16, Vec<u8>)> {
        let peer = peer::http1(engine, &routing.config.timeouts)?;
        let head = head("GET", path, engine, &routing.secrets, None, None)?;
        let mut call = self.open(&peer).await?;
        call.request(head, Bytes::new()).await?;
        let status = call.answer_head().await?.status.as_u16();
        let mut body = Vec::new();
        while let Some(piece) = call.piece().await? {
            if body.len() + piece.len() > most {
                return Err(Error::new_up(ErrorType::ReadError));
            }
            body.extend_from_slice(&piece);
        }
        self.release(call, &peer).await;
        Ok((status, body))
    }

    /// One small request and its answer's status; the body is drained up to 64 KiB.
    ///
    /// # Errors
    /// The engine cannot be reached, closes, or takes longer than `limit`.
    pub(crate) async fn simple(
        &self,
        peer: &HttpPeer,
        head: RequestHeader,
        body: Bytes,
        limit: Duration,
    ) -> Result<u16> {
        let exchange = async {
            let mut call = self.open(peer).await?;
            call.request(head, body).await?;
            let status = call.answer_head().await?.status.as_u16();
            let mut left = 64 * 1024_usize;
            while let Some(piece) = call.piece().await? {
                if piece.len() > left {
                    return Ok(status);
                }
                left -= piece.len();
            }
            self.release(call, peer).await;
            Ok(status)
        };
        tokio::time::timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(Error::new_up(ErrorType::ReadTimedout)))
    }
}

/// One request in progress.
pub(crate) struct Call {
    session: HttpSession,
}

impl Call {
    /// Sends the whole request.
    ///
    /// # Errors
    /// The engine does not take it.
    pub(crate) async fn request(&mut self, head: RequestHeader, body: Bytes) -> Result<()> {
        self.session.write_request_header(Box::new(head)).await?;
        if !body.is_empty() {
            self.session.write_request_body(body, true).await?;
        }
        self.session.finish_request_body().await
    }

    /// Waits for the head of the answer; interim answers are skipped.
    ///
    /// # Errors
    /// The engine closes or stays silent.
    pub(crate) async fn answer_head(&mut self) -> Result<&ResponseHeader> {
        while self.head().is_none() {
            self.session.read_response_header().await?;
        }
        self.head()
            .ok_or_else(|| Error::new_up(ErrorType::InvalidHTTPHeader))
    }

    /// The head of the answer, once it has come.
    fn head(&self) -> Option<&ResponseHeader> {
        let head = self.session.response_header()?;
        (!head.status.is_informational()).then_some(head)
    }

    /// The next piece of the answer's body, none at its end.
    ///
    /// # Errors
    /// The body is cut.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>> {
        self.session.read_response_body().await
    }
}
