//! A load socket whose reports a test writes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rmp::encode;
use serde_json::Value;
use tokio::task::JoinHandle;
use zeromq::{Endpoint, PubSocket, Socket, SocketSend, ZmqMessage};

use crate::support::spawn;

/// From one report to the next.
const PERIOD: Duration = Duration::from_millis(50);

/// What one engine reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) running: u64,
    pub(super) waiting: u64,
    /// Waiting uncached tokens.
    pub(super) tokens: u64,
    /// Milliseconds that those should take, by the counters of prefill work.
    pub(super) estimate: Option<u64>,
}

impl Numbers {
    /// Whether the router's view of a report shows these.
    pub(super) fn are_those_of(self, report: &Value) -> bool {
        report["fresh"] == true
            && report["running"] == self.running
            && report["waiting"] == self.waiting
            && report["waiting_uncached_tokens"] == self.tokens
            && report["estimated_prefill_queue_ms"].as_f64() == self.estimate.map(|ms| ms as f64)
    }
}

#[derive(Debug)]
pub(super) struct Reports {
    port: u16,
    numbers: Arc<Mutex<Option<Numbers>>>,
    task: JoinHandle<()>,
}

impl Reports {
    /// Binds a free port; silent until told what to report.
    pub(super) async fn start() -> Self {
        let mut socket = PubSocket::new();
        let bound = socket.bind("tcp://127.0.0.1:0").await;
        let Ok(Endpoint::Tcp(_, port)) = bound else {
            panic!("{bound:?}");
        };
        let numbers = Arc::<Mutex<Option<Numbers>>>::default();
        let task = spawn(publish(socket, Arc::clone(&numbers)));
        Self {
            port,
            numbers,
            task,
        }
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Reports this from now on; `None` falls silent.
    pub(super) fn set(&self, numbers: Option<Numbers>) {
        *self.numbers.lock() = numbers;
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn publish(mut socket: PubSocket, numbers: Arc<Mutex<Option<Numbers>>>) {
    let (mut sequence, mut prefilled, mut busy_us) = (0_u64, 0, 0);
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = *numbers.lock();
        let Some(now) = now else {
            continue;
        };
        if let Some(ms) = now.estimate {
            // The rate at which the waiting tokens take so long.
            prefilled += now.tokens;
            busy_us += 1000 * ms;
        }
        let frames = vec![
            Bytes::from_static(b"load"),
            Bytes::copy_from_slice(&sequence.to_be_bytes()),
            payload(now, prefilled, busy_us).into(),
        ];
        sequence += 1;
        let message = ZmqMessage::try_from(frames).expect("frames");
        socket.send(message).await.expect("a message is queued");
    }
}

fn payload(now: Numbers, prefilled: u64, busy_us: u64) -> Vec<u8> {
    let (capacity, rank, most_running) = (1_000_000, 0, 64);
    let numbers = [
        now.running,
        now.waiting,
        0,
        capacity,
        rank,
        now.tokens,
        now.tokens,
        most_running,
        prefilled,
        busy_us,
    ];
    let mut bytes = Vec::new();
    encode::write_array_len(&mut bytes, 11).expect("into a vector");
    encode::write_str(&mut bytes, "LoadStat").expect("into a vector");
    for number in numbers {
        encode::write_uint(&mut bytes, number).expect("into a vector");
    }
    bytes
}
