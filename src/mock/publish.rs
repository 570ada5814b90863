//! Load reports over ZMQ, from the real work held, at the cadence of a real engine.
//!
//! Sent after every prefill at once, every 15th decode step, on going idle, and every 50 ms while
//! requests wait; a report equal to the last one is held back until a second has passed. Several
//! ranks share the engine's work evenly, so their sum is the truth. Nothing is stored or replayed.
//! Source: engine-wire §2.1 to §2.3.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rmp::encode;
use tokio::time::{Instant, MissedTickBehavior};
use zeromq::{Endpoint, PubSocket, Socket, SocketSend, ZmqMessage};

use super::config::EngineConfig;
use super::engine::Shared;
use super::faults::Faults;
use super::load::{LoadSnapshot, share};

/// Most often while requests wait.
const STALLED: Duration = Duration::from_millis(50);
/// An unchanged report is sent again after this long.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Tries to find a run of free ports.
const TRIES: usize = 50;

/// The bound sockets of one engine, a PUB per rank.
pub(crate) struct Sockets {
    /// Of rank 0.
    pub(crate) port: u16,
    load: Vec<PubSocket>,
}

impl Sockets {
    /// Binds one for each of `ranks` from `port` on; port 0 takes free ones.
    pub(crate) async fn bind(ip: IpAddr, port: u16, ranks: u16) -> io::Result<Self> {
        let (port, load) = bind_run(ip, port, ranks).await?;
        Ok(Self { port, load })
    }
}

/// `count` PUB sockets on consecutive ports from `first`, or on free ones for 0.
async fn bind_run(ip: IpAddr, first: u16, count: u16) -> io::Result<(u16, Vec<PubSocket>)> {
    let mut last = io::Error::other("no ports asked for");
    for _ in 0..if first == 0 { TRIES } else { 1 } {
        match try_run(ip, first, count).await {
            Ok(run) => return Ok(run),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn try_run(ip: IpAddr, first: u16, count: u16) -> io::Result<(u16, Vec<PubSocket>)> {
    let (mut base, mut sockets) = (first, Vec::new());
    for offset in 0..count.max(1) {
        let port = match base {
            0 => 0,
            base => base
                .checked_add(offset)
                .ok_or_else(|| io::Error::other("ports above 65535"))?,
        };
        let mut socket = PubSocket::new();
        let address = format!("tcp://{}", SocketAddr::new(ip, port));
        let bound = socket.bind(&address).await;
        let bound = bound.map_err(|error| io::Error::other(format!("{address}: {error}")))?;
        if let Endpoint::Tcp(_, port) = bound
            && base == 0
        {
            base = port;
        }
        sockets.push(socket);
    }
    Ok((base, sockets))
}

/// Publishes until the engine ends.
pub(crate) async fn run(shared: Arc<Shared>, sockets: Sockets) {
    let mut sockets = sockets.load;
    let ranks = u32::try_from(sockets.len()).unwrap_or(1);
    let mut publishers: Vec<Rank> = (0..ranks).map(Rank::new).collect();
    let mut tick = tokio::time::interval(STALLED);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let load = shared.load();
        let faults = shared.faults.get();
        for (rank, socket) in publishers.iter_mut().zip(&mut sockets) {
            let report = report(load, &shared.config, rank.number, ranks);
            let Some(frames) = rank.next(report, &faults) else {
                continue;
            };
            let Ok(message) = ZmqMessage::try_from(frames) else {
                continue;
            };
            if let Err(error) = socket.send(message).await {
                tracing::warn!(%error, "a mock engine cannot publish");
            }
        }
        loop {
            tokio::select! {
                () = shared.scheduler.progressed() => break,
                _ = tick.tick() => {
                    let due = publishers.iter().any(|rank| rank.sent.elapsed() >= HEARTBEAT);
                    if due || shared.scheduler.waiting() > 0 {
                        break;
                    }
                }
            }
        }
    }
}

/// The nine numbers of a report.
type Report = [u64; 9];

/// The part of rank `number` of `ranks` in load and capacity.
fn report(load: LoadSnapshot, config: &EngineConfig, number: u32, ranks: u32) -> Report {
    let load = load.share(number, ranks);
    [
        load.running.into(),
        load.waiting.into(),
        load.used_tokens,
        share(config.max_total_num_tokens, number, ranks),
        load.waiting_tokens,
        load.used_tokens + load.queued_tokens,
        share(config.max_running_requests.into(), number, ranks),
        load.prefilled_tokens,
        load.prefill_busy_us,
    ]
}

/// One rank's publisher.
struct Rank {
    number: u32,
    sequence: u64,
    last: Option<Report>,
    sent: Instant,
    /// Counters that a reset has forgotten.
    forgotten: Option<[u64; 2]>,
}

impl Rank {
    fn new(number: u32) -> Self {
        Self {
            number,
            sequence: 0,
            last: None,
            sent: Instant::now(),
            forgotten: None,
        }
    }

    /// The frames to send for `report`; `None` when it is held back.
    fn next(&mut self, mut report: Report, faults: &Faults) -> Option<Vec<Bytes>> {
        if faults.load_silent || faults.load_silent_rank == Some(self.number) {
            return None;
        }
        if faults.load_reset_counters {
            let forgotten = self.forgotten.get_or_insert([report[7], report[8]]);
            report[7] = report[7].saturating_sub(forgotten[0]);
            report[8] = report[8].saturating_sub(forgotten[1]);
        } else {
            self.forgotten = None;
        }
        if let Some(last) = self.last.filter(|_| faults.load_frozen) {
            report = last;
        }
        if self.last == Some(report) && self.sent.elapsed() < HEARTBEAT {
            return None;
        }
        self.last = Some(report);
        self.sent = Instant::now();
        let sequence = self.sequence.to_be_bytes();
        self.sequence += 1;
        Some(vec![
            Bytes::from_static(b"load"),
            Bytes::copy_from_slice(&sequence),
            self.payload(report, faults).into(),
        ])
    }

    fn payload(&self, report: Report, faults: &Faults) -> Vec<u8> {
        let length = match (faults.load_basic, faults.load_truncated) {
            (true, _) => 6,
            (false, true) => 8,
            (false, false) => 11,
        };
        let mut bytes = Vec::new();
        // Writing into a vector cannot fail.
        let _ = encode::write_array_len(&mut bytes, length);
        let _ = encode::write_str(&mut bytes, "LoadStat");
        let (basic, extension) = report.split_at(4);
        let rank = [u64::from(self.number)];
        let numbers = basic.iter().chain(&rank).chain(extension);
        for number in numbers.take(length as usize - 1) {
            let _ = encode::write_uint(&mut bytes, *number);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Report = [2, 3, 4096, 100_000, 500, 6000, 64, 12_345, 67_890];

    fn rank() -> Rank {
        Rank::new(0)
    }

    #[tokio::test(start_paused = true)]
    async fn the_payload_is_the_one_a_real_engine_sends() {
        let frames = rank().next(NUMBERS, &Faults::default()).unwrap();
        assert_eq!(&frames[0][..], b"load");
        assert_eq!(frames[1][..], [0; 8]);
        let hex: String = frames[2].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "9ba84c6f6164537461740203cd1000ce000186a000cd01f4cd177040cd3039ce00010932";
        assert_eq!(hex, golden);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unchanged_report_waits_for_a_second_and_a_changed_one_does_not() {
        let (mut rank, healthy) = (rank(), Faults::default());
        assert!(rank.next(NUMBERS, &healthy).is_some());
        tokio::time::advance(HEARTBEAT - Duration::from_millis(1)).await;
        assert!(rank.next(NUMBERS, &healthy).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        let again = rank.next(NUMBERS, &healthy).unwrap();
        assert_eq!(again[1][..], 1_u64.to_be_bytes());
        let mut changed = NUMBERS;
        changed[8] += 1;
        assert!(rank.next(changed, &healthy).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn every_fault_shows_in_the_frames() {
        let sent = |faults: Faults| {
            rank()
                .next(NUMBERS, &faults)
                .map(|frames| frames[2].clone())
        };
        let silent = Faults {
            load_silent: true,
            ..Faults::default()
        };
        assert_eq!(sent(silent), None);
        let one_rank = |number| Faults {
            load_silent_rank: Some(number),
            ..Faults::default()
        };
        assert!(sent(one_rank(0)).is_none() && sent(one_rank(1)).is_some());
        let basic = Faults {
            load_basic: true,
            ..Faults::default()
        };
        let bytes = sent(basic).unwrap();
        assert_eq!((bytes[0], bytes.len()), (0x96, 21));
        let truncated = Faults {
            load_truncated: true,
            ..Faults::default()
        };
        assert_eq!(sent(truncated).unwrap()[0], 0x98);
    }

    #[tokio::test(start_paused = true)]
    async fn reset_counters_start_from_zero_and_frozen_numbers_stay() {
        let mut rank = rank();
        let mut faults = Faults {
            load_reset_counters: true,
            ..Faults::default()
        };
        rank.next(NUMBERS, &faults);
        assert_eq!(rank.last.unwrap()[7..], [0, 0]);
        let mut later = NUMBERS;
        (later[7], later[8]) = (12_445, 67_990);
        rank.next(later, &faults);
        assert_eq!(rank.last.unwrap()[7..], [100, 100]);
        faults.load_frozen = true;
        later[0] = 99;
        tokio::time::advance(HEARTBEAT).await;
        assert!(rank.next(later, &faults).is_some());
        assert_eq!(rank.last.unwrap()[0], 2);
    }
}
