//! The fault is at the prefill half of a pair: decode is let go and never blamed.

use sgl_edge::mock::Faults;

use super::cell::{Case, Leg, Sees, Want};
use super::run::{both, faults, matrix};

const FAILED: Sees = Sees::Refused(502, "prefill_failed");

const fn want(sees: Sees, outcome: &'static str) -> Want {
    Want {
        sees,
        outcome,
        other: &["cancelled"],
        stream_end: None,
    }
}

/// Everything that is not an answer.
fn broken() -> Vec<Case> {
    let case = |name, change: fn(&mut Faults)| both(name, faults(change), want(FAILED, "error"));
    vec![
        case("refuse", |f| f.refuse_connections = true),
        case("reset", |f| f.reset_before_headers = true),
        case("close", |f| f.close_before_headers = true),
        case("reset-late", |f| f.reset_after_tokens = Some(1)),
        case("cut-late", |f| f.cut_after_tokens = Some(1)),
        case("lie", |f| f.lie_length = true),
        case("late-500", |f| f.late_status = Some(500)),
    ]
}

/// A refusal of the request is the client's to know, everything else is not.
fn statuses() -> Vec<Case> {
    let rows = [
        ("400", 400, Sees::Status(400), "client_error"),
        ("404", 404, Sees::Status(404), "client_error"),
        ("422", 422, Sees::Status(422), "client_error"),
        ("429", 429, Sees::Status(429), "backpressure"),
        ("500", 500, FAILED, "error"),
        ("503", 503, FAILED, "backpressure"),
        ("504", 504, FAILED, "error"),
    ];
    let case = |(name, status, sees, outcome)| {
        both(
            name,
            faults(|faults| faults.status = Some(status)),
            want(sees, outcome),
        )
    };
    rows.into_iter().map(case).collect()
}

/// An error inside a 200.
fn events() -> Vec<Case> {
    let case = |name, code, outcome, json| Case {
        name,
        faults: faults(|f: &mut Faults| {
            (f.error_event_after_tokens, f.error_code) = (Some(0), Some(code));
        }),
        json: want(json, outcome),
        stream: want(FAILED, outcome),
    };
    vec![
        case("event-503", 503, "backpressure", FAILED),
        case("event-500", 500, "error", FAILED),
        case("event-400", 400, "client_error", Sees::Status(400)),
    ]
}

/// What does not matter, because only status and completeness do.
fn harmless() -> Vec<Case> {
    let case = |name, change: fn(&mut Faults)| {
        let json = Want {
            other: &["success"],
            ..want(Sees::Status(200), "success")
        };
        let stream = Want {
            stream_end: Some("ok"),
            ..json
        };
        Case {
            name,
            faults: faults(change),
            json,
            stream,
        }
    };
    vec![
        case("empty", |f| f.empty_reply = true),
        case("closes", |f| f.close_after_response = true),
        case("large", |f| f.big_reply_bytes = 1 << 20),
        case("late", |f| f.reply_delay_ms = 300),
    ]
}

#[tokio::test]
async fn the_prefill_leg() {
    let all = [broken(), statuses(), events(), harmless()];
    let mut cases: Vec<_> = all.into_iter().flatten().collect();
    cases.push(both(
        "stall",
        faults(|faults| faults.stall_before_headers = true),
        want(Sees::Silence, "error"),
    ));
    matrix(Leg::Prefill, &cases).await;
}
