//! Queued in the engine, before the first token, in the middle of the answer; plain and decode.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use sgl_edge::mock::{Faults, Stats};
use tokio::net::TcpStream;

use super::visit::{AT_ONCE, HOWS, How, Visit, assert_not_blamed, released};
use crate::matrix::cell::{Cell, Leg, ROUNDS, Wire, request};
use crate::matrix::run::{all_of, idle, settings, spoken_to_over_http2};
use crate::matrix::watched::Watched;
use crate::support::body::{with, with_length};
use crate::support::client::Client;
use crate::support::eventually;

/// Where the request is when its client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the engine's queue, behind another request.
    Queued,
    /// The engine works and has said nothing.
    FirstToken,
    /// The engine generates; a stream has begun, JSON has not.
    Generating,
}

pub(super) const PHASES: [Phase; 3] = [Phase::Queued, Phase::FirstToken, Phase::Generating];

/// One row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) phase: Phase,
    pub(super) how: How,
    /// What the request says besides.
    pub(super) more: Value,
    pub(super) cell: Cell,
}

impl Row {
    pub(super) async fn new(leg: Leg, phase: Phase, how: How, stream: bool, more: Value) -> Self {
        let name = format!("{phase:?}-{how:?}-{more}").replace(['"', '{', '}', ':'], "");
        Self {
            phase,
            how,
            more,
            cell: Cell::running(1, leg, &name, stream, Wire::Http1).await,
        }
    }

    fn request(&self) -> Vec<u8> {
        let body = request(&self.cell.name, self.cell.stream);
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        with(body, self.more.clone()).to_string().into_bytes()
    }

    /// Whether this router makes an id for the engine.
    fn has_own_id(&self) -> bool {
        let plain = matches!(self.cell.leg, Leg::Plain | Leg::PlainHttp2);
        plain && self.cell.stream && self.more == json!({})
    }
}

/// A request that keeps the only place of the engine, sent past the proxy.
pub(super) async fn occupy(cell: &Cell) -> Client {
    let body = with(
        json!({"messages": [{"role": "user", "content": "x"}]}),
        json!({"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 1}),
    );
    let headers = "content-type: application/json\r\nx-sgl-mock-ttft-ms: 600000\r\n";
    let socket = TcpStream::connect(cell.faulty.addr()).await;
    let mut client = Client::over(socket.expect("an engine"));
    let request = with_length(body.to_string().as_bytes(), headers);
    client.send(&request).await;
    eventually("the place is taken", async || {
        cell.faulty.stats().inflight == 1
    })
    .await;
    client
}

/// Gets a request into the row's phase.
pub(super) async fn enter(proxy: &Watched, row: &Row, before: &Stats) -> Visit {
    let engine = &row.cell.faulty;
    engine.faults().set(match row.phase {
        Phase::Queued => Faults::default(),
        Phase::FirstToken => Faults {
            ttft_ms: Some(600_000),
            ..Faults::default()
        },
        Phase::Generating => Faults {
            tokens: Some(100_000),
            interval_ms: Some(50),
            ..Faults::default()
        },
    });
    let mut visit = Visit::begin(proxy, row.how, &row.request()).await;
    eventually("the engine has the request", async || {
        let now = engine.stats();
        let generates = row.phase != Phase::Generating || now.tokens_out > before.tokens_out + 1;
        now.requests == before.requests + 1 && generates
    })
    .await;
    if row.phase == Phase::Generating && row.cell.stream {
        visit.read_some().await;
    }
    visit
}

async fn leave_three_times(proxy: Arc<Watched>, row: Row) {
    let (engine, name) = (&row.cell.faulty, &row.cell.name);
    let holder = match row.phase {
        Phase::Queued => Some(occupy(&row.cell).await),
        Phase::FirstToken | Phase::Generating => None,
    };
    let occupied = u64::from(holder.is_some());
    for _ in 0..ROUNDS {
        let before = engine.stats();
        let turn = proxy.turn().await;
        let visit = enter(&proxy, &row, &before).await;
        let left = visit.leave().await;
        released(&proxy, engine.name(), left, AT_ONCE).await;
        drop(turn);
        eventually("the engine is let go", async || {
            engine.stats().inflight == occupied
        })
        .await;
        assert!(left.elapsed() < AT_ONCE, "{name}: {:?}", left.elapsed());
    }
    drop(holder);
    idle(&proxy, &row.cell).await;
    assert_not_blamed(&proxy, engine.name(), &["cancelled"], ROUNDS).await;
    if let Some(prefill) = &row.cell.other {
        let outcomes = ["success", "cancelled"];
        assert_not_blamed(&proxy, prefill.name(), &outcomes, ROUNDS).await;
        assert_eq!(prefill.stats().aborts_received.len(), 0, "{name}");
    }
    assert_ends_of_streams(&proxy, &row).await;
    assert_aborts(&row).await;
}

/// Streams that had begun are booked as left by the client.
async fn assert_ends_of_streams(proxy: &Watched, row: &Row) {
    let gauges = proxy.gauges().await;
    let engine = ("worker_url", row.cell.faulty.name());
    let left = [engine, ("outcome", "client_disconnect")];
    let begun = row.cell.stream && row.phase == Phase::Generating;
    let expected = if begun { f64::from(ROUNDS) } else { 0.0 };
    assert_eq!(gauges.sum_of("stream_outcome_total", &left), expected);
    assert_eq!(gauges.sum_of("stream_outcome_total", &[engine]), expected);
}

/// The engine was told the ids that this router made, and no others.
async fn assert_aborts(row: &Row) {
    let engine = &row.cell.faulty;
    let bodies = engine
        .recorded()
        .into_iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).expect("JSON"));
    let made: BTreeSet<String> = bodies
        .filter(|_| row.has_own_id())
        .filter_map(|body| body["rid"].as_str().map(str::to_owned))
        .collect();
    let expected = if row.has_own_id() { ROUNDS as usize } else { 0 };
    assert_eq!(made.len(), expected, "{}: ids", row.cell.name);
    eventually("the aborts arrive", async || {
        engine.stats().aborts_received.len() >= expected
    })
    .await;
    let aborts = engine.stats().aborts_received;
    assert_eq!(aborts.len(), expected, "{}: {aborts:?}", row.cell.name);
    let aborts: BTreeSet<String> = aborts.into_iter().collect();
    assert_eq!(aborts, made, "{}", row.cell.name);
}

async fn table(rows: Vec<Row>) {
    let models: Vec<_> = rows.iter().map(|row| row.cell.model()).collect();
    let mut settings = settings(&models);
    // Nothing but the client ends these requests.
    settings["timeouts"] = json!({"first_byte": "60s", "stream_idle": "60s"});
    let proxy = Watched::start(&settings).await;
    if rows.iter().any(|row| row.cell.leg == Leg::PlainHttp2) {
        spoken_to_over_http2(&proxy, rows.len()).await;
    }
    let rows = rows.into_iter();
    let work = rows.map(|row| {
        let name = format!("{}-{}", row.cell.name, row.cell.stream);
        (name, leave_three_times(Arc::clone(&proxy), row))
    });
    all_of(work).await;
    Watched::finish(proxy).await;
}

async fn rows(leg: Leg) -> Vec<Row> {
    let mut rows = Vec::new();
    for phase in PHASES {
        for how in HOWS {
            for stream in [false, true] {
                rows.push(Row::new(leg, phase, how, stream, json!({})).await);
            }
        }
    }
    rows
}

#[tokio::test]
async fn a_plain_engine_is_let_go() {
    let mut rows = rows(Leg::Plain).await;
    // Ids of others are not ours to abort, and several choices get other ids from the engine.
    for (phase, more) in [
        (Phase::Generating, json!({"rid": "mine"})),
        (Phase::FirstToken, json!({"rid": "mine"})),
        (Phase::Generating, json!({"n": 2})),
    ] {
        rows.push(Row::new(Leg::Plain, phase, How::Close, true, more).await);
    }
    table(rows).await;
}

#[tokio::test]
async fn a_plain_engine_over_http2_is_let_go() {
    table(rows(Leg::PlainHttp2).await).await;
}

#[tokio::test]
async fn a_decode_engine_is_let_go() {
    table(rows(Leg::Decode).await).await;
}
