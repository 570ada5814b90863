//! Guards, permits and outcomes of dispatched legs: design §8, policy-semantics §11, §18.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use sgl_edge::ids::{ModelId, Stage};
use sgl_edge::server::ApiError;
use sgl_edge::server::dispatch::{Leg, LegOutcome};
use sgl_edge::server::metrics::Metrics;
use sgl_edge::workers::{BreakerParams, BreakerState, Worker};
use tokio::time::Instant;

use crate::support::engines::{MODEL, engine, engine_at, hold, open_breaker};
use crate::support::routing::value;

const OUTCOMES: [LegOutcome; 5] = [
    LegOutcome::Success,
    LegOutcome::ClientError,
    LegOutcome::Backpressure,
    LegOutcome::Error,
    LegOutcome::Cancelled,
];

struct Bench {
    engine: Arc<Worker>,
    model: ModelId,
    metrics: Arc<Metrics>,
}

impl Bench {
    fn new(engine: Arc<Worker>) -> Self {
        Self {
            engine,
            model: MODEL.into(),
            metrics: Arc::default(),
        }
    }

    fn claim(&self) -> Result<Leg, ApiError> {
        Leg::claim(&self.engine, &self.model, 1, &self.metrics)
    }

    fn count(&self, outcome: LegOutcome) -> u64 {
        let (outcome, id) = (outcome.as_str(), self.engine.id());
        let labels =
            format!(r#"{{mode="plain",model_id="m",outcome="{outcome}",worker_url="{id}"}}"#);
        value(&self.metrics, &format!("worker_requests_total{labels}"))
    }

    fn counts(&self) -> [u64; 5] {
        OUTCOMES.map(|outcome| self.count(outcome))
    }

    fn state(&self) -> BreakerState {
        self.engine.breaker().state(Instant::now()).0
    }
}

fn bench() -> Bench {
    Bench::new(engine("e", Stage::Plain))
}

#[test]
fn guards_balance_under_eight_threads() {
    const THREADS: usize = 8;
    let engine = engine("e", Stage::Plain);
    let most = AtomicU64::new(0);
    let together = Barrier::new(THREADS);
    let kept: Vec<_> = std::thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| {
            scope.spawn(|| {
                together.wait();
                for _ in 0..10_000 {
                    let _guard = engine.acquire(1);
                    let seen = engine.inflight();
                    assert!((1..=16).contains(&seen), "{seen}: at most two per thread");
                    let _second = engine.acquire(1);
                    most.fetch_max(engine.inflight(), Ordering::Relaxed);
                }
                engine.acquire(1)
            })
        });
        let joined = threads.map(|thread| thread.join().expect("no panic"));
        joined.into()
    });
    assert_eq!(engine.inflight(), 8, "one kept by each thread");
    assert!(most.load(Ordering::Relaxed) >= 2);
    drop(kept);
    assert_eq!(engine.inflight(), 0);
}

#[test]
fn a_guard_that_moves_to_another_thread_or_panics_is_still_given_back() {
    let engine = engine("e", Stage::Plain);
    let guard = engine.acquire(1);
    std::thread::spawn(move || drop(guard))
        .join()
        .expect("fine");
    assert_eq!(engine.inflight(), 0);
    let guard = engine.acquire(1);
    let thread = std::thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("a request that panics"));
    });
    assert!(thread.join().is_err());
    assert_eq!(engine.inflight(), 0);
}

#[test]
fn a_leg_holds_its_place_until_dropped() {
    let bench = bench();
    let leg = bench.claim().expect("well");
    assert!(Arc::ptr_eq(leg.engine(), &bench.engine));
    let second = bench.claim().expect("well");
    assert_eq!(bench.engine.inflight(), 2);
    drop(leg);
    assert_eq!(bench.engine.inflight(), 1);
    drop(second);
    assert_eq!(bench.engine.inflight(), 0);
}

#[test]
fn a_settled_leg_still_holds_its_place() {
    let bench = bench();
    let mut leg = bench.claim().expect("well");
    leg.settle(LegOutcome::Success);
    assert_eq!(bench.engine.inflight(), 1, "until the answer's body ends");
    drop(leg);
    assert_eq!(bench.engine.inflight(), 0);
}

#[test]
fn every_outcome_is_counted_once_and_the_first_one_counts() {
    for (index, outcome) in OUTCOMES.into_iter().enumerate() {
        let bench = bench();
        let mut leg = bench.claim().expect("well");
        assert_eq!(leg.outcome(), None);
        leg.settle(outcome);
        for later in OUTCOMES {
            leg.settle(later);
        }
        assert_eq!(leg.outcome(), Some(outcome));
        drop(leg);
        let mut expected = [0; 5];
        expected[index] = 1;
        assert_eq!(bench.counts(), expected, "{outcome:?}");
    }
}

#[test]
fn a_leg_that_nobody_settled_counts_as_cancelled() {
    let bench = bench();
    drop(bench.claim().expect("well"));
    assert_eq!(bench.counts(), [0, 0, 0, 0, 1]);
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[test]
fn only_errors_open_the_breaker_and_only_the_first_outcome_reaches_it() {
    for outcome in OUTCOMES {
        let bench = bench();
        for _ in 0..5 {
            if let Ok(mut leg) = bench.claim() {
                leg.settle(outcome);
                leg.settle(LegOutcome::Error);
                leg.settle(LegOutcome::Error);
            }
        }
        let opened = bench.state() == BreakerState::Open;
        assert_eq!(opened, outcome == LegOutcome::Error, "{outcome:?}");
    }
}

#[test]
fn statuses_become_outcomes() {
    let rows = [
        (200, LegOutcome::Success),
        (301, LegOutcome::Success),
        (399, LegOutcome::Success),
        (400, LegOutcome::ClientError),
        (404, LegOutcome::ClientError),
        (429, LegOutcome::Backpressure),
        (499, LegOutcome::ClientError),
        (500, LegOutcome::Error),
        (502, LegOutcome::Error),
        (503, LegOutcome::Backpressure),
        (504, LegOutcome::Error),
    ];
    for (status, expected) in rows {
        assert_eq!(LegOutcome::of_status(status), expected, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_refuses_at_dispatch_with_what_is_left_and_takes_no_place() {
    let bench = bench();
    open_breaker(&bench.engine);
    tokio::time::advance(Duration::from_secs(10)).await;
    let error = bench.claim().map(|_| ()).expect_err("open");
    assert_eq!(error, ApiError::BreakerOpen(Duration::from_secs(20)));
    assert_eq!((error.status(), error.code()), (503, "breaker_open"));
    assert_eq!(bench.engine.inflight(), 0);
    assert_eq!(bench.counts(), [0, 0, 0, 1, 0], "once");
}

#[tokio::test(start_paused = true)]
async fn one_probe_passes_and_the_next_request_is_refused_until_it_ends() {
    let bench = bench();
    open_breaker(&bench.engine);
    tokio::time::advance(BreakerParams::default().cool_down).await;
    let probe = bench.claim().expect("the probe");
    let error = bench.claim().map(|_| ()).expect_err("a probe is out");
    assert_eq!(error.code(), "breaker_open");
    assert_eq!(bench.engine.inflight(), 1, "the refused one holds nothing");
    drop(probe);
    let mut again = bench.claim().expect("a cancelled probe frees its permit");
    again.settle(LegOutcome::Success);
    assert!(
        bench.claim().is_ok() && bench.claim().is_ok(),
        "closed again"
    );
}

#[tokio::test(start_paused = true)]
async fn each_probe_outcome_closes_or_reopens_the_breaker() {
    let rows = [
        (LegOutcome::Success, BreakerState::Closed),
        (LegOutcome::ClientError, BreakerState::Closed),
        (LegOutcome::Backpressure, BreakerState::Closed),
        (LegOutcome::Error, BreakerState::Open),
        (LegOutcome::Cancelled, BreakerState::HalfOpen),
    ];
    for (outcome, expected) in rows {
        let bench = bench();
        open_breaker(&bench.engine);
        tokio::time::advance(BreakerParams::default().cool_down).await;
        let mut probe = bench.claim().expect("the probe");
        probe.settle(outcome);
        drop(probe);
        assert_eq!(bench.state(), expected, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unusable_address_is_refused_and_counts_against_the_engine() {
    let url = "http://no-such-name.invalid:8000";
    let bench = Bench::new(engine_at("e", MODEL, Stage::Plain, url));
    for attempt in 1..=3 {
        let error = bench.claim().map(|_| ()).expect_err("no address");
        assert_eq!(error, ApiError::WorkerMisconfigured);
        assert_eq!(
            (error.status(), error.code()),
            (503, "worker_misconfigured")
        );
        assert_eq!(bench.engine.inflight(), 0);
        assert_eq!(bench.counts(), [0, 0, 0, attempt, 0]);
    }
    assert_eq!(bench.state(), BreakerState::Open, "three failures in a row");
    let error = bench.claim().map(|_| ()).expect_err("open");
    assert_eq!(error.code(), "breaker_open");
    bench
        .engine
        .set_address("127.0.0.1:8000".parse().expect("an address"));
    tokio::time::advance(BreakerParams::default().cool_down).await;
    assert!(bench.claim().is_ok(), "once the name resolves");
}

#[test]
fn full_engines_are_dispatched_to_all_the_same() {
    // Admission was asked at selection; dispatch asks the breaker only.
    let bench = bench();
    let _held = hold(&bench.engine, 5000);
    assert!(bench.claim().is_ok());
}
