//! Decided by what an engine does: its own refusals, and its ways to fail before and after headers.

use serde_json::json;
use sgl_edge::mock::{Engine, Faults};
use tokio::net::TcpStream;

use crate::support::body::{chat, small, stream};
use crate::support::child::Proxy;
use crate::support::client::{Answer, Client, End};
use crate::support::fleet::{and, engine, faulty, plain};
use crate::support::raw_engine::{self, Step, say};

/// What the engine says to whoever asks it directly.
async fn direct(engine: &Engine, body: &[u8]) -> Answer {
    let request = crate::support::body::with_length(body, "content-type: application/json\r\n");
    let mut client = Client::over(TcpStream::connect(engine.addr()).await.expect("an engine"));
    client.send(&request).await;
    client.answer().await
}

/// Refused on a connection of its own, which afterwards does what the refusal said.
async fn refused(proxy: &Proxy, body: &[u8], status: u16, code: &str) {
    let mut client = proxy.client().await;
    let answer = client.chat(body).await;
    answer.assert_refusal(status, code);
    client.assert_honest(&answer).await;
}

#[tokio::test]
async fn an_engines_refusal_passes_byte_for_byte() {
    let engine = engine("E1").await;
    // No breaker: 500 is passed on as often as it comes.
    let settings = and(plain(&[&engine]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    let mut client = proxy.client().await;
    for status in [400, 401, 404, 413, 422, 429, 500, 501, 502, 503, 504] {
        engine.faults().set(Faults {
            status: Some(status),
            reply_headers: [("retry-after".to_owned(), "7".to_owned())].into(),
            ..Faults::default()
        });
        for body in [small(), stream("x").to_string().into_bytes()] {
            let expected = direct(&engine, &body).await;
            let answer = client.chat(&body).await;
            answer.assert_engine(status);
            assert_eq!(answer.body, expected.body, "{status}");
            for name in ["content-type", "content-length", "retry-after"] {
                assert_eq!(
                    answer.header(name),
                    expected.header(name),
                    "{status} {name}"
                );
            }
            client.assert_kept(&answer).await;
        }
    }
    engine.faults().clear();
    // Refused by the engine's own schema.
    let body = br#"{"model":"m","messages":"wrong"}"#;
    let expected = direct(&engine, body).await;
    let answer = client.chat(body).await;
    answer.assert_engine(400);
    assert_eq!(answer.body, expected.body);
    proxy.finish().await;
}

#[tokio::test]
async fn a_good_answer_passes_byte_for_byte() {
    let body = "\u{0}\u{1}{\"not\": what you expect\u{ff}";
    let length = body.len();
    let engine = raw_engine::start(vec![
        say(&format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/weird\r\nX-Own: 1\r\nx-own: 2\r\n\
             content-length: {length}\r\n\r\n{body}"
        )),
        Step::Again,
    ])
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    let mut client = proxy.client().await;
    for _ in 0..3 {
        let answer = client.chat(&small()).await;
        answer.assert_engine(200);
        assert_eq!(answer.body, body.as_bytes());
        assert_eq!(answer.header("content-type"), Some("text/weird"));
        let own: Vec<_> = answer
            .headers
            .iter()
            .filter(|(name, _)| name == "x-own")
            .collect();
        assert_eq!(own.len(), 2);
    }
    proxy.finish().await;
}

#[tokio::test]
async fn interim_answers_of_an_engine_are_harmless() {
    let engine = raw_engine::start(vec![
        say("HTTP/1.1 100 Continue\r\n\r\n"),
        Step::Wait(100),
        say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        Step::Again,
    ])
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    for _ in 0..2 {
        let answer = proxy.chat_bytes(&small()).await;
        answer.assert_engine(200);
        assert_eq!(answer.text(), "ok");
    }
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_without_framing_ends_with_its_connection() {
    let engine = raw_engine::start(vec![
        say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"),
        say("data: one\n\n"),
        Step::Wait(50),
        say("data: [DONE]\n\n"),
    ])
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    let answer = proxy.chat(&stream("x")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), "data: one\n\ndata: [DONE]\n\n");
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_is_502() {
    let engine = engine("E1").await;
    let settings = and(plain(&[&engine]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    let mut cases = vec![
        Faults {
            refuse_connections: true,
            ..Faults::default()
        },
        Faults {
            reset_before_headers: true,
            ..Faults::default()
        },
        Faults {
            close_before_headers: true,
            ..Faults::default()
        },
    ];
    for faults in cases.drain(..) {
        engine.faults().set(faults.clone());
        engine.faults().settled().await;
        for body in [chat("x"), stream("x")] {
            refused(
                &proxy,
                body.to_string().as_bytes(),
                502,
                "upstream_unreachable",
            )
            .await;
        }
        let long = crate::support::body::sized(300_000);
        refused(&proxy, &long, 502, "upstream_unreachable").await;
        engine.faults().clear();
        engine.faults().settled().await;
        proxy.chat(&chat("x")).await.assert_engine(200);
    }
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        9.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn a_failed_request_is_not_sent_twice() {
    let engine = faulty(
        "E1",
        Faults {
            close_before_headers: true,
            ..Faults::default()
        },
    )
    .await;
    let second = engine_two().await;
    let settings = and(plain(&[&engine, &second]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    let mut failed = 0;
    for _ in 0..20 {
        failed += u64::from(proxy.chat(&chat("x")).await.status == 502);
    }
    let (first, second) = (engine.stats(), second.stats());
    assert_eq!((first.requests, second.requests), (failed, 20 - failed));
    proxy.finish().await;
}

async fn engine_two() -> Engine {
    engine("E2").await
}

#[tokio::test]
async fn nonsense_from_an_engine_is_502() {
    for script in [
        vec![say("SSH-2.0-OpenSSH_9\r\n")],
        vec![say("HTTP/1.1 abc\r\n\r\n")],
        vec![say("\0\0\0\0\0\0\0\0\r\n\r\n")],
        vec![say("HTTP/1.1 2"), Step::Wait(50), Step::Reset],
    ] {
        let engine = raw_engine::start(script).await;
        let proxy = Proxy::start(engine.settings()).await;
        refused(&proxy, &small(), 502, "upstream_unreachable").await;
        proxy.finish().await;
    }
}

#[tokio::test]
async fn an_engine_whose_name_does_not_resolve_is_misconfigured() {
    // Longer than a DNS label may be, so that no resolver asks anybody.
    let url = format!("http://{}.invalid:30000", "x".repeat(64));
    let settings = json!({"models": [{
        "id": "m", "engines": {"static": [{"id": "lost", "url": url, "role": "plain"}]},
    }]});
    let proxy = Proxy::start(settings).await;
    for _ in 0..2 {
        refused(&proxy, &small(), 503, "worker_misconfigured").await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn an_answer_cut_after_its_head_does_not_look_whole() {
    let engine = engine("E1").await;
    let settings = and(plain(&[&engine]), json!({"circuit_breaker": null}));
    let proxy = Proxy::start(settings).await;
    for faults in [
        Faults {
            lie_length: true,
            ..Faults::default()
        },
        Faults {
            cut_after_tokens: Some(0),
            big_reply_bytes: 300_000,
            ..Faults::default()
        },
        Faults {
            reset_after_tokens: Some(0),
            big_reply_bytes: 300_000,
            ..Faults::default()
        },
        Faults {
            cut_after_tokens: Some(0),
            ..Faults::default()
        },
    ] {
        engine.faults().set(faults.clone());
        let mut client = proxy.client().await;
        let answer = client.chat(&small()).await;
        if answer.status == 502 {
            // Nothing had been passed on yet.
            answer.assert_refusal(502, "upstream_body_incomplete");
            assert_eq!(answer.header("x-router-upstream-status"), Some("200"));
        } else {
            assert_eq!((answer.status, answer.end), (200, End::Cut), "{faults:?}");
            assert!(client.is_closed().await);
        }
    }
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("worker_requests_total", &[("outcome", "error")]),
        4.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_that_answers_without_reading_is_heard() {
    let engine = raw_engine::start_deaf(
        "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy",
    )
    .await;
    let proxy = Proxy::start(engine.settings()).await;
    let answer = proxy
        .chat_bytes(&crate::support::body::sized(5 << 20))
        .await;
    answer.assert_engine(503);
    assert_eq!(answer.text(), "busy");
    proxy.finish().await;
}
