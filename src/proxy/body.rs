//! Reading the whole body before the engine is known, and handing over another one.
//!
//! Pingora forwards a body that was read early only out of its retry buffer, which stops at 64 KiB.
//! So only the *end* of the body may go through that buffer ("late buffering"):
//!
//! * with a length, retry buffering is switched on when at most 64 KiB are left; Pingora replays
//!   that tail once and [`replace`](super::replay::replace) swaps it for the whole prepared body;
//! * chunked, reading stops at the byte that closes the JSON, the end of the coding is left for
//!   Pingora, and [`replace`](super::replay::replace) gives the prepared body when it comes;
//! * HTTP/2 without a length works up to 64 KiB and is refused with 411 above.
//!
//! Leans on how Pingora 0.9.1 behaves: the size matrix in `tests/proxy` guards it.
//! Source: pingora-notes §3.

use bytes::{Bytes, BytesMut};
use futures_util::future::poll_immediate;
use http::header;
use pingora::{Error, ErrorType};
use pingora_proxy::Session;
use tokio::time::Instant;

use crate::proxy::ctx::{BodyState, RequestCtx};
use crate::server::ApiError;
use crate::server::budget::Share;
use crate::server::json_end::JsonEnd;

/// Pingora's retry buffer, bytes.
pub(crate) const RETRY_BUFFER: u64 = 65_536;

/// Memory reserved ahead on the client's word alone, bytes.
const MAX_RESERVE: u64 = 1 << 20;

/// How much of a refused body is read and thrown away, bytes, and for how long.
const DRAIN_BYTES: u64 = 4 << 20;
const DRAIN_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// A body as read.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Bytes,
    pub(crate) state: BodyState,
}

/// Why reading ended without a body.
pub(crate) enum ReadError {
    /// Answer this.
    Refuse(ApiError),
    /// The client is gone.
    Gone(Box<Error>),
}

impl From<ApiError> for ReadError {
    fn from(error: ApiError) -> Self {
        Self::Refuse(error)
    }
}

/// The announced length, or none for a chunked or HTTP/2 body without one.
///
/// # Errors
/// 413 when it is above `max_body`.
fn announced(session: &Session, max_body: u64) -> Result<Option<u64>, ApiError> {
    let headers = &session.req_header().headers;
    let length = headers.get(header::CONTENT_LENGTH);
    let Some(length) = length.and_then(|value| value.to_str().ok()?.trim().parse().ok()) else {
        return Ok(None);
    };
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(None);
    }
    if length > max_body {
        return Err(ApiError::PayloadTooLarge);
    }
    Ok(Some(length))
}

/// Reads the body of one chat request, booking it on `share`.
///
/// # Errors
/// 413 above `max_body`, 411 for a long HTTP/2 body without a length, 503 when the router holds too
/// many bytes, 408 when the client falls silent; or the client is gone.
pub(crate) async fn read(
    session: &mut Session,
    ctx: &RequestCtx,
    share: &mut Share,
) -> Result<Body, ReadError> {
    let limits = &ctx.routing.config.limits;
    let length = announced(session, limits.max_body)?;
    if length.is_some_and(|length| !share.grow(length, Some(limits.max_buffered_body))) {
        return Err(ApiError::Overloaded.into());
    }
    agree_to_continue(session).await?;
    let mut reader = Reader {
        session,
        whole: Whole::with_capacity(length),
        deadline: ctx.arrived() + ctx.routing.config.timeouts.lifetime,
        idle: ctx.routing.config.timeouts.client_body_idle,
    };
    match length {
        Some(length) if length <= RETRY_BUFFER => {
            let bytes = reader.short().await?;
            return Ok(Body {
                bytes,
                state: BodyState::Complete,
            });
        }
        Some(length) => reader.with_length(length).await?,
        None if reader.session.is_http2() => {
            let budget = (share, limits.max_buffered_body);
            reader.h2_without_length(limits.max_body, budget).await?;
        }
        None => {
            let budget = (share, limits.max_buffered_body);
            let state = reader.chunked(limits.max_body, budget).await?;
            let bytes = reader.whole.freeze();
            return Ok(Body { bytes, state });
        }
    }
    if !reader.session.is_body_done() || !replayable(reader.session) {
        tracing::error!("request body is not in the state Pingora forwards from");
        return Err(ApiError::Internal.into());
    }
    Ok(Body {
        bytes: reader.whole.freeze(),
        state: BodyState::Complete,
    })
}

/// Pingora will hand over a finished body only if it is empty or in the retry buffer, which has been
/// switched on.
fn replayable(session: &mut Session) -> bool {
    // Asking for the buffer itself would copy it.
    session.is_body_empty() || !session.as_ref().retry_buffer_truncated()
}

/// Answers `Expect: 100-continue`, which Pingora leaves to the engine.
async fn agree_to_continue(session: &mut Session) -> Result<(), ReadError> {
    let expects = session
        .get_header(header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if !expects || session.req_header().version != http::Version::HTTP_11 {
        return Ok(());
    }
    // An answer before the body's end switches keep-alive off; this one is only an interim one.
    session.set_close_on_response_before_downstream_finish(false);
    let written = session.write_continue_response().await;
    session.set_close_on_response_before_downstream_finish(true);
    written.map_err(|error| ReadError::Gone(error.into_down()))
}

/// Pieces put together without copying a body that came in one.
#[derive(Debug, Default)]
struct Whole {
    first: Bytes,
    rest: Option<BytesMut>,
    reserve: usize,
}

impl Whole {
    fn with_capacity(length: Option<u64>) -> Self {
        let reserve = length.unwrap_or(0).min(MAX_RESERVE);
        Self {
            reserve: usize::try_from(reserve).unwrap_or_default(),
            ..Self::default()
        }
    }

    fn push(&mut self, piece: Bytes) {
        match &mut self.rest {
            Some(rest) => rest.extend_from_slice(&piece),
            None if self.first.is_empty() => self.first = piece,
            None => {
                let sum = self.first.len() + piece.len();
                let mut rest = BytesMut::with_capacity(sum.max(self.reserve));
                rest.extend_from_slice(&self.first);
                rest.extend_from_slice(&piece);
                self.rest = Some(rest);
            }
        }
    }

    fn freeze(self) -> Bytes {
        self.rest.map_or(self.first, BytesMut::freeze)
    }
}

struct Reader<'a> {
    session: &'a mut Session,
    whole: Whole,
    deadline: Instant,
    idle: std::time::Duration,
}

impl Reader<'_> {
    /// One piece, or none at the end; bounded by silence and by the whole request's lifetime.
    async fn piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        let read = {
            let mut reading = std::pin::pin!(self.session.read_request_body());
            // Most bodies are there already and need no timer.
            match poll_immediate(&mut reading).await {
                Some(read) => Ok(read),
                None => {
                    let limit = (Instant::now() + self.idle).min(self.deadline);
                    tokio::time::timeout_at(limit, reading).await
                }
            }
        };
        match read {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(match error.etype() {
                ErrorType::ReadTimedout => ApiError::RequestTimeout.into(),
                ErrorType::Custom("InvalidChunk" | "PrematureBodyEnd") => {
                    // Nobody knows where the next request would begin.
                    self.session.set_keepalive(None);
                    ApiError::bad_request("invalid request: the body is cut or badly framed").into()
                }
                _ => ReadError::Gone(error.into_down()),
            }),
            Err(_) => Err(ApiError::RequestTimeout.into()),
        }
    }

    /// A body that fits the retry buffer is kept there anyway and need not be put together twice.
    async fn short(&mut self) -> Result<Bytes, ReadError> {
        self.session.enable_retry_buffering();
        let Some(first) = self.piece().await? else {
            return Ok(Bytes::new());
        };
        let mut pieces = 1;
        while self.piece().await?.is_some() {
            pieces += 1;
        }
        if pieces == 1 {
            return Ok(first);
        }
        self.session.get_retry_buffer().ok_or_else(|| {
            tracing::error!("a short request body is not in Pingora's retry buffer");
            ApiError::Internal.into()
        })
    }

    async fn with_length(&mut self, length: u64) -> Result<(), ReadError> {
        let mut left = length;
        let mut buffering = false;
        loop {
            if left <= RETRY_BUFFER && !buffering {
                self.session.enable_retry_buffering();
                buffering = true;
            }
            let Some(piece) = self.piece().await? else {
                return Ok(());
            };
            left = left.saturating_sub(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            self.whole.push(piece);
        }
    }

    async fn h2_without_length(
        &mut self,
        max_body: u64,
        (share, max_buffered): (&mut Share, u64),
    ) -> Result<(), ReadError> {
        self.session.enable_retry_buffering();
        let mut read = 0_u64;
        while let Some(piece) = self.piece().await? {
            let size = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            read += size;
            if read > max_body {
                return Err(ApiError::PayloadTooLarge.into());
            }
            if read > RETRY_BUFFER {
                return Err(ApiError::LengthRequired.into());
            }
            if !share.grow(size, Some(max_buffered)) {
                return Err(ApiError::Overloaded.into());
            }
            self.whole.push(piece);
        }
        Ok(())
    }

    async fn chunked(
        &mut self,
        max_body: u64,
        (share, max_buffered): (&mut Share, u64),
    ) -> Result<BodyState, ReadError> {
        let mut scan = JsonEnd::default();
        let mut read = 0_u64;
        while let Some(piece) = self.piece().await? {
            let size = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            read += size;
            if read > max_body {
                return Err(ApiError::PayloadTooLarge.into());
            }
            if !share.grow(size, Some(max_buffered)) {
                return Err(ApiError::Overloaded.into());
            }
            let closed = scan.closes_in(&piece);
            self.whole.push(piece);
            if closed && !self.session.is_body_done() {
                return Ok(BodyState::EndUnread);
            }
        }
        if self.whole.first.is_empty() || self.session.is_body_empty() {
            return Ok(BodyState::Complete);
        }
        // The end came together with the close, or the JSON never closed; either way Pingora
        // cannot forward it from here. The former does not happen with 0.9.1 (the end of the
        // coding is a read of its own); the latter is not JSON.
        Err(ApiError::bad_request("invalid request: body must be a JSON object").into())
    }
}

/// Reads and discards what a refused request still sends, within reason.
///
/// Before a refusal over HTTP/1.1 this saves the connection of a chunked request whose JSON was
/// complete. After a refusal over HTTP/2 it keeps the stream open until the answer has been
/// written: dropping an unread stream resets it, and the reset overtakes the answer.
pub(crate) async fn drain(session: &mut Session) {
    let until = Instant::now() + DRAIN_TIME;
    let mut left = DRAIN_BYTES;
    while left > 0 && !session.is_body_done() {
        match tokio::time::timeout_at(until, session.read_request_body()).await {
            Ok(Ok(Some(piece))) => {
                left = left.saturating_sub(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            }
            _ => return,
        }
    }
}
