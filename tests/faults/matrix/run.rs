//! Carries a table of faults out, all cells at the same time.

use std::sync::Arc;

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, Faults};
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::cell::{COOL_DOWN, Case, Cell, Leg, ROUNDS, SHAPES, Sees, Sender, Want};
use super::watched::Watched;
use crate::support::gauges::Gauges;
use crate::support::{eventually, pause};

/// Short limits, so that silence is noticed soon.
pub(crate) fn settings(models: &[Value]) -> Value {
    json!({
        "models": models,
        "timeouts": {"connect": "4s", "first_byte": "4s", "stream_idle": "4s"},
        "circuit_breaker": {"failures": ROUNDS, "cool_down": format!("{}s", COOL_DOWN.as_secs())},
        "log": {"level": "warn"},
    })
}

/// Every case in every shape on this leg. All cells run, and all that failed are named.
pub(crate) async fn matrix(leg: Leg, cases: &[Case]) {
    let mut cells = Vec::new();
    for case in cases {
        for (stream, wire) in SHAPES {
            let want = if stream { case.stream } else { case.json };
            let cell = Cell::new(leg, case.name, stream, wire).await;
            cells.push((cell, want, case.faults.clone()));
        }
    }
    let models: Vec<_> = cells.iter().map(|(cell, ..)| cell.model()).collect();
    let proxy = Watched::start(&settings(&models)).await;
    if leg == Leg::PlainHttp2 {
        spoken_to_over_http2(&proxy, cells.len()).await;
    }
    let running = cells.into_iter().map(|(cell, want, faults)| {
        let (name, proxy) = (cell.name.clone(), Arc::clone(&proxy));
        let work = async move { exercise(&proxy, &cell, want, faults).await };
        (name, work)
    });
    all_of(running).await;
    Watched::finish(proxy).await;
}

/// Carries all cells out at the same time and names those that failed.
pub(crate) async fn all_of<W: Future<Output = ()> + 'static>(
    cells: impl Iterator<Item = (String, W)>,
) {
    let here = LocalSet::new();
    let running: Vec<_> = cells
        .map(|(name, work)| (name, here.spawn_local(work)))
        .collect();
    let failed = here.run_until(async {
        let mut failed = Vec::new();
        for (name, cell) in running {
            if cell.await.is_err() {
                failed.push(name);
            }
        }
        failed
    });
    let failed = failed.await;
    assert!(failed.is_empty(), "{} cells: {failed:#?}", failed.len());
}

/// Waits until the proxy has heard from every engine that it speaks HTTP/2.
pub(crate) async fn spoken_to_over_http2(proxy: &Watched, engines: usize) {
    eventually("every engine has announced HTTP/2", async || {
        let state = proxy.state().await.to_string();
        state.matches(r#""http2":true"#).count() == engines
    })
    .await;
}

/// One cell from fault to recovery.
async fn exercise(proxy: &Watched, cell: &Cell, want: Want, faults: Faults) {
    let name = cell.name.as_str();
    cell.faulty.faults().set(faults);
    cell.faulty.faults().settled().await;
    if cell.leg == Leg::Prefill && want.sees != Sees::Status(200) {
        // So that whatever prefill does is heard before decode's answer.
        let decode = cell.other.as_ref().expect("a pair");
        decode
            .faults()
            .update(|faults| faults.ttft_ms = Some(20_000));
    }
    let mut sender = Sender::new(cell.wire, proxy).await;
    for _ in 0..ROUNDS {
        let turn = proxy.turn().await;
        let answer = sender.send(proxy, &cell.request()).await;
        drop(turn);
        want.sees.check(&answer, name);
    }
    let failed = Instant::now();
    let opens = want.outcome == "error" && want.sees != Sees::Silence;
    let probes = opens && !refused_while_open(proxy, cell, &mut sender, failed).await;
    idle(proxy, cell).await;
    assert_booked(proxy, cell, want, f64::from(ROUNDS + u32::from(probes))).await;
    for engine in cell.engines() {
        engine.faults().clear();
        engine.faults().settled().await;
    }
    serves_again(proxy, cell, &mut sender).await;
}

/// Nobody is dispatched to an engine whose breaker is open. False if this took too long to tell.
async fn refused_while_open(
    proxy: &Watched,
    cell: &Cell,
    sender: &mut Sender,
    failed: Instant,
) -> bool {
    eventually("the breaker opens", async || {
        breaker(proxy, &cell.faulty).await == 1.0
    })
    .await;
    let before: Vec<_> = cell
        .engines()
        .map(|engine| engine.stats().requests)
        .collect();
    let answer = sender.send(proxy, &cell.request()).await;
    let in_time = failed.elapsed() < COOL_DOWN;
    if in_time {
        Sees::Refused(503, cell.without_engine()).check(&answer, &cell.name);
        let after: Vec<_> = cell
            .engines()
            .map(|engine| engine.stats().requests)
            .collect();
        assert_eq!(after, before, "{}: dispatched all the same", cell.name);
    }
    in_time
}

/// Waits until neither the proxy nor an engine holds anything of this cell.
pub(crate) async fn idle(proxy: &Watched, cell: &Cell) {
    eventually(&format!("{}: nothing is held", cell.name), async || {
        let gauges = proxy.gauges().await;
        cell.engines().all(|engine| {
            let label = [("worker_url", engine.name())];
            engine.stats().inflight == 0 && gauges.sum_of("worker_inflight_requests", &label) == 0.0
        })
    })
    .await;
}

async fn breaker(proxy: &Watched, engine: &Engine) -> f64 {
    let gauges = proxy.gauges().await;
    gauges.sum_of("worker_cb_state", &[("worker_url", engine.name())])
}

/// The lines of a scrape that tell what was booked on an engine.
fn outcomes(gauges: &Gauges, engine: &Engine) -> String {
    let label = format!("worker_url=\"{}\"", engine.name());
    let lines = gauges.text.lines().filter(|line| {
        line.starts_with("sgl_router_worker_requests_total") && line.contains(&label)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Outcomes, breakers and ends of streams after all rounds.
async fn assert_booked(proxy: &Watched, cell: &Cell, want: Want, rounds: f64) {
    let (gauges, name) = (proxy.gauges().await, &cell.name);
    let booked = |engine: &Engine, outcomes: &[&str]| -> f64 {
        let one = |outcome: &&str| {
            let labels = [("worker_url", engine.name()), ("outcome", *outcome)];
            gauges.sum_of("worker_requests_total", &labels)
        };
        outcomes.iter().map(one).sum()
    };
    let open =
        |engine: &Engine| gauges.sum_of("worker_cb_state", &[("worker_url", engine.name())]) == 1.0;
    let outcomes = |engine: &Engine| outcomes(&gauges, engine);
    if want.sees == Sees::Silence {
        for engine in cell.engines() {
            let (booked, seen) = (booked(engine, &["error"]), outcomes(engine));
            assert_eq!(booked, rounds, "{name}: both were silent, not\n{seen}");
        }
    } else {
        assert_eq!(
            booked(&cell.faulty, &[want.outcome]),
            rounds,
            "{name}: {} on the faulty engine, not\n{}",
            want.outcome,
            outcomes(&cell.faulty)
        );
        assert_eq!(open(&cell.faulty), want.outcome == "error", "{name}");
        if let Some(other) = &cell.other {
            assert_eq!(
                booked(other, want.other),
                rounds,
                "{name}: {:?} on the other engine, not\n{}",
                want.other,
                outcomes(other)
            );
            let blamed = want.other == ["error"];
            assert_eq!(open(other), blamed, "{name}: the other engine is blamed");
        }
    }
    let answering = match (cell.leg, &cell.other) {
        (Leg::Prefill, Some(decode)) => decode,
        _ => &cell.faulty,
    };
    let ends = |outcome: Option<&str>| {
        let mut labels = vec![("worker_url", answering.name())];
        labels.extend(outcome.map(|outcome| ("outcome", outcome)));
        gauges.sum_of("stream_outcome_total", &labels)
    };
    let expected = if want.stream_end.is_some() {
        rounds
    } else {
        0.0
    };
    assert_eq!(ends(None), expected, "{name}: streams that began");
    assert_eq!(
        ends(want.stream_end),
        expected,
        "{name}: {:?}",
        want.stream_end
    );
}

/// After the fault, and at the latest after the cool-down, everything is as before.
async fn serves_again(proxy: &Watched, cell: &Cell, sender: &mut Sender) {
    eventually(&format!("{}: serves again", cell.name), async || {
        let turn = proxy.turn().await;
        let answer = sender.send(proxy, &cell.request()).await;
        drop(turn);
        if answer.status == 503 {
            pause(200).await;
            return false;
        }
        Sees::Status(200).check(&answer, &cell.name);
        true
    })
    .await;
    idle(proxy, cell).await;
    for engine in cell.engines() {
        assert_eq!(breaker(proxy, engine).await, 0.0, "{}", cell.name);
    }
}

/// A fault of a few words.
pub(crate) fn faults(change: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults {
        // What is said before a break has been passed on when it comes.
        interval_ms: Some(100),
        ..Faults::default()
    };
    change(&mut faults);
    faults
}

/// The same in both forms.
pub(crate) fn both(name: &'static str, faults: Faults, want: Want) -> Case {
    Case {
        name,
        faults,
        json: want,
        stream: want,
    }
}
