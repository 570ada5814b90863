//! The fault is at the decode half of a pair: prefill is never blamed, whatever becomes of a
//! transfer that nobody fetched.

use sgl_edge::mock::Faults;

use super::cell::{Case, Leg, Sees, Want};
use super::run::{both, faults, matrix};

const UNREACHABLE: Sees = Sees::Refused(502, "upstream_unreachable");
const TIMEOUT: Sees = Sees::Refused(504, "upstream_timeout");

/// Decode failed before it fetched the cache; prefill may have noticed or not.
const fn unfetched(sees: Sees, outcome: &'static str) -> Want {
    Want {
        sees,
        outcome,
        other: &["cancelled", "success"],
        stream_end: None,
    }
}

/// Decode has fetched the cache, so prefill is through.
const fn fetched(sees: Sees, outcome: &'static str) -> Want {
    Want {
        other: &["success"],
        ..unfetched(sees, outcome)
    }
}

const fn stream(sees: Sees, outcome: &'static str, end: &'static str) -> Want {
    Want {
        stream_end: Some(end),
        ..fetched(sees, outcome)
    }
}

fn before_headers() -> Vec<Case> {
    let case =
        |name, change: fn(&mut Faults)| both(name, faults(change), unfetched(UNREACHABLE, "error"));
    vec![
        case("refuse", |f| f.refuse_connections = true),
        case("reset", |f| f.reset_before_headers = true),
        case("close", |f| f.close_before_headers = true),
    ]
}

/// Decode refuses before it fetches anything, so the transfer fails on the other side.
fn statuses() -> Vec<Case> {
    let rows = [
        ("400", 400, "client_error"),
        ("422", 422, "client_error"),
        ("429", 429, "backpressure"),
        ("500", 500, "error"),
        ("503", 503, "backpressure"),
    ];
    let case = |(name, status, outcome)| {
        let want = unfetched(Sees::Status(status), outcome);
        both(name, faults(|faults| faults.status = Some(status)), want)
    };
    rows.into_iter().map(case).collect()
}

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
    let broken = fetched(Sees::Broken, "error");
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
            fetched(TIMEOUT, "error"),
            cut,
        ),
        case("lie", |f| f.lie_length = true, broken, lie),
        case(
            "event-503",
            |f| f.error_event_after_tokens = Some(2),
            fetched(Sees::Status(503), "backpressure"),
            event("backpressure"),
        ),
        case(
            "event-500",
            |f| (f.error_event_after_tokens, f.error_code) = (Some(2), Some(500)),
            fetched(Sees::Status(500), "error"),
            event("error"),
        ),
        case(
            "closes",
            |f| f.close_after_response = true,
            fetched(Sees::Status(200), "success"),
            stream(Sees::Status(200), "success", "ok"),
        ),
    ]
}

#[tokio::test]
async fn the_decode_leg() {
    let all = [before_headers(), statuses(), inside()];
    let mut cases: Vec<_> = all.into_iter().flatten().collect();
    // Prefill gives up its transfer first and says so, which blames it; nobody heard decode fail.
    cases.push(both(
        "stall",
        faults(|faults| faults.stall_before_headers = true),
        Want {
            other: &["error"],
            ..unfetched(Sees::Refused(502, "prefill_failed"), "cancelled")
        },
    ));
    matrix(Leg::Decode, &cases).await;
}
