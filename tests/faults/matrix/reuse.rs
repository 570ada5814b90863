//! Connections that the engine ends between requests, and engines that are killed and come back.

use std::sync::Arc;
use std::time::Duration;

use sgl_edge::mock::Faults;
use tokio::time::Instant;

use super::cell::{Cell, Leg, SHAPES, Sees, Sender};
use super::run::{all_of, idle, settings, spoken_to_over_http2};
use super::watched::Watched;
use crate::support::{eventually, pause};

/// Runs `work` in every shape of this leg.
async fn each<W>(leg: Leg, name: &str, work: fn(Arc<Watched>, Cell) -> W)
where
    W: Future<Output = ()> + 'static,
{
    let mut cells = Vec::new();
    for (stream, wire) in SHAPES {
        cells.push(Cell::new(leg, name, stream, wire).await);
    }
    let models: Vec<_> = cells.iter().map(Cell::model).collect();
    let proxy = Watched::start(&settings(&models)).await;
    if leg == Leg::PlainHttp2 {
        spoken_to_over_http2(&proxy, cells.len()).await;
    }
    let cells = cells.into_iter();
    all_of(cells.map(|cell| (cell.name.clone(), work(Arc::clone(&proxy), cell)))).await;
    Watched::finish(proxy).await;
}

/// How many legs of this outcome the faulty engine had.
async fn booked(proxy: &Watched, cell: &Cell, outcome: &str) -> f64 {
    let labels = [("worker_url", cell.faulty.name()), ("outcome", outcome)];
    let gauges = proxy.gauges().await;
    gauges.sum_of("worker_requests_total", &labels)
}

async fn serves(proxy: &Watched, cell: &Cell, sender: &mut Sender, times: u32) {
    for nth in 0..times {
        let answer = sender.send(proxy, &cell.request()).await;
        Sees::Status(200).check(&answer, &format!("{} {nth}", cell.name));
    }
}

/// The engine closes what is idle, and says nothing.
async fn closed_while_idle(proxy: Arc<Watched>, cell: Cell) {
    let mut sender = Sender::new(cell.wire, &proxy).await;
    cell.faulty
        .faults()
        .update(|faults| faults.close_idle_after_ms = Some(150));
    for _ in 0..5 {
        serves(&proxy, &cell, &mut sender, 1).await;
        pause(450).await;
    }
    idle(&proxy, &cell).await;
    assert_eq!(booked(&proxy, &cell, "success").await, 5.0, "{}", cell.name);
    assert_eq!(cell.faulty.stats().requests, 5, "{}: sent twice", cell.name);
}

/// The engine closes after each answer without saying so: the next request may already be on the
/// same connection.
async fn closed_after_each(proxy: Arc<Watched>, cell: Cell) {
    let mut sender = Sender::new(cell.wire, &proxy).await;
    cell.faulty
        .faults()
        .update(|faults| faults.close_after_response = true);
    serves(&proxy, &cell, &mut sender, 40).await;
    idle(&proxy, &cell).await;
    assert_eq!(
        booked(&proxy, &cell, "success").await,
        40.0,
        "{}",
        cell.name
    );
}

/// Within this time a pooled connection that is found closed is taken for a stale one.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The engine closes a kept connection at the moment when a request arrives on it: to the proxy that
/// looks as if the request had come too late, so it goes once more to the same engine, and only once.
async fn raced(proxy: Arc<Watched>, cell: Cell) {
    let mut sender = Sender::new(cell.wire, &proxy).await;
    serves(&proxy, &cell, &mut sender, 1).await;
    for (times, sees) in [
        (1, Sees::Status(200)),
        (2, Sees::Refused(502, "upstream_unreachable")),
    ] {
        cell.faulty.faults().set(Faults {
            close_before_headers: true,
            times: Some(times),
            ..Faults::default()
        });
        let begun = Instant::now();
        let answer = sender.send(&proxy, &cell.request()).await;
        if begun.elapsed() > AT_ONCE {
            // This machine is too slow for the proxy to tell.
            return;
        }
        sees.check(&answer, &cell.name);
    }
    idle(&proxy, &cell).await;
    assert_eq!(booked(&proxy, &cell, "success").await, 2.0, "{}", cell.name);
    assert_eq!(booked(&proxy, &cell, "error").await, 1.0, "{}", cell.name);
    assert_eq!(cell.faulty.stats().requests, 5, "{}", cell.name);
}

/// The engine is killed between two requests, and then in the middle of one.
async fn killed(proxy: Arc<Watched>, mut cell: Cell) {
    let mut sender = Sender::new(cell.wire, &proxy).await;
    serves(&proxy, &cell, &mut sender, 2).await;
    cell = cell.restarted().await;
    serves(&proxy, &cell, &mut sender, 3).await;
    idle(&proxy, &cell).await;
    assert_eq!(booked(&proxy, &cell, "error").await, 0.0, "{}", cell.name);
    let sees = match (cell.leg, cell.stream) {
        (Leg::Prefill, _) => Sees::Refused(502, "prefill_failed"),
        (_, false) => Sees::Refused(502, "upstream_unreachable"),
        (_, true) => Sees::Cut,
    };
    let is_streaming = sees == Sees::Cut;
    cell.faulty.faults().set(Faults {
        ttft_ms: (!is_streaming).then_some(20_000),
        tokens: Some(1_000),
        interval_ms: Some(100),
        ..Faults::default()
    });
    let (request, before) = (cell.request(), cell.faulty.stats());
    let kill = async {
        eventually("the engine is in the middle of it", async || {
            let stats = cell.faulty.stats();
            let tokens = stats.tokens_out - before.tokens_out;
            stats.inflight == 1 && (!is_streaming || tokens > 2)
        })
        .await;
        // Long enough for nobody to take the connection for one that was closed while idle.
        pause(500).await;
        cell.restarted().await
    };
    let (answer, cell) = tokio::join!(sender.send(&proxy, &request), kill);
    sees.check(&answer, &cell.name);
    assert_eq!(cell.faulty.stats().requests, 0, "{}: sent twice", cell.name);
    serves(&proxy, &cell, &mut sender, 3).await;
    idle(&proxy, &cell).await;
    assert_eq!(booked(&proxy, &cell, "error").await, 1.0, "{}", cell.name);
    assert_eq!(booked(&proxy, &cell, "success").await, 8.0, "{}", cell.name);
}

macro_rules! legs {
    ($($test:ident: $work:ident, $leg:ident;)+) => {$(
        #[tokio::test]
        async fn $test() {
            each(Leg::$leg, stringify!($work), $work).await;
        }
    )+};
}

legs! {
    idle_plain: closed_while_idle, Plain;
    idle_plain_http2: closed_while_idle, PlainHttp2;
    idle_prefill: closed_while_idle, Prefill;
    idle_decode: closed_while_idle, Decode;
    closes_plain: closed_after_each, Plain;
    closes_prefill: closed_after_each, Prefill;
    closes_decode: closed_after_each, Decode;
    raced_plain: raced, Plain;
    raced_plain_http2: raced, PlainHttp2;
    killed_plain: killed, Plain;
    killed_plain_http2: killed, PlainHttp2;
    killed_prefill: killed, Prefill;
    killed_decode: killed, Decode;
}
