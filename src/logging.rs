//! Where log lines go: standard error, as text or JSON.
//!
//! Lines are handed to a writer thread and dropped, not waited for, when standard error is slower
//! than the traffic: logging never holds up a request. `RUST_LOG` overrides the configured level.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::config::{Log, LogFormat};

/// Changes the level of a running process.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

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

/// Takes over the level of a reloaded configuration; `RUST_LOG` still wins. The format needs a
/// restart.
pub fn set_level(log: &Log) {
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(filter(log))
    {
        tracing::error!(%error, "log level not changed");
    }
}

fn filter(log: &Log) -> EnvFilter {
    // Pingora's own start and stop lines are noise below warning.
    let quiet = match log.level.as_str() {
        level @ ("error" | "off") => level,
        _ => "warn",
    };
    let default = format!(
        "{0},pingora={quiet},pingora_core={quiet},pingora_proxy={quiet}",
        log.level.as_str()
    );
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

fn install<W>(log: &Log, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(log));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // A second installation in one process (tests) keeps the first.
    match tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
    {
        Ok(()) => {
            let _ = FILTER.set(handle);
        }
        Err(error) => eprintln!("sgl-edge: log: {error}"),
    }
}
