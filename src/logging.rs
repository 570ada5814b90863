//! Where log lines go: standard error, as text or JSON.
//!
//! Lines are handed to a writer thread and dropped, not waited for, when standard error is slower
//! than the traffic: logging never holds up a request. `RUST_LOG` overrides the configured level.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Log, LogFormat};

/// Keeps the writer thread; dropping it writes what is buffered.
#[derive(Debug)]
#[must_use = "dropping the guard stops the log"]
pub struct LogGuard(
    #[expect(dead_code, reason = "held for its drop")]
    Option<tracing_appender::non_blocking::WorkerGuard>,
);

/// Starts logging. With `daemon` the lines are written directly, because a thread made now would
/// not survive the fork.
pub fn start(log: &Log, daemon: bool) -> LogGuard {
    if daemon {
        install(log, std::io::stderr);
        return LogGuard(None);
    }
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    install(log, writer);
    LogGuard(Some(guard))
}

fn install<W>(log: &Log, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // Pingora's own start and stop lines are noise below warning.
    let default = format!(
        "{0},pingora=warn,pingora_core=warn,pingora_proxy=warn",
        log.level.as_str()
    );
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal());
    // A second installation in one process (tests) keeps the first.
    let installed = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = installed {
        eprintln!("sgl-edge: log: {error}");
    }
}
