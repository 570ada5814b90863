//! Whether this process and those it starts may open as many files as the load needs.

use std::process::Command;

use crate::machine;
use crate::options::Options;

/// Files beside connections: listeners, event loops, programs.
const BESIDE: u64 = 150;

/// Makes sure that there are enough, raising the soft limit if the hard one allows it.
///
/// # Errors
/// There are not, with what to do.
pub(crate) fn ensure(options: &Options) -> Result<(), String> {
    let needed = needed(options);
    let (soft, hard) = limits()?;
    if soft >= needed {
        return Ok(());
    }
    if hard >= needed {
        raise(hard);
    }
    let (soft, hard) = limits()?;
    if soft >= needed {
        return Ok(());
    }
    let streams = hard.saturating_sub(BESIDE) / 2;
    Err(format!(
        "{needed} open files are needed, the limit is {soft} (hard limit {hard}): `ulimit -n {needed}` \
         first, or fewer: `STREAMS={streams}`, or --connections and --engines where those are more"
    ))
}

/// Of the process that needs most.
fn needed(options: &Options) -> u64 {
    let streams = u64::from(options.streams);
    // HTTP/2 puts a hundred streams on a connection to an engine.
    let to_engines = if options.http2 { streams / 50 } else { streams };
    // A mock engine has two sockets for its port, and in default settings a connection for its health
    // and one for its load.
    let engines = 4 * u64::from(options.engines);
    let connections = u64::from(options.connections);
    (streams + to_engines).max(engines).max(connections) + BESIDE
}

/// Soft and hard limit of this process.
fn limits() -> Result<(u64, u64), String> {
    let text = std::fs::read_to_string("/proc/self/limits").map_err(|error| error.to_string())?;
    let line = text.lines().find(|line| line.starts_with("Max open files"));
    let mut fields = line.unwrap_or_default().split_ascii_whitespace().skip(3);
    let mut next = || match fields.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    let both = next().zip(next());
    both.ok_or_else(|| "/proc/self/limits does not tell about open files".to_owned())
}

/// By a program, since no crate that is here already can do it. Without it the limit stays.
fn raise(to: u64) {
    let Some(prlimit) = machine::find("prlimit") else {
        return;
    };
    let own = std::process::id().to_string();
    let limit = format!("--nofile={to}:{to}");
    let raised = Command::new(prlimit).args(["--pid", &own, &limit]).status();
    if !raised.is_ok_and(|status| status.success()) {
        eprintln!("streams: prlimit could not raise the number of open files");
    }
}
