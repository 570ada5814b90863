//! The three body fields by which a prefill and a decode engine find each other.
//!
//! One body goes to both engines: the client's bytes with the fields spliced in before the last
//! brace, so that key order, big integers and repeated keys survive. Source: engine-wire §3.1.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rand::Rng;

use crate::ids::{ModelId, Stage};
use crate::server::splice;
use crate::workers::{Worker, WorkerRegistry};

/// Distance between two rooms. A request with `n` choices uses room, room+1, …; OpenAI's `n` ends
/// at 128. Odd, so that `room % ranks` spreads over data-parallel ranks.
const SPACING: u64 = 131;

/// Rooms are `1 + SPACING * x` with `x` below this, hence at most 2^62.04, well under 2^63.
const ROOMS: u64 = 1 << 55;

/// Numbers for pairs: never 0, never repeated by this process, and unlikely to meet another
/// router's, because each process walks the number space from its own random start.
#[derive(Debug)]
pub struct Rooms {
    start: u64,
    next: AtomicU64,
}

impl Default for Rooms {
    #[expect(
        clippy::disallowed_methods,
        reason = "one draw per process, not a policy's choice"
    )]
    fn default() -> Self {
        Self::from_start(rand::rng().random())
    }
}

impl Rooms {
    /// The walk from `start`.
    #[must_use]
    pub const fn from_start(start: u64) -> Self {
        Self {
            start,
            next: AtomicU64::new(0),
        }
    }

    /// A new room, 1..2^63 with headroom for `n` up to 130.
    pub fn take(&self) -> u64 {
        // An odd factor permutes the residues of a power of two: distinct turns, distinct rooms.
        const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let x = turn.wrapping_mul(STRIDE).wrapping_add(self.start) % ROOMS;
        1 + SPACING * x
    }
}

/// Whether bootstrap fields of a client must be refused for this model: it has prefill engines, and
/// two readers of one body must not see two rooms.
#[must_use]
pub fn reserves(model: &ModelId, workers: &WorkerRegistry) -> bool {
    workers.has(model, Stage::Prefill)
}

/// `body` with `bootstrap_host`, `bootstrap_port` (null when unknown) and `bootstrap_room` of a
/// pair whose prefill engine is `prefill`.
///
/// `body` must be one JSON object with at least one key, which preparation has checked.
#[must_use]
pub fn with_bootstrap(body: &Bytes, prefill: &Worker, room: u64) -> Bytes {
    let port = prefill
        .bootstrap_port()
        .map_or_else(|| "null".to_owned(), |port| port.to_string());
    // A host is made of letters, digits, dots, dashes, colons and brackets: nothing to escape.
    let fields = format!(
        r#""bootstrap_host":"{}","bootstrap_port":{port},"bootstrap_room":{room}"#,
        prefill.url().host()
    );
    splice::before_last_brace(body, &fields)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::workers::{EngineUrl, WorkerSpec};

    #[test]
    fn rooms_are_unique_never_zero_and_leave_headroom() {
        for start in [0, 1, u64::MAX, 1 << 55, (1 << 55) - 1] {
            let rooms = Rooms::from_start(start);
            let mut seen: Vec<u64> = (0..20_000).map(|_| rooms.take()).collect();
            assert!(seen.iter().all(|room| (1..(1 << 63) - 130).contains(room)));
            seen.sort_unstable();
            assert!(
                seen.windows(2).all(|pair| pair[1] - pair[0] >= SPACING),
                "start {start}"
            );
        }
    }

    #[test]
    fn rooms_spread_over_data_parallel_ranks() {
        for ranks in [2_u64, 3, 4, 8, 16] {
            let rooms = Rooms::from_start(12_345);
            let hit: HashSet<u64> = (0..1_000).map(|_| rooms.take() % ranks).collect();
            assert_eq!(hit.len() as u64, ranks);
        }
    }

    fn prefill(url: &str, port: Option<u16>) -> Worker {
        let spec = WorkerSpec {
            id: "p".into(),
            url: EngineUrl::parse(url).unwrap(),
            model: "m".into(),
            role: Stage::Prefill,
            bootstrap_port: port,
        };
        Worker::new(spec, None)
    }

    #[test]
    fn fields_are_spliced_and_every_other_byte_survives() {
        let body = Bytes::from_static(
            b"{\"model\":\"m\", \"big\": 123456789012345678901234567890, \"x\":1,\"x\":{}} \n",
        );
        let paired = with_bootstrap(&body, &prefill("http://10.0.0.1:30000", Some(8998)), 7);
        let expected = "{\"model\":\"m\", \"big\": 123456789012345678901234567890, \"x\":1,\"x\":{},\
             \"bootstrap_host\":\"10.0.0.1\",\"bootstrap_port\":8998,\"bootstrap_room\":7} \n";
        assert_eq!(paired, Bytes::from_static(expected.as_bytes()));
    }

    #[test]
    fn an_unknown_port_is_an_explicit_null_and_ipv6_keeps_its_brackets() {
        let body = Bytes::from_static(b"{\"model\":\"m\"}");
        let paired = with_bootstrap(&body, &prefill("http://[::1]:30000", None), 1);
        let value: serde_json::Value = serde_json::from_slice(&paired).unwrap();
        assert_eq!(value["bootstrap_host"], "[::1]");
        assert!(value["bootstrap_port"].is_null());
    }
}
