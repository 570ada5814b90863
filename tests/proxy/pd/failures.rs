//! One leg fails: the other ends at once and the client hears why.

use std::time::{Duration, Instant};

use serde_json::json;
use sgl_edge::mock::Faults;

use super::{Pair, pair, pair_with};
use crate::support::body::{chat, stream};
use crate::support::client::End;
use crate::support::eventually;
use crate::support::fleet::quiet;

/// Far below every configured limit, far above the milliseconds it should take.
const QUICK: Duration = Duration::from_secs(8);

/// Decode was left `rounds` times, unless it had not even been told; holds nothing, and is not
/// blamed.
async fn assert_decode_released(pair: &Pair, rounds: u64) {
    quiet(&pair.decode).await;
    quiet(&pair.prefill).await;
    let stats = pair.decode.stats();
    assert_eq!((stats.aborted, stats.completed), (stats.requests, 0));
    assert!((1..=rounds).contains(&stats.requests), "{stats:?}");
    let gauges = pair.proxy.gauges().await;
    let error = [("worker_url", "D1"), ("outcome", "error")];
    assert_eq!(gauges.sum_of("worker_requests_total", &error), 0.0);
}

#[tokio::test]
async fn a_prefill_engine_that_breaks_is_502_at_once() {
    let pair = pair_with(json!({"circuit_breaker": null})).await;
    let mut rounds = 0;
    for faults in [
        Faults {
            status: Some(503),
            ..Faults::default()
        },
        Faults {
            status: Some(500),
            ..Faults::default()
        },
        Faults {
            close_before_headers: true,
            ..Faults::default()
        },
        Faults {
            reset_before_headers: true,
            ..Faults::default()
        },
        Faults {
            refuse_connections: true,
            ..Faults::default()
        },
    ] {
        pair.prefill.faults().set(faults.clone());
        pair.prefill.faults().settled().await;
        for body in [chat("x"), stream("x")] {
            let started = Instant::now();
            let mut client = pair.proxy.client().await;
            let answer = client.chat(body.to_string().as_bytes()).await;
            answer.assert_refusal(502, "prefill_failed");
            assert!(started.elapsed() < QUICK, "{faults:?}");
            client.assert_honest(&answer).await;
            rounds += 1;
        }
    }
    assert_decode_released(&pair, rounds).await;
    pair.proxy.idle().await;
    let gauges = pair.proxy.gauges().await;
    let outcome = |outcome| {
        gauges.sum_of(
            "worker_requests_total",
            &[("worker_url", "P1"), ("outcome", outcome)],
        )
    };
    assert_eq!((outcome("backpressure"), outcome("error")), (2.0, 8.0));
    pair.prefill.faults().clear();
    pair.prefill.faults().settled().await;
    pair.proxy.chat(&chat("x")).await.assert_engine(200);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn a_prefill_engine_that_refuses_the_request_is_quoted() {
    let pair = pair().await;
    for status in [400, 404, 422, 429] {
        pair.prefill
            .faults()
            .update(|faults| faults.status = Some(status));
        for body in [chat("x"), stream("x")] {
            let mut client = pair.proxy.client().await;
            let answer = client.chat(body.to_string().as_bytes()).await;
            answer.assert_engine(status);
            assert_eq!(answer.json()["message"], "Injected failure.");
            assert_eq!(answer.json()["code"], status);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            client.assert_honest(&answer).await;
        }
    }
    assert_decode_released(&pair, 8).await;
    // The request was wrong, not the engine.
    pair.prefill.faults().clear();
    pair.proxy.chat(&chat("x")).await.assert_engine(200);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn a_prefill_that_breaks_its_answer_off_has_failed() {
    let pair = pair_with(json!({"circuit_breaker": null})).await;
    pair.decode
        .faults()
        .update(|faults| faults.ttft_ms = Some(20_000));
    for (faults, body) in [
        (
            Faults {
                lie_length: true,
                ..Faults::default()
            },
            chat("x"),
        ),
        (
            Faults {
                cut_after_tokens: Some(1),
                ..Faults::default()
            },
            stream("x"),
        ),
        (
            Faults {
                reset_after_tokens: Some(0),
                ..Faults::default()
            },
            stream("x"),
        ),
        (
            Faults {
                error_event_after_tokens: Some(0),
                ..Faults::default()
            },
            stream("x"),
        ),
        (
            Faults {
                late_status: Some(500),
                ..Faults::default()
            },
            stream("x"),
        ),
        (
            Faults {
                late_status: Some(503),
                ..Faults::default()
            },
            chat("x"),
        ),
    ] {
        pair.prefill.faults().set(faults.clone());
        let started = Instant::now();
        let answer = pair.proxy.chat(&body).await;
        answer.assert_refusal(502, "prefill_failed");
        assert!(started.elapsed() < QUICK, "{faults:?}");
    }
    assert_decode_released(&pair, 6).await;
    pair.proxy.finish().await;
}

#[tokio::test]
async fn a_prefill_that_fails_after_decode_began_cuts_the_stream() {
    let pair = pair().await;
    pair.decode.faults().set(Faults {
        tokens: Some(400),
        interval_ms: Some(100),
        ..Faults::default()
    });
    pair.prefill.faults().set(Faults {
        reply_delay_ms: 1_000,
        late_status: Some(500),
        ..Faults::default()
    });
    let started = Instant::now();
    let answer = pair.proxy.chat(&stream("x")).await;
    assert_eq!((answer.status, answer.end), (200, End::Cut));
    assert!(answer.text().contains("data: "), "it had begun");
    assert!(!answer.text().contains("[DONE]"), "it does not look whole");
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "40 s were to come"
    );
    assert_decode_released(&pair, 1).await;
    pair.proxy.finish().await;
}

#[tokio::test]
async fn a_late_prefill_failure_hits_no_other_request() {
    let pair = pair_with(json!({"circuit_breaker": null})).await;
    // Decode is through before prefill fails, on a slow machine too; its connection serves the next
    // requests.
    pair.prefill.faults().set(Faults {
        reply_delay_ms: 1_500,
        late_status: Some(500),
        ..Faults::default()
    });
    let mut client = pair.proxy.client().await;
    for i in 0..30 {
        let text = format!("word{i}");
        let answer = client.chat(chat(&text).to_string().as_bytes()).await;
        answer.assert_engine(200);
        assert!(answer.text().contains(&text));
    }
    quiet(&pair.prefill).await;
    assert_eq!(pair.decode.stats().aborted, 0);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn a_refused_decode_never_starts_a_prefill() {
    let pair = pair_with(json!({"circuit_breaker": null})).await;
    pair.decode
        .faults()
        .update(|faults| faults.refuse_connections = true);
    pair.decode.faults().settled().await;
    for body in [chat("x"), stream("x")] {
        let answer = pair.proxy.chat(&body).await;
        answer.assert_refusal(502, "upstream_unreachable");
    }
    assert_eq!(pair.prefill.stats().requests, 0);
    pair.decode.faults().clear();
    pair.decode.faults().settled().await;
    pair.proxy.chat(&chat("x")).await.assert_engine(200);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn what_decode_answers_goes_to_the_client() {
    let pair = pair_with(json!({"circuit_breaker": null})).await;
    // Prefill takes its time and is then no longer awaited.
    pair.prefill
        .faults()
        .update(|faults| faults.ttft_ms = Some(500));
    for status in [400, 500, 503] {
        pair.decode.faults().set(Faults {
            status: Some(status),
            ..Faults::default()
        });
        let answer = pair.proxy.chat(&chat("x")).await;
        answer.assert_engine(status);
        assert_eq!(answer.header("x-mock-engine"), Some("D1"));
    }
    pair.decode.faults().set(Faults {
        close_before_headers: true,
        ..Faults::default()
    });
    let answer = pair.proxy.chat(&chat("x")).await;
    answer.assert_refusal(502, "upstream_unreachable");
    eventually("decode is counted off", async || {
        let gauges = pair.proxy.gauges().await;
        gauges.sum_of("worker_inflight_requests", &[("worker_url", "D1")]) == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_silent_prefill_ends_with_first_byte() {
    let pair = pair_with(json!({"timeouts": {"first_byte": "1s"}, "circuit_breaker": null})).await;
    pair.prefill
        .faults()
        .update(|faults| faults.stall_before_headers = true);
    for body in [chat("x"), stream("x")] {
        let answer = pair.proxy.chat(&body).await;
        answer.assert_refusal(504, "upstream_timeout");
    }
    quiet(&pair.decode).await;
    quiet(&pair.prefill).await;
    pair.proxy.finish().await;
}
