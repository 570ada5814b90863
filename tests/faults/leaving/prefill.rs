//! The client leaves while prefill works: decode ends at once, the prefill leg may finish.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sgl_edge::mock::Faults;

use super::phases::occupy;
use super::visit::{AT_ONCE, HOWS, How, Visit, assert_not_blamed, held, released};
use crate::matrix::cell::{Cell, Leg, ROUNDS, Wire};
use crate::matrix::run::{all_of, idle, settings};
use crate::matrix::watched::Watched;
use crate::support::{eventually, pause};

/// What a prefill leg may take after its client has left.
const LINGER: Duration = Duration::from_secs(30);

/// What keeps prefill busy when the client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// Another request, which ends soon afterwards.
    Queue,
    /// The prompt.
    Prompt,
}

/// Waits until both engines have the request, leaves, and waits until decode is free.
async fn come_and_go(proxy: &Watched, cell: &Cell, how: How) {
    let decode = cell.other.as_ref().expect("a pair");
    let (at_prefill, at_decode) = (cell.faulty.stats().requests, decode.stats().requests);
    let visit = Visit::begin(proxy, how, &cell.request()).await;
    eventually("both engines have it", async || {
        cell.faulty.stats().requests > at_prefill && decode.stats().requests > at_decode
    })
    .await;
    let left = visit.leave().await;
    released(proxy, decode.name(), left, AT_ONCE).await;
    eventually("decode is let go", async || decode.stats().inflight == 0).await;
    assert!(left.elapsed() < AT_ONCE, "{}", cell.name);
}

async fn leave_three_times(proxy: Arc<Watched>, cell: Cell, how: How, busy: Busy) {
    for _ in 0..ROUNDS {
        let turn = proxy.turn().await;
        let holder = match busy {
            Busy::Queue => Some(occupy(&cell).await),
            Busy::Prompt => {
                cell.faulty.faults().update(|f| f.ttft_ms = Some(1_000));
                None
            }
        };
        come_and_go(&proxy, &cell, how).await;
        drop((turn, holder));
        // The prefill engine finds nobody who fetches its cache, and answers 500.
        idle(&proxy, &cell).await;
    }
    let decode = cell.other.as_ref().expect("a pair");
    assert_not_blamed(&proxy, decode.name(), &["cancelled"], ROUNDS).await;
    assert_not_blamed(&proxy, cell.faulty.name(), &["cancelled"], ROUNDS).await;
    assert_eq!(cell.faulty.stats().errors, u64::from(ROUNDS), "it finished");
    for engine in cell.engines() {
        assert_eq!(engine.stats().aborts_received.len(), 0, "{}", cell.name);
    }
}

#[tokio::test]
async fn decode_ends_at_once_and_prefill_finishes_unblamed() {
    let mut rows = Vec::new();
    for busy in [Busy::Queue, Busy::Prompt] {
        for how in HOWS {
            for stream in [false, true] {
                let name = format!("{busy:?}-{how:?}");
                let cell = Cell::running(1, Leg::Prefill, &name, stream, Wire::Http1).await;
                rows.push((cell, how, busy));
            }
        }
    }
    let models: Vec<_> = rows.iter().map(|(cell, ..)| cell.model()).collect();
    let mut settings = settings(&models);
    settings["timeouts"] = json!({"first_byte": "60s", "stream_idle": "60s"});
    let proxy = Watched::start(&settings).await;
    let work = rows.into_iter().map(|(cell, how, busy)| {
        let proxy = Arc::clone(&proxy);
        (cell.name.clone(), leave_three_times(proxy, cell, how, busy))
    });
    all_of(work).await;
    Watched::finish(proxy).await;
}

#[tokio::test]
async fn a_prefill_that_never_ends_is_given_up_after_its_time() {
    let cell = Cell::new(Leg::Prefill, "endless", true, Wire::Http1).await;
    let mut settings = settings(&[cell.model()]);
    settings["timeouts"] = json!({});
    let proxy = Watched::start(&settings).await;
    cell.faulty.faults().set(Faults {
        stall_before_headers: true,
        ..Faults::default()
    });
    let left = std::time::Instant::now();
    come_and_go(&proxy, &cell, How::Close).await;
    pause(5_000).await;
    assert_eq!(held(&proxy, cell.faulty.name()).await, 1.0, "it may finish");
    assert_eq!(cell.faulty.stats().inflight, 1);
    let rest = LINGER + Duration::from_secs(5);
    released(&proxy, cell.faulty.name(), left.into(), rest).await;
    idle(&proxy, &cell).await;
    assert_not_blamed(&proxy, cell.faulty.name(), &["cancelled"], 1).await;
    Watched::finish(proxy).await;
}
