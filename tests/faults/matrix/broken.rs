//! Bytes that no decent engine sends: breaks inside the head, inside an event, lies about length.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cell::{Leg, ROUNDS, SHAPES, Sees, Sender, Wire, model, request};
use super::run::{all_of, settings};
use super::watched::Watched;
use crate::support::eventually;
use crate::support::raw_engine::{self, RawEngine, Step, say};

const UNREACHABLE: Sees = Sees::Refused(502, "upstream_unreachable");

/// What the engine does, what a client of a plain or decode engine sees, the engine's outcome.
fn rows() -> Vec<(&'static str, Vec<Step>, Sees, &'static str)> {
    let events = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                  transfer-encoding: chunked\r\n\r\n";
    let half = format!("{events}14\r\ndata: {{\"choices\": [{{\r\n");
    let done = format!("{events}e\r\ndata: [DONE]\n\n\r\n");
    let sized = |length, body| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
    // What was said is passed on before the break comes.
    let then = |text: &str, end: Option<Step>| {
        let steps = [say(text), Step::Wait(150)];
        steps.into_iter().chain(end).collect::<Vec<_>>()
    };
    let reset = || Some(Step::Reset);
    vec![
        (
            "head-reset",
            then("HTTP/1.1 200 OK\r\ncont", reset()),
            UNREACHABLE,
            "error",
        ),
        (
            "head-close",
            then("HTTP/1.1 200 OK\r\ncont", None),
            UNREACHABLE,
            "error",
        ),
        (
            "headers-reset",
            then(events, reset()),
            Sees::Broken,
            "error",
        ),
        ("headers-close", then(events, None), Sees::Broken, "error"),
        ("event-reset", then(&half, reset()), Sees::Cut, "error"),
        ("event-close", then(&half, None), Sees::Cut, "error"),
        ("no-last-chunk", then(&done, None), Sees::Broken, "error"),
        (
            "no-chunk",
            then(&format!("{half}zz\r\n"), None),
            Sees::Cut,
            "error",
        ),
        (
            "too-short",
            then(&sized(100, "short"), None),
            Sees::Broken,
            "error",
        ),
        (
            "too-short-reset",
            then(&sized(100, "short"), reset()),
            Sees::Broken,
            "error",
        ),
        (
            "too-long",
            then(&sized(5, "short and more"), None),
            Sees::Status(200),
            "success",
        ),
    ]
}

/// Engines and proxy entries of one cell.
struct Raw {
    name: String,
    leg: Leg,
    stream: bool,
    wire: Wire,
    faulty: RawEngine,
    other: Option<RawEngine>,
    sees: Sees,
    outcome: &'static str,
}

impl Raw {
    fn ids(&self) -> [String; 2] {
        [
            format!("{}-faulty", self.name),
            format!("{}-other", self.name),
        ]
    }

    fn model(&self) -> Value {
        let (faulty, other) = self.leg.roles();
        let roles = [Some(faulty), other].into_iter().flatten();
        let engines = [Some(&self.faulty), self.other.as_ref()]
            .into_iter()
            .flatten();
        let entries: Vec<_> = roles
            .zip(engines)
            .zip(self.ids())
            .map(|((role, engine), id)| {
                let url = format!("http://{}", engine.address);
                json!({"id": id, "url": url, "role": role.as_str()})
            })
            .collect();
        model(&self.name, &entries)
    }
}

async fn cells(leg: Leg) -> Vec<Raw> {
    let mut cells = Vec::new();
    for (name, script, sees, outcome) in rows() {
        for (stream, wire) in SHAPES {
            let fine = vec![
                say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
                Step::Again,
            ];
            cells.push(Raw {
                name: format!("{name}-{stream}-{wire:?}"),
                leg,
                stream,
                wire,
                faulty: raw_engine::start(script.clone()).await,
                other: match leg {
                    Leg::Plain | Leg::PlainHttp2 => None,
                    Leg::Decode => Some(raw_engine::start(fine).await),
                    Leg::Prefill if outcome == "success" => Some(raw_engine::start(fine).await),
                    Leg::Prefill => Some(raw_engine::start(vec![Step::Hold]).await),
                },
                sees: match (leg, outcome) {
                    (Leg::Prefill, "error") => Sees::Refused(502, "prefill_failed"),
                    _ => sees,
                },
                outcome,
            });
        }
    }
    cells
}

async fn matrix(leg: Leg) {
    let cells = cells(leg).await;
    let models: Vec<_> = cells.iter().map(Raw::model).collect();
    let proxy = Watched::start(&settings(&models)).await;
    let cells = cells.into_iter();
    let work = cells.map(|cell| (cell.name.clone(), exercise(Arc::clone(&proxy), cell)));
    all_of(work).await;
    Watched::finish(proxy).await;
}

async fn exercise(proxy: Arc<Watched>, cell: Raw) {
    let mut sender = Sender::new(cell.wire, &proxy).await;
    for _ in 0..ROUNDS {
        let turn = proxy.turn().await;
        let answer = sender.send(&proxy, &request(&cell.name, cell.stream)).await;
        drop(turn);
        cell.sees.check(&answer, &cell.name);
    }
    let [faulty, other] = cell.ids();
    eventually("nothing is held", async || {
        let gauges = proxy.gauges().await;
        let held = |id: &str| gauges.sum_of("worker_inflight_requests", &[("worker_url", id)]);
        held(&faulty) + held(&other) == 0.0
    })
    .await;
    let gauges = proxy.gauges().await;
    let labels = [("worker_url", faulty.as_str()), ("outcome", cell.outcome)];
    let booked = gauges.sum_of("worker_requests_total", &labels);
    assert_eq!(booked, f64::from(ROUNDS), "{}: {}", cell.name, cell.outcome);
    let breaker = |id: &str| gauges.sum_of("worker_cb_state", &[("worker_url", id)]);
    assert_eq!(
        breaker(&faulty) == 1.0,
        cell.outcome == "error",
        "{}",
        cell.name
    );
    assert_eq!(breaker(&other), 0.0, "{}: the other is blamed", cell.name);
    assert_eq!(cell.faulty.seen(), ROUNDS, "{}: sent twice", cell.name);
}

#[tokio::test]
async fn from_a_plain_engine() {
    matrix(Leg::Plain).await;
}

#[tokio::test]
async fn from_a_prefill_engine() {
    matrix(Leg::Prefill).await;
}

#[tokio::test]
async fn from_a_decode_engine() {
    matrix(Leg::Decode).await;
}
