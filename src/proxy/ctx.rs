//! One request from its head to its end.
//!
//! Everything that must be given back is a guard in here, so that the drop of the context releases
//! it on every path: success, refusal, disconnect, panic. Source: pingora-notes §6.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::proxy::body::RETRY_BUFFER;
use crate::proxy::headers;
use crate::proxy::prefill::PrefillJob;
use crate::proxy::wire::Wire;
use crate::server::ApiError;
use crate::server::budget::Share;
use crate::server::cached::CachedWatch;
use crate::server::dispatch::{Leg, LegOutcome};
use crate::server::live::{Exchange, LiveGuard};
use crate::server::metrics::Metrics;
use crate::server::prepare::Prepared;
use crate::server::routing::Routing;
use crate::server::select::Selection;
use crate::server::sse::StreamWatch;

/// How soon a pooled connection that the engine had closed already shows it.
const STALE_WITHIN: Duration = Duration::from_millis(100);

/// How the client's body stands when the engine connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BodyState {
    /// Read to its end; Pingora replays the tail once.
    #[default]
    Complete,
    /// The JSON is complete, the end of the chunked coding is still unread.
    EndUnread,
}

/// A selection that is being carried out.
pub(crate) struct Dispatch {
    /// What was selected and where.
    pub(crate) selection: Selection,
    /// The leg whose answer goes to the client: plain, or decode.
    pub(crate) main: Leg,
    /// The prefill leg until it is started.
    pub(crate) prefill: Option<PrefillJob>,
    /// While this lives, the prefill leg has its full time.
    pub(crate) prefill_alive: Option<oneshot::Sender<()>>,
    /// The body for the engines; empty once nothing can need it any more.
    pub(crate) body: Bytes,
    /// Whether Pingora has the body.
    pub(crate) handed_over: bool,
    /// Whether the client asked for an event stream.
    pub(crate) stream: bool,
    /// The id that this router gave the request.
    pub(crate) rid: Option<String>,
    /// The pair's number.
    pub(crate) room: Option<u64>,
    /// Whether the engine connection carries other requests too (HTTP/2).
    pub(crate) shared: bool,
    /// Shared with the janitor and the prefill leg.
    pub(crate) exchange: Arc<Exchange>,
    /// The wire of a connection made for this request.
    pub(crate) wire: Arc<Wire>,
    /// When the engine connection was there.
    pub(crate) connected_at: Option<Instant>,
    pub(crate) _listed: LiveGuard,
}

/// What the engine has answered so far.
#[derive(Debug, Default)]
pub(crate) struct EngineAnswered {
    /// Its status, interim answers excluded.
    pub(crate) status: Option<u16>,
    /// When the first body byte came.
    pub(crate) first_byte: Option<Instant>,
    /// When the first generated token of a stream came.
    pub(crate) first_token: Option<Instant>,
    /// Body bytes.
    pub(crate) bytes: u64,
    /// Its answer ended as announced.
    pub(crate) complete: bool,
    /// Watches event streams.
    pub(crate) watch: Option<StreamWatch>,
    /// Reads what the engine had cached; only where a prediction is to be checked.
    pub(crate) cached: Option<CachedWatch>,
}

/// The context of one request.
pub struct RequestCtx {
    pub(crate) routing: Arc<Routing>,
    pub(crate) arrived: Option<Instant>,
    pub(crate) request_id: String,
    pub(crate) route: &'static str,
    pub(crate) method: &'static str,
    pub(crate) refusal: Option<ApiError>,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) body_state: BodyState,
    pub(crate) body_bytes: u64,
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) answered: EngineAnswered,
    pub(crate) resent: bool,
    pub(crate) inflight: Option<Share>,
    pub(crate) buffered: Option<Share>,
}

impl std::fmt::Debug for RequestCtx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestCtx")
            .field("request_id", &self.request_id)
            .field("route", &self.route)
            .field("dispatched", &self.dispatch.is_some())
            .finish_non_exhaustive()
    }
}

impl RequestCtx {
    /// A context that keeps `routing` to the request's end.
    pub(crate) fn new(routing: Arc<Routing>) -> Self {
        Self {
            routing,
            arrived: None,
            request_id: String::new(),
            route: "unmatched",
            method: "other",
            refusal: None,
            prepared: None,
            body_state: BodyState::default(),
            body_bytes: 0,
            dispatch: None,
            answered: EngineAnswered::default(),
            resent: false,
            inflight: None,
            buffered: None,
        }
    }

    /// The head has been read: start the clock, set what Pingora leaves unset.
    ///
    /// A process about to close gives every connection back after its answer (`parting`).
    /// Otherwise a client could send its next request just when the idle connection is closed, and
    /// lose it.
    pub(crate) fn begin(&mut self, session: &mut Session, parting: bool) {
        self.arrived = Some(Instant::now());
        self.request_id = headers::request_id(&session.req_header().headers);
        let timeouts = &self.routing.config.timeouts;
        session.set_read_timeout(Some(timeouts.client_body_idle));
        session.set_write_timeout(Some(timeouts.client_write));
        // A client may send its next request before the answer to this one (RFC 9112 §9.3.2).
        session.set_pipelining_enabled(true);
        // Off stays off: the client asked for a close, or the process is on its way out.
        if parting {
            session.set_keepalive(None);
        } else if session.get_keepalive().is_some() {
            // How long the connection may idle is the janitor's business: no timer of Pingora's.
            session.set_keepalive(Some(0));
        }
    }

    /// When the request's head was complete.
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived.unwrap_or_else(Instant::now)
    }

    /// The engine's head came.
    ///
    /// # Errors
    /// It switches protocols, which nobody asked for.
    pub(crate) fn engine_answered(&mut self, response: &ResponseHeader) -> Result<()> {
        let Some(dispatch) = &mut self.dispatch else {
            return Ok(());
        };
        dispatch.exchange.heard(Instant::now());
        if response.status == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
        }
        if response.status.is_informational() {
            return Ok(());
        }
        self.answered.status = Some(response.status.as_u16());
        // The prompt of a pair is computed by its prefill leg, which reports for itself.
        let predicted = dispatch.selection.predicted_cached_tokens;
        if predicted.is_some() && dispatch.room.is_none() && response.status.is_success() {
            self.answered.cached = Some(CachedWatch::default());
        }
        if is_event_stream(&response.headers) && response.status.is_success() {
            self.answered.watch = Some(StreamWatch::default());
        }
        if has_no_body(response) {
            // No piece will tell that the answer has ended.
            self.engine_finished();
        }
        self.let_go_of_the_body();
        Ok(())
    }

    /// Nothing is resent once an answer has begun, so a long stream need not hold its prompt. What stays
    /// is Pingora's retry buffer.
    fn let_go_of_the_body(&mut self) {
        let Some(dispatch) = self
            .dispatch
            .as_mut()
            .filter(|dispatch| dispatch.handed_over)
        else {
            return;
        };
        dispatch.body = Bytes::new();
        if let Some(prepared) = &mut self.prepared {
            prepared.body = Bytes::new();
            prepared.prompt.token_ids = None;
        }
        if let Some(buffered) = &mut self.buffered {
            buffered.shrink(RETRY_BUFFER);
        }
    }

    /// Whether the request may go out a second time: once, when its pooled connection turned out
    /// closed at once and before anything of an answer came. Later the engine may have worked on
    /// it. A pair is never resent: its prefill leg has begun.
    pub(crate) fn may_resend(&mut self) -> bool {
        let Some(dispatch) = &self.dispatch else {
            return false;
        };
        let at_once = dispatch
            .connected_at
            .is_some_and(|at| at.elapsed() < STALE_WITHIN);
        let may = at_once
            && !self.resent
            && dispatch.room.is_none()
            && dispatch.exchange.cause().is_none()
            && self.answered.status.is_none()
            && self.body_state == BodyState::Complete;
        self.resent |= may;
        may
    }

    /// An error once the exchange has been ended from outside: a shared connection is not cut, so
    /// its stream has to be given up at the next piece.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        match self
            .dispatch
            .as_ref()
            .and_then(|dispatch| dispatch.exchange.cause())
        {
            Some(_) if !self.answered.complete => Err(Error::new_up(ErrorType::ConnectionClosed)),
            _ => Ok(()),
        }
    }

    /// A piece of the engine's body came; observed only, never changed.
    pub(crate) fn engine_sent(&mut self, piece: &[u8], end: bool, metrics: &Metrics) {
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        let now = Instant::now();
        dispatch.exchange.heard(now);
        self.answered.bytes += u64::try_from(piece.len()).unwrap_or_default();
        let first_byte = !piece.is_empty() && self.answered.first_byte.is_none();
        if first_byte {
            self.answered.first_byte = Some(now);
        }
        if let (Some(watch), Some(prepared)) = (&mut self.answered.watch, &self.prepared) {
            let waited = now.saturating_duration_since(self.arrived.unwrap_or(now));
            if first_byte {
                metrics.ttfb(&prepared.model.id, waited.as_secs_f64());
            }
            if watch.scan(piece) {
                self.answered.first_token = Some(now);
                metrics.ttft(&prepared.model.id, waited.as_secs_f64());
            }
        }
        if let Some(cached) = &mut self.answered.cached {
            cached.scan(piece);
        }
        if end {
            self.engine_finished();
        }
    }

    /// The engine's answer ended as announced: nothing may cut its connection any more.
    pub(crate) fn engine_finished(&mut self) {
        self.answered.complete = true;
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.exchange.disarm();
            dispatch.main.settle(self.answered.outcome());
        }
    }
}

impl EngineAnswered {
    /// What a complete answer says about the engine: its status, or the code of an error event
    /// inside a 200.
    pub(crate) fn outcome(&self) -> LegOutcome {
        let in_band = self.watch.as_ref().and_then(StreamWatch::error);
        LegOutcome::of_status(in_band.or(self.status).unwrap_or(500))
    }
}

/// Whether an answer ends with its head.
fn has_no_body(response: &ResponseHeader) -> bool {
    let length = response.headers.get(http::header::CONTENT_LENGTH);
    matches!(response.status.as_u16(), 204 | 304)
        || length.is_some_and(|length| length.as_bytes() == b"0")
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}
