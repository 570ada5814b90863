//! Pingora's own failure paths, answered like every other refusal.

use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::{FailToProxy, Session};

use crate::proxy::answer::{self, Answer};
use crate::proxy::ctx::RequestCtx;
use crate::server::ApiError;
use crate::server::live::Ending;

/// Answers a failed request, if there is somebody to answer and nothing has been sent.
///
/// The connection is closed and the answer says so: Pingora never reuses it after this phase.
pub(crate) async fn answer(
    session: &mut Session,
    error: &Error,
    ctx: &mut RequestCtx,
) -> FailToProxy {
    session.set_keepalive(None);
    let started = session
        .response_written()
        .is_some_and(|head| !head.status.is_informational());
    let ending = if started {
        Ending::Nothing
    } else {
        ending(error, ctx)
    };
    let (status, written) = match ending {
        Ending::Nothing => (0, Ok(())),
        Ending::Refusal(refusal) => {
            let status = refusal.status();
            (status, answer::refuse(session, ctx, refusal).await)
        }
        Ending::Engine(engine) => {
            let answer = Answer::engine(&engine);
            (engine.status, answer::send(session, ctx, answer).await)
        }
    };
    if let Err(error) = written {
        tracing::debug!(%error, "the client left before its refusal");
    }
    FailToProxy {
        error_code: status,
        can_reuse_downstream: false,
    }
}

fn ending(error: &Error, ctx: &RequestCtx) -> Ending {
    if let Some(refusal) = &ctx.refusal {
        return Ending::Refusal(refusal.clone());
    }
    let cause = ctx
        .dispatch
        .as_ref()
        .and_then(|dispatch| dispatch.exchange.cause());
    if let Some(cause) = cause {
        return cause.ending();
    }
    match error.esource() {
        ErrorSource::Upstream => Ending::Refusal(upstream(error, ctx)),
        ErrorSource::Downstream => match error.etype() {
            ErrorType::WriteError
            | ErrorType::WriteTimedout
            | ErrorType::ReadError
            | ErrorType::ConnectionClosed => Ending::Nothing,
            ErrorType::ReadTimedout => Ending::Refusal(ApiError::RequestTimeout),
            _ => Ending::Refusal(ApiError::bad_request("invalid request")),
        },
        ErrorSource::Internal | ErrorSource::Unset => Ending::Refusal(ApiError::Internal),
    }
}

fn upstream(error: &Error, ctx: &RequestCtx) -> ApiError {
    match (error.etype(), ctx.answered.status) {
        (ErrorType::ReadTimedout | ErrorType::WriteTimedout, _) => ApiError::UpstreamTimeout,
        (_, Some(status)) => ApiError::UpstreamBodyIncomplete(status),
        (_, None) => ApiError::UpstreamUnreachable,
    }
}
