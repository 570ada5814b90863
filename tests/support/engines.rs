//! Engines and registries. Their addresses are never dialled.

use std::sync::Arc;

use sgl_edge::ids::Stage;
use sgl_edge::workers::{
    BreakerParams, EngineUrl, InflightGuard, Outcome, Worker, WorkerRegistry, WorkerSpec,
};
use tokio::time::Instant;

/// The model of every engine that says no other.
pub(crate) const MODEL: &str = "m";

/// An engine of `model` with the default breaker.
pub(crate) fn engine_of(id: &str, model: &str, role: Stage) -> Arc<Worker> {
    engine_at(id, model, role, "http://127.0.0.1:1")
}

/// An engine whose address is `url`; a host name stays unresolved.
pub(crate) fn engine_at(id: &str, model: &str, role: Stage, url: &str) -> Arc<Worker> {
    let spec = WorkerSpec {
        id: id.into(),
        url: EngineUrl::parse(url).expect("a valid url"),
        model: model.into(),
        role,
        bootstrap_port: None,
    };
    Arc::new(Worker::new(spec, Some(BreakerParams::default())))
}

/// An engine of [`MODEL`] in this role.
pub(crate) fn engine(id: &str, role: Stage) -> Arc<Worker> {
    engine_of(id, MODEL, role)
}

/// Plain engines of [`MODEL`], in the order of `ids`.
pub(crate) fn plain_engines(ids: &[&str]) -> Vec<Arc<Worker>> {
    ids.iter().map(|id| engine(id, Stage::Plain)).collect()
}

/// A registry that holds these very handles.
pub(crate) fn registry(engines: &[Arc<Worker>]) -> WorkerRegistry {
    let registry = WorkerRegistry::default();
    registry
        .replace(engines.to_vec())
        .expect("engines that do not contradict each other");
    registry
}

/// `count` requests in flight on `engine`, until dropped.
pub(crate) fn hold(engine: &Worker, count: u64) -> Vec<InflightGuard> {
    (0..count).map(|_| engine.acquire(1)).collect()
}

/// Requests in flight 0, 1, 2, … on these engines in turn, until dropped.
pub(crate) fn hold_staircase(engines: &[Arc<Worker>]) -> Vec<InflightGuard> {
    let counts = 0_u64..;
    let held = engines.iter().zip(counts);
    held.flat_map(|(engine, count)| hold(engine, count))
        .collect()
}

/// Fails `engine` until its breaker opens.
pub(crate) fn open_breaker(engine: &Worker) {
    let now = Instant::now();
    for _ in 0..BreakerParams::default().failures {
        let mut permit = engine.breaker().claim(now).expect("closed so far");
        permit.settle(Outcome::Failure, now);
    }
    assert!(!engine.available(now), "the breaker is open");
}
