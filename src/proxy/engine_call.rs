//! Requests that this router makes to engines itself: prefill legs, health checks, admin calls.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{Error, ErrorType, Result};

/// Runs `work` beside the request that starts it, on the same runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that starts request work of its own; it is bounded by its own limits"
)]
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// One request in progress.
pub(crate) struct Call {
    session: HttpSession,
}

/// Takes a pooled connection to `peer` or makes one, with the peer's timeouts.
///
/// # Errors
/// The engine cannot be reached.
pub(crate) async fn open(connector: &Connector, peer: &HttpPeer) -> Result<Call> {
    let (mut session, _reused) = connector.get_http_session(peer).await?;
    if let Some(options) = peer.get_peer_options() {
        session.set_read_timeout(options.read_timeout);
        session.set_write_timeout(options.write_timeout);
    }
    Ok(Call { session })
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

    /// Status and content type of the answer; interim answers are skipped.
    ///
    /// # Errors
    /// The engine closes or stays silent.
    pub(crate) async fn answer_head(&mut self) -> Result<(u16, Option<String>)> {
        loop {
            self.session.read_response_header().await?;
            let Some(head) = self.session.response_header() else {
                return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
            };
            if !head.status.is_informational() {
                let content_type = head.headers.get(header::CONTENT_TYPE);
                let content_type = content_type.and_then(|value| value.to_str().ok());
                return Ok((head.status.as_u16(), content_type.map(str::to_owned)));
            }
        }
    }

    /// The next piece of the answer's body, none at its end.
    ///
    /// # Errors
    /// The body is cut.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>> {
        self.session.read_response_body().await
    }

    /// Gives the connection back after a complete answer.
    pub(crate) async fn release(self, connector: &Connector, peer: &HttpPeer) {
        connector
            .release_http_session(self.session, peer, peer.options.idle_timeout)
            .await;
    }
}

/// One small request and its answer's status; the body is drained up to 64 KiB.
///
/// # Errors
/// The engine cannot be reached, closes, or takes longer than `limit`.
pub(crate) async fn simple(
    connector: &Connector,
    peer: &HttpPeer,
    head: RequestHeader,
    body: Bytes,
    limit: Duration,
) -> Result<u16> {
    let exchange = async {
        let mut call = open(connector, peer).await?;
        call.request(head, body).await?;
        let (status, _) = call.answer_head().await?;
        let mut left = 64 * 1024_usize;
        while let Some(piece) = call.piece().await? {
            if piece.len() > left {
                return Ok(status);
            }
            left -= piece.len();
        }
        call.release(connector, peer).await;
        Ok(status)
    };
    tokio::time::timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err(Error::new_up(ErrorType::ReadTimedout)))
}
