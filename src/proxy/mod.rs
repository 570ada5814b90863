//! The only code that speaks Pingora.
//!
//! One short method per phase, each delegating: `request_filter` reads, parses and tokenizes,
//! `upstream_peer` selects, `logging` (and the drop of the context) releases. Pingora calls
//! `upstream_peer` again after a failed attempt; it hands back the stored selection and never
//! enters the bucket loop twice. Policies, buckets and error texts live elsewhere.
//! Source: design §2, pingora-notes §2.

mod abort;
pub mod admin;
mod answer;
mod body;
mod client_stream;
mod ctx;
mod dial;
mod discovery;
mod engine_call;
mod entry;
mod failure;
mod fanout;
mod feeds;
mod headers;
mod health;
mod introspect;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod kv_feeds;
pub mod lifecycle;
mod peer;
mod poll_loads;
mod prefill;
mod replay;
mod report;
mod request;
pub mod service;
mod wire;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::Digest;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use tokio::time::Instant;

pub use ctx::RequestCtx;
pub use entry::{Door, Entry};

use crate::server::app::App;
use dial::Dial;
use engine_call::EngineClient;
use wire::WireTable;

/// Seconds a client connection may idle before its next head is awaited, which then has
/// `timeouts.client_header`; nginx's default.
pub(crate) const CLIENT_KEEPALIVE_SECS: u64 = 75;

/// The proxy. Embeddable: give it to Pingora's `http_proxy` or to [`service::data_service`].
#[derive(Debug)]
pub struct EdgeProxy {
    app: Arc<App>,
    wires: Arc<WireTable>,
    engines: EngineClient,
    aborts: abort::Turns,
}

impl EdgeProxy {
    /// A proxy over the services of `app`, with connection pools of its own for prefill legs and
    /// aborts.
    #[must_use]
    pub fn new(app: Arc<App>, pools: &pingora::server::configuration::ServerConf) -> Self {
        Self {
            app,
            wires: Arc::default(),
            engines: EngineClient::new(pools),
            aborts: abort::Turns::default(),
        }
    }

    /// The services behind it.
    #[must_use]
    pub const fn app(&self) -> &Arc<App> {
        &self.app
    }
}

#[async_trait]
impl ProxyHttp for EdgeProxy {
    /// Boxed: Pingora's futures hold and move it.
    type CTX = Box<RequestCtx>;

    fn new_ctx(&self) -> Box<RequestCtx> {
        Box::new(RequestCtx::new(self.app.routing()))
    }

    /// Pingora's response compression would hold back event streams: no module is installed.
    fn init_downstream_modules(&self, _modules: &mut pingora::modules::http::HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<()> {
        if let Some(http1) = session.as_http1() {
            self.app.heads.complete(http1.stream().id());
        }
        ctx.begin(session, self.app.parting());
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        self.enter(session, ctx).await
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut Self::CTX,
    ) -> Result<Box<HttpPeer>> {
        if ctx.dispatch.is_none() {
            if let Err(refusal) = self.select(ctx).await {
                let status = refusal.status();
                ctx.refusal = Some(refusal);
                return Err(Error::new(ErrorType::HTTPStatus(status)));
            }
            headers::replace(session.req_header_mut(), ctx)?;
        }
        let dispatch = ctx.dispatch.as_ref().expect("selected just above");
        let timeouts = &ctx.routing.config.timeouts;
        let engine = dispatch.main.engine();
        if dispatch.shared {
            return Ok(Box::new(peer::http2(engine, timeouts)?));
        }
        let dial = Dial {
            exchange: Arc::clone(&dispatch.exchange),
            client: request::watchable(session, ctx.body_state),
            limit: timeouts.connect,
        };
        let peer = peer::of_exchange(engine, timeouts, &dispatch.wire, dial)?;
        Ok(Box::new(peer))
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        fd: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        self.connected(reused, fd, ctx)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        replay::replace(body, end_of_stream, ctx)?;
        if end_of_stream {
            self.start_prefill(session, ctx)?;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        ctx.engine_answered(response)
    }

    fn upstream_response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<Option<Duration>> {
        ctx.still_wanted()?;
        ctx.engine_sent(
            body.as_deref().unwrap_or_default(),
            end_of_stream,
            &self.app.metrics,
        );
        Ok(None)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        if session.req_header().version == http::Version::HTTP_10 {
            headers::for_http10(session, response);
        }
        headers::to_client(response, ctx)
    }

    /// A pooled connection that the engine closed just when it was taken: nothing of an answer
    /// came, so the same bytes go once more to the same engine, over another connection.
    /// Source: http-and-operations §14.
    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        _session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Self::CTX,
        reused: bool,
    ) -> Box<Error> {
        let stale = reused && matches!(error.retry, pingora::RetryType::ReusedOnly);
        error.set_retry(stale && ctx.may_resend());
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Self::CTX,
    ) -> FailToProxy {
        failure::answer(session, error, ctx).await
    }

    fn suppress_error_log(&self, _session: &Session, _ctx: &Self::CTX, _error: &Error) -> bool {
        // One line per request, written in `logging`.
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Self::CTX) {
        if error.is_some() {
            self.abort(session, ctx);
        }
        report::finish(&self.app, session, error, ctx);
    }
}

impl EdgeProxy {
    /// Tells the engine about a request that ended before its answer did.
    fn abort(&self, session: &Session, ctx: &RequestCtx) {
        let Some(dispatch) = &ctx.dispatch else {
            return;
        };
        let (Some(rid), Some(_)) = (&dispatch.rid, dispatch.connected_at) else {
            return;
        };
        if !ctx.answered.complete {
            let authorization = session.get_header(http::header::AUTHORIZATION).cloned();
            abort::start(
                &self.aborts,
                &self.engines,
                dispatch.main.engine(),
                rid,
                authorization,
                &ctx.routing,
            );
        }
    }

    fn connected(&self, reused: bool, fd: RawFd, ctx: &mut RequestCtx) -> Result<()> {
        let Some(dispatch) = &mut ctx.dispatch else {
            return Err(Error::new(ErrorType::InternalError));
        };
        // A connection that other requests share is never cut.
        let armed = dispatch.shared || {
            let wire = self.wires.attach(fd, reused, &dispatch.wire);
            dispatch.exchange.arm(wire)
        };
        if !armed {
            return Err(Error::new_up(ErrorType::ConnectionClosed));
        }
        dispatch.connected_at = Some(Instant::now());
        Ok(())
    }

    /// Starts the prefill leg of a pair once the whole request is on its way to decode: neither a
    /// refused decode nor a chunked request that never ends leaves an orphan prefill.
    fn start_prefill(&self, session: &Session, ctx: &mut RequestCtx) -> Result<()> {
        let Some(dispatch) = &mut ctx.dispatch else {
            return Ok(());
        };
        let Some(job) = dispatch.prefill.take() else {
            return Ok(());
        };
        let head = headers::to_engine_leg(
            session.req_header(),
            &headers::Leg {
                engine: job.leg.engine(),
                body_bytes: job.body.len(),
                stream: job.stream,
                request_id: &ctx.request_id,
                decode: Some(dispatch.main.engine()),
            },
        )?;
        let timeouts = &ctx.routing.config.timeouts;
        dispatch.prefill_alive = Some(prefill::start(&self.engines, job, head, timeouts));
        Ok(())
    }
}
