//! What the command line and the environment may say.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Engines behind the streams: on one address a client has some 28,000 ports, so one would do.
pub(crate) const ENGINES: u16 = 4;

/// Streams that begin in one second. Chosen below what one thread can accept on a slow core.
const BEGIN_A_SECOND: u32 = 2_000;

/// Memory of sgl-edge, and thousands of streams through it. `STREAMS=2000` is `--streams 2000`;
/// `SGL_EDGE_BIN=PATH` measures another build of sgl-edge.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --bench streams --")]
pub(crate) struct Options {
    /// Streams at the same time; each needs two open files of sgl-edge.
    #[arg(long, default_value_t = from_environment(10_000), value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) streams: u32,
    /// Time between two events of a stream, milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    interval_ms: u32,
    /// Seconds for which all streams are open.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=120))]
    seconds: u32,
    /// How often the streams are begun anew in one process.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Idle client connections.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// Idle engines; their ports follow each other.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u16).range(2..=8_000))]
    pub(crate) engines: u16,
    /// HTTP/2 between sgl-edge and the engines of the streams, which share connections then.
    #[arg(long)]
    pub(crate) http2: bool,
    /// Cargo says this under `cargo bench`, and does not under `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
    /// Cargo passes the filter of `cargo bench FILTER` to every bench.
    #[arg(hide = true)]
    filter: Option<String>,
}

/// Not the attribute of clap that does this, which is a feature of its own.
fn from_environment(default: u32) -> u32 {
    let told = std::env::var("STREAMS").ok();
    told.map_or(default, |text| text.parse().unwrap_or(0))
}

impl Options {
    /// Whether this bench is meant at all.
    pub(crate) fn wanted(&self) -> bool {
        let named = self
            .filter
            .as_ref()
            .is_none_or(|name| "streams".contains(name));
        self.bench && named
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// For how long all streams are open.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Time over which the streams begin: whole intervals, so that their events spread evenly.
    pub(crate) fn ramp(&self) -> Duration {
        let milliseconds = u64::from(self.streams) * 1_000 / u64::from(BEGIN_A_SECOND);
        let intervals = milliseconds.div_ceil(self.interval_ms.into()).max(1);
        Duration::from_millis(intervals * u64::from(self.interval_ms))
    }

    /// Tokens of a stream: enough that the first is still open when the last has been for
    /// [`window`](Self::window), with a tenth to spare for beginnings that take long.
    pub(crate) fn tokens(&self) -> usize {
        let open = (self.ramp() + self.window()).mul_f64(1.1).as_millis();
        usize::try_from(open / u128::from(self.interval_ms)).unwrap_or(usize::MAX - 2) + 2
    }

    /// The program.
    pub(crate) fn edge(&self) -> PathBuf {
        let other = std::env::var_os("SGL_EDGE_BIN");
        other.map_or_else(|| env!("CARGO_BIN_EXE_sgl-edge").into(), PathBuf::from)
    }
}
