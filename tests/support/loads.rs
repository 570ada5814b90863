//! Engine reports and tables of them. Every report is captured at the present (paused) instant.

use std::sync::Arc;

use sgl_edge::state::{EngineLoad, EngineLoadTable, LoadSnapshot, NativeLoad};
use sgl_edge::workers::Worker;
use tokio::time::Instant;

/// A basic report, as older publishers send it: no native extension.
pub(crate) fn basic(running: u64, waiting: u64) -> EngineLoad {
    EngineLoad {
        running_requests: running,
        waiting_requests: waiting,
        used_tokens: 0,
        max_total_tokens: 1_000_000,
        native: None,
        captured_at: Instant::now(),
    }
}

/// A native report by the keys of plain and prefill stages.
pub(crate) fn prefill_load(uncached_tokens: u64, waiting: u64, running: u64) -> EngineLoad {
    EngineLoad {
        native: Some(NativeLoad {
            waiting_uncached_tokens: uncached_tokens,
            total_tokens: 0,
            max_running_requests: 256,
            estimated_prefill_queue_ms: None,
        }),
        ..basic(running, waiting)
    }
}

/// The same with an estimate of the prefill queue, milliseconds.
pub(crate) fn with_estimate(mut load: EngineLoad, ms: f64) -> EngineLoad {
    let native = load.native.as_mut().expect("a native report");
    native.estimated_prefill_queue_ms = Some(ms);
    load
}

/// A native report by the keys of the decode stage.
pub(crate) fn decode_load(waiting: u64, running: u64, used: u64, capacity: u64) -> EngineLoad {
    EngineLoad {
        used_tokens: used,
        max_total_tokens: capacity,
        ..prefill_load(0, waiting, running)
    }
}

/// A native report by the metrics that admission reads.
pub(crate) fn admission_load(running: u64, waiting: u64, kv: u64, pending: u64) -> EngineLoad {
    let mut load = prefill_load(pending, waiting, running);
    let native = load.native.as_mut().expect("a native report");
    native.total_tokens = kv;
    load
}

/// A table with these reports.
pub(crate) fn table<'a>(
    reports: impl IntoIterator<Item = (&'a Arc<Worker>, EngineLoad)>,
) -> Arc<EngineLoadTable> {
    let table = EngineLoadTable::default();
    for (engine, load) in reports {
        table.publish(engine.id(), load);
    }
    Arc::new(table)
}

/// What `loads` says of these engines now.
pub(crate) fn capture(loads: &EngineLoadTable, engines: &[Arc<Worker>]) -> LoadSnapshot {
    loads.capture(engines.iter().map(|engine| engine.id()))
}
