//! The end of a request: outcome of the answering leg, metrics, one access line.
//!
//! Prints ids, counts and times; never a body, a key or prompt text.
//! Source: http-and-operations §18, §19.

use std::time::Duration;

use pingora::{Error, ErrorSource};
use pingora_proxy::Session;
use tokio::time::Instant;

use crate::buckets::BucketPick;
use crate::proxy::ctx::RequestCtx;
use crate::server::app::App;
use crate::server::cached::CachedWatch;
use crate::server::dispatch::LegOutcome;
use crate::server::live::EndCause;

/// How an exchange ended, for logs and `stream_outcome_total`.
fn end_label(error: Option<&Error>, ctx: &RequestCtx) -> &'static str {
    let refused = ctx.refusal.as_ref();
    if refused.is_some_and(|refusal| ctx.dispatch.is_none() || refusal.status() < 500) {
        return "refused";
    }
    let cause = ctx
        .dispatch
        .as_ref()
        .and_then(|dispatch| dispatch.exchange.cause());
    match (error, cause) {
        (Some(_), Some(EndCause::Lifetime)) => "expired",
        (Some(_), Some(EndCause::ClientGone)) => "client_disconnect",
        (Some(_), Some(_)) => "upstream_error",
        (Some(error), None) => match error.esource() {
            ErrorSource::Downstream => "client_disconnect",
            ErrorSource::Upstream | ErrorSource::Internal | ErrorSource::Unset => "upstream_error",
        },
        (None, _)
            if ctx
                .answered
                .watch
                .as_ref()
                .is_some_and(|watch| watch.error().is_some()) =>
        {
            "stream_error_event"
        }
        (None, _) => "ok",
    }
}

/// What a failed exchange says about the engine that was to answer.
fn failed_outcome(error: &Error, cause: Option<&EndCause>) -> LegOutcome {
    match cause {
        // A lifetime says nothing about the engine: long streams and slow uploads end by it too.
        Some(
            EndCause::Lifetime
            | EndCause::PrefillFailed
            | EndCause::PrefillRefused(_)
            | EndCause::ClientGone,
        ) => LegOutcome::Cancelled,
        Some(EndCause::FirstByte | EndCause::StreamIdle | EndCause::Request) => LegOutcome::Error,
        None => match error.esource() {
            ErrorSource::Upstream => LegOutcome::Error,
            ErrorSource::Downstream | ErrorSource::Internal | ErrorSource::Unset => {
                LegOutcome::Cancelled
            }
        },
    }
}

/// Books the end of a request and releases what it held.
pub(crate) fn finish(app: &App, session: &Session, error: Option<&Error>, ctx: &mut RequestCtx) {
    let end = end_label(error, ctx);
    settle(app, error, end, ctx);
    let status = session
        .response_written()
        .map_or(0, |head| head.status.as_u16());
    if status > 0 {
        app.metrics.response(ctx.route, ctx.method, status);
    }
    let elapsed = Instant::now().saturating_duration_since(ctx.arrived());
    if let Some(prepared) = &ctx.prepared {
        app.metrics
            .request_duration(&prepared.model.id, elapsed.as_secs_f64());
    }
    // Probes come every few seconds for ever; they are news only when they fail.
    let quiet_probe = matches!(ctx.route, "/healthz" | "/readyz") && status < 500;
    if ctx.routing.config.log.access && !quiet_probe {
        access_line(status, end, millis(elapsed), error, ctx);
    }
    // Guards are released here and not only with the context, so that the count is right when the
    // connection's next request arrives.
    ctx.dispatch = None;
    ctx.inflight = None;
    ctx.buffered = None;
}

fn settle(app: &App, error: Option<&Error>, end: &'static str, ctx: &mut RequestCtx) {
    let in_band = ctx.answered.outcome();
    let Some(dispatch) = &mut ctx.dispatch else {
        return;
    };
    dispatch.exchange.disarm();
    // Decode has all it needed of prefill, or the time of the pair is up. After a refusal of
    // decode's, prefill is left without a partner and must not be blamed for that.
    let silent = dispatch.exchange.cause() == Some(&EndCause::FirstByte);
    let answered = error.is_none() && in_band == LegOutcome::Success;
    if (answered || silent)
        && let Some(alive) = dispatch.prefill_alive.take()
    {
        let _ = alive.send(());
    }
    match error {
        None => dispatch.main.settle(in_band),
        Some(error) => {
            let outcome = failed_outcome(error, dispatch.exchange.cause());
            if outcome != LegOutcome::Cancelled {
                dispatch.main.settle(outcome);
            }
        }
    }
    if let Some(predicted) = dispatch.selection.predicted_cached_tokens
        && let Some(reported) = ctx.answered.cached.as_ref().and_then(CachedWatch::tokens)
    {
        let engine = dispatch.main.engine();
        app.metrics.cached_tokens(engine, predicted, reported);
    }
    if let Some(watch) = &ctx.answered.watch {
        let engine = dispatch.main.engine();
        app.metrics.stream_outcome(engine, engine.model(), end);
        if !watch.token() {
            app.metrics.stream_without_token(engine.model(), end);
        }
        if watch.uninspectable() {
            app.metrics.stream_uninspectable(engine.model());
        }
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn access_line(status: u16, end: &str, latency_ms: f64, error: Option<&Error>, ctx: &RequestCtx) {
    let prepared = ctx.prepared.as_ref();
    let selection = ctx.dispatch.as_ref().map(|dispatch| &dispatch.selection);
    let (engine, prefill) = match selection.map(|selection| &selection.pick) {
        Some(BucketPick::Plain(pick)) => (Some(pick), None),
        Some(BucketPick::Pd { prefill, decode }) => (Some(decode), Some(prefill)),
        None => (None, None),
    };
    let since_arrival = |at: Option<Instant>| {
        let at = at.zip(ctx.arrived);
        at.map(|(at, arrived)| millis(at.saturating_duration_since(arrived)))
    };
    let ttfb_ms = since_arrival(ctx.answered.first_byte);
    let ttft_ms = since_arrival(ctx.answered.first_token);
    let cause = ctx
        .dispatch
        .as_ref()
        .and_then(|dispatch| dispatch.exchange.cause());
    if let Some(error) = error {
        tracing::debug!(request_id = ctx.request_id, error = %error, "exchange failed");
    }
    tracing::info!(
        target: "sgl_edge::access",
        request_id = ctx.request_id,
        method = ctx.method,
        route = ctx.route,
        status,
        end,
        latency_ms,
        ttfb_ms,
        ttft_ms,
        model = prepared.map(|prepared| prepared.model.id.as_str()),
        stream = prepared.map(|prepared| prepared.stream),
        input_tokens = prepared.map(|prepared| prepared.prompt.input_tokens),
        tokenized = prepared.map(|prepared| prepared.prompt.source.label()),
        peak_tokens = prepared.and_then(|prepared| prepared.expected_peak_tokens),
        bucket = selection.map(|selection| selection.bucket.as_str()),
        buckets_tried = selection.map(|selection| selection.buckets_tried),
        engine = engine.map(|pick| pick.engine.id().as_str()),
        reason = engine.map(|pick| pick.reason.as_str()),
        prefill = prefill.map(|pick| pick.engine.id().as_str()),
        engine_rid = ctx.dispatch.as_ref().and_then(|dispatch| dispatch.rid.as_deref()),
        room = ctx.dispatch.as_ref().and_then(|dispatch| dispatch.room),
        body_in = ctx.body_bytes,
        body_out = ctx.answered.bytes,
        cause = cause.map(EndCause::as_str),
        error_code = ctx.refusal.as_ref().map(crate::server::ApiError::code),
        "request"
    );
}
