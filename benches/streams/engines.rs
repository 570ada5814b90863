//! The mock engines, all in one process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{self, Chat};
use crate::options::Options;
use crate::ports::{self, local};
use crate::process::Process;

/// How long a process may take until it serves. Chosen; thousands of engines in a debug build take long.
pub(crate) const START: Duration = Duration::from_secs(60);

/// Running mock engines.
#[derive(Debug)]
pub(crate) struct Engines {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) process: Process,
}

impl Engines {
    /// Starts `count` of them and waits until the last one serves.
    ///
    /// # Errors
    /// They do not serve.
    pub(crate) async fn start(
        count: u16,
        options: &Options,
        folder: &Path,
    ) -> Result<Self, String> {
        let first = ports::free(count)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_mock-engine"));
        command
            .args(["--no-record", "--model", "demo"])
            .args(["--max-running-requests", "1000000"])
            .args(["--listen", &local(first).to_string()])
            .args(["--count", &count.to_string()])
            .args([
                "--token-interval",
                &format!("{}ms", options.interval().as_millis()),
            ]);
        if options.http2 {
            command.arg("--enable-http2");
        }
        let mut process = Process::start("engines", command, folder)?;
        let addresses: Vec<SocketAddr> = (first..first + count).map(local).collect();
        serves(&mut process, addresses[addresses.len() - 1]).await?;
        Ok(Self { addresses, process })
    }
}

/// Waits until `address` answers a chat.
///
/// # Errors
/// The process ended, or takes too long.
pub(crate) async fn serves(process: &mut Process, address: SocketAddr) -> Result<(), String> {
    let (chat, started) = (Chat::new(1), Instant::now());
    loop {
        let Err(problem) = client::once(address, &chat).await else {
            return Ok(());
        };
        process.must_run()?;
        if started.elapsed() > START {
            return Err(format!(
                "{address} does not serve: {problem}: {}",
                process.said()
            ));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
