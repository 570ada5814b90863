//! Handing the prepared body over in place of the one that was read (the second half of
//! `proxy/body.rs`).

use bytes::Bytes;
use pingora::{Error, ErrorType, Result};

use crate::proxy::ctx::{BodyState, Dispatch, RequestCtx};
use crate::server::ApiError;

/// Swaps what Pingora replays for the prepared body, which leaves whole and once, at the end.
///
/// # Errors
/// A client error when the rest of a chunked body holds anything but a few blanks, or does not end
/// in time.
pub(crate) fn replace(
    body: &mut Option<Bytes>,
    end_of_stream: bool,
    ctx: &mut RequestCtx,
) -> Result<()> {
    let Some(dispatch) = &ctx.dispatch else {
        return Ok(());
    };
    if ctx.body_state == BodyState::EndUnread
        && let Some(refusal) = judge_rest(body.as_deref().unwrap_or_default(), dispatch, ctx)
    {
        let status = refusal.status();
        ctx.refusal = Some(refusal);
        return Err(Error::new_down(ErrorType::HTTPStatus(status)));
    }
    ctx.body_bytes += u64::try_from(body.as_ref().map_or(0, Bytes::len)).unwrap_or_default()
        * u64::from(ctx.body_state == BodyState::EndUnread);
    let Some(dispatch) = &mut ctx.dispatch else {
        return Ok(());
    };
    // `None` before the end would end the engine's body early; empty is "nothing yet".
    *body = Some(if end_of_stream {
        // From here on the engine can work; before, its silence was the client's.
        dispatch.exchange.dispatched(tokio::time::Instant::now());
        dispatch.handed_over = true;
        dispatch.body.clone()
    } else {
        Bytes::new()
    });
    Ok(())
}

/// What is wrong with a piece that follows the JSON of a chunked body.
fn judge_rest(rest: &[u8], dispatch: &Dispatch, ctx: &RequestCtx) -> Option<ApiError> {
    if !rest.iter().all(u8::is_ascii_whitespace) {
        return Some(ApiError::bad_request(
            "invalid request: body must be a JSON object",
        ));
    }
    let sum = ctx.body_bytes + u64::try_from(rest.len()).unwrap_or(u64::MAX);
    if sum > ctx.routing.config.limits.max_body {
        return Some(ApiError::PayloadTooLarge);
    }
    let waited = dispatch.connected_at.map(|at| at.elapsed());
    let late = waited.is_some_and(|waited| waited > ctx.routing.config.timeouts.client_body_idle);
    late.then_some(ApiError::RequestTimeout)
}
