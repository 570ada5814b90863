//! The prefill leg of a pair: a second request beside the proxied decode one.
//!
//! It starts when the decode connection is there, so that a refused decode never leaves an orphan
//! prefill. Its answer is drained whatever its type; only status, completeness and an error event
//! inside it matter. A failure ends the exchange at once, which cuts the decode leg and decides the
//! client's answer: a 4xx goes to the client verbatim, anything else is `prefill_failed`.
//!
//! **When the client leaves** (or decode fails), decode ends at once; prefill may still finish,
//! because the transfer of a computed cache must not be torn, but for [`LINGER`] at most. Its guard
//! and permit live in its task and end exactly once, with it.
//!
//! **When both engines stay silent** for `first_byte`, the client gets `upstream_timeout` and both
//! legs count as failed: one of them is at fault and nobody here can tell which; the other one
//! clears its count with its next partner.
//! Source: engine-wire §3.3, field-lessons L07, L11, L12.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header;
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::Timeouts;
use crate::proxy::engine_call::{self, Call, EngineClient};
use crate::proxy::peer;
use crate::server::cached::CachedWatch;
use crate::server::dispatch::{Leg, LegOutcome};
use crate::server::live::{EndCause, EngineAnswer, Exchange};
use crate::server::metrics::Metrics;
use crate::server::sse::StreamWatch;
use crate::workers::Worker;

/// How long a prefill leg may outlive its client.
const LINGER: Duration = Duration::from_secs(30);

/// How much of a refusal is kept to be passed on, bytes.
const MAX_REFUSAL: usize = 1 << 20;

/// What one prefill leg needs.
#[derive(Debug)]
pub(crate) struct PrefillJob {
    pub(crate) leg: Leg,
    pub(crate) body: Bytes,
    pub(crate) stream: bool,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) room: u64,
    /// Prompt tokens that the engine should have cached, and where to book what it says.
    pub(crate) predicted: Option<(u64, Arc<Metrics>)>,
}

/// Starts a leg on a task of its own. Dropping what it returns leaves the leg [`LINGER`].
pub(crate) fn start(
    engines: &EngineClient,
    job: PrefillJob,
    head: RequestHeader,
    timeouts: &Timeouts,
) -> oneshot::Sender<()> {
    let (alive, gone) = oneshot::channel::<()>();
    let engines = engines.clone();
    let timeouts = timeouts.clone();
    engine_call::spawn(async move {
        let PrefillJob {
            mut leg,
            body,
            exchange,
            room,
            predicted,
            ..
        } = job;
        let sent = Sent {
            body,
            room,
            engine: Arc::clone(leg.engine()),
        };
        let leg_run = run(&engines, &sent, head, &timeouts, &exchange);
        let (ended, wanted) = attend(leg_run, gone).await;
        // Without the decode side a transfer cannot succeed: that is no fault of the engine.
        if wanted || ended.outcome == LegOutcome::Success {
            leg.settle(ended.outcome);
        }
        if let (Some((predicted, metrics)), Some(reported)) = (predicted, ended.cached) {
            metrics.cached_tokens(leg.engine(), predicted, reported);
        }
        drop(leg);
        if let Some(cause) = ended.cause {
            exchange.end(cause);
        }
    });
    alive
}

/// Waits for the leg; once the request is over it has [`LINGER`] left. Tells how it ended and
/// whether the request still wanted it or had been answered by then.
async fn attend(leg: impl Future<Output = Ended>, over: oneshot::Receiver<()>) -> (Ended, bool) {
    let mut leg = std::pin::pin!(leg);
    tokio::select! {
        ended = &mut leg => (ended, true),
        answered = over => {
            let given_up = |_| Ended::failed(LegOutcome::Cancelled);
            let ended = tokio::time::timeout(LINGER, leg).await.unwrap_or_else(given_up);
            (ended, answered.is_ok())
        }
    }
}

/// What is sent and to whom.
struct Sent {
    body: Bytes,
    room: u64,
    engine: Arc<Worker>,
}

/// How a leg ended, and what that means for the exchange; no cause when prefill succeeded.
struct Ended {
    outcome: LegOutcome,
    cause: Option<EndCause>,
    /// Prompt tokens that the engine says it had cached.
    cached: Option<u64>,
}

impl Ended {
    const fn failed(outcome: LegOutcome) -> Self {
        Self {
            outcome,
            cause: Some(EndCause::PrefillFailed),
            cached: None,
        }
    }

    /// Nothing came within `first_byte`. While decode is silent too nobody can tell whose fault it
    /// is: the time is up for the pair, and both engines are charged.
    fn silent(exchange: &Exchange) -> Self {
        Self {
            outcome: LegOutcome::Error,
            cause: Some(if exchange.heard_once() {
                EndCause::PrefillFailed
            } else {
                EndCause::FirstByte
            }),
            cached: None,
        }
    }
}

/// Carries the leg out.
async fn run(
    engines: &EngineClient,
    sent: &Sent,
    head: RequestHeader,
    timeouts: &Timeouts,
    exchange: &Exchange,
) -> Ended {
    let deadline = Instant::now() + timeouts.first_byte.min(timeouts.lifetime);
    let (engine, room) = (sent.engine.id(), sent.room);
    let begun = within(deadline, send(engines, sent, head, timeouts)).await;
    if let Err(error) = &begun
        && *error.etype() == ErrorType::ReadTimedout
    {
        tracing::warn!(%engine, room, "prefill leg is silent");
        return Ended::silent(exchange);
    }
    let reply = match begun {
        Ok((call, peer)) => within(deadline, drain(engines, call, &peer)).await,
        Err(error) => Err(error),
    };
    match reply {
        Ok(reply) => {
            let cause = reply.cause();
            if let Some(cause) = &cause {
                tracing::warn!(%engine, room, status = reply.answer.status, cause = cause.as_str(), "prefill leg failed");
            }
            Ended {
                outcome: LegOutcome::of_status(reply.code()),
                cause,
                cached: reply.cached,
            }
        }
        Err(error) => {
            tracing::warn!(%engine, room, error = %error, "prefill leg failed");
            Ended::failed(LegOutcome::Error)
        }
    }
}

async fn within<T>(deadline: Instant, step: impl Future<Output = Result<T>>) -> Result<T> {
    let step = tokio::time::timeout_at(deadline, step).await;
    step.unwrap_or_else(|_| Err(Error::new_up(ErrorType::ReadTimedout)))
}

/// A drained prefill answer.
struct Reply {
    answer: EngineAnswer,
    in_band: Option<u16>,
    cached: Option<u64>,
}

impl Reply {
    /// Its status, or the code of an error event inside a 200.
    fn code(&self) -> u16 {
        self.in_band.unwrap_or(self.answer.status)
    }

    fn cause(&self) -> Option<EndCause> {
        match self.answer.status {
            200..=299 if self.in_band.is_none() => None,
            400..=499 => Some(EndCause::PrefillRefused(self.answer.clone())),
            _ => Some(EndCause::PrefillFailed),
        }
    }
}

/// Sends the request and waits for the head of its answer.
async fn send(
    engines: &EngineClient,
    sent: &Sent,
    head: RequestHeader,
    timeouts: &Timeouts,
) -> Result<(Call, HttpPeer)> {
    let peer = peer::http1(&sent.engine, timeouts)?;
    let mut call = engines.open(&peer).await?;
    call.request(head, sent.body.clone()).await?;
    call.answer_head().await?;
    Ok((call, peer))
}

/// Reads the rest, keeping only what a refusal needs.
async fn drain(engines: &EngineClient, mut call: Call, peer: &HttpPeer) -> Result<Reply> {
    let head = call.answer_head().await?;
    let text = |name| {
        let value = head.headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let status = head.status.as_u16();
    let (content_type, retry_after) = (text(header::CONTENT_TYPE), text(header::RETRY_AFTER));
    let mut kept = BytesMut::new();
    let mut events = StreamWatch::default();
    let mut cached = CachedWatch::default();
    while let Some(piece) = call.piece().await? {
        if status < 300 {
            events.scan(&piece);
            cached.scan(&piece);
        } else if kept.len() + piece.len() <= MAX_REFUSAL {
            kept.extend_from_slice(&piece);
        }
    }
    engines.release(call, peer).await;
    Ok(Reply {
        answer: EngineAnswer {
            status,
            content_type,
            retry_after,
            body: kept.freeze(),
        },
        in_band: events.error(),
        cached: cached.tokens(),
    })
}
