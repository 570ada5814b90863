//! The fault is at a plain engine, spoken to over HTTP/1.1 and over HTTP/2.

use sgl_edge::mock::Faults;

use super::cell::{Case, Leg, Sees, Want};
use super::run::{both, faults, matrix};

const UNREACHABLE: Sees = Sees::Refused(502, "upstream_unreachable");
const TIMEOUT: Sees = Sees::Refused(504, "upstream_timeout");

const fn want(sees: Sees, outcome: &'static str) -> Want {
    Want {
        sees,
        outcome,
        other: &[],
        stream_end: None,
    }
}

const fn stream(sees: Sees, outcome: &'static str, end: &'static str) -> Want {
    Want {
        stream_end: Some(end),
        ..want(sees, outcome)
    }
}

/// Before headers: nothing of an answer exists.
fn before_headers() -> Vec<Case> {
    let case =
        |name, change: fn(&mut Faults), sees| both(name, faults(change), want(sees, "error"));
    vec![
        case("refuse", |f| f.refuse_connections = true, UNREACHABLE),
        case("reset", |f| f.reset_before_headers = true, UNREACHABLE),
        case("close", |f| f.close_before_headers = true, UNREACHABLE),
        case("stall", |f| f.stall_before_headers = true, TIMEOUT),
    ]
}

/// The engine's own statuses.
fn statuses() -> Vec<Case> {
    let rows = [
        ("400", 400, "client_error"),
        ("401", 401, "client_error"),
        ("404", 404, "client_error"),
        ("422", 422, "client_error"),
        ("429", 429, "backpressure"),
        ("500", 500, "error"),
        ("502", 502, "error"),
        ("503", 503, "backpressure"),
        ("504", 504, "error"),
    ];
    let case = |(name, status, outcome)| {
        let want = want(Sees::Status(status), outcome);
        both(name, faults(|faults| faults.status = Some(status)), want)
    };
    rows.into_iter().map(case).collect()
}

/// After the first token, or inside the answer.
fn inside() -> Vec<Case> {
    let case = |name, change: fn(&mut Faults), json, stream| Case {
        name,
        faults: faults(change),
        json,
        stream,
    };
    let cut = stream(Sees::Cut, "error", "upstream_error");
    // All that was true has been passed on, the mark at its end included.
    let lie = stream(Sees::Broken, "error", "upstream_error");
    let broken = want(Sees::Broken, "error");
    let event = |outcome| stream(Sees::Status(200), outcome, "stream_error_event");
    vec![
        case(
            "reset-late",
            |f| f.reset_after_tokens = Some(2),
            broken,
            cut,
        ),
        case("cut-late", |f| f.cut_after_tokens = Some(2), broken, cut),
        case(
            "stall-late",
            |f| f.stall_after_tokens = Some(2),
            want(TIMEOUT, "error"),
            cut,
        ),
        case("lie", |f| f.lie_length = true, broken, lie),
        case(
            "event-503",
            |f| f.error_event_after_tokens = Some(2),
            want(Sees::Status(503), "backpressure"),
            event("backpressure"),
        ),
        case(
            "event-429",
            |f| (f.error_event_after_tokens, f.error_code) = (Some(2), Some(429)),
            want(Sees::Status(429), "backpressure"),
            event("backpressure"),
        ),
        case(
            "event-500",
            |f| (f.error_event_after_tokens, f.error_code) = (Some(2), Some(500)),
            want(Sees::Status(500), "error"),
            event("error"),
        ),
        case(
            "event-400",
            |f| (f.error_event_after_tokens, f.error_code) = (Some(2), Some(400)),
            want(Sees::Status(400), "client_error"),
            event("client_error"),
        ),
    ]
}

/// Odd, but whole.
fn harmless() -> Vec<Case> {
    let whole = |end| stream(Sees::Status(200), "success", end);
    let case = |name, change: fn(&mut Faults), stream| Case {
        name,
        faults: faults(change),
        json: want(Sees::Status(200), "success"),
        stream,
    };
    vec![
        case(
            "empty",
            |f| f.empty_reply = true,
            want(Sees::Status(200), "success"),
        ),
        case(
            "heartbeats",
            |f| (f.heartbeats, f.heartbeat_ms) = (3, 100),
            whole("ok"),
        ),
        case("large", |f| f.big_reply_bytes = 300_000, whole("ok")),
    ]
}

fn cases() -> Vec<Case> {
    let all = [before_headers(), statuses(), inside(), harmless()];
    all.into_iter().flatten().collect()
}

#[tokio::test]
async fn over_http1() {
    let mut cases = cases();
    cases.push(Case {
        name: "closes",
        faults: faults(|faults| faults.close_after_response = true),
        json: want(Sees::Status(200), "success"),
        stream: stream(Sees::Status(200), "success", "ok"),
    });
    matrix(Leg::Plain, &cases).await;
}

#[tokio::test]
async fn over_http2() {
    matrix(Leg::PlainHttp2, &cases()).await;
}
