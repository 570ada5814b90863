//! Whoever makes the load: `wrk` where it is installed, else `oha`; and one request by hand.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::children::{Place, Process};
use crate::machine;
use crate::scenario::{PLACE, Scenario};

const PATH: &str = "/v1/chat/completions";

/// Beyond its time a load generator is taken for dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `wrk` runs.
const SCRIPT: &str = include_str!("wrk.lua");

/// What one run of the load generator counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Counted {
    pub(crate) requests: f64,
    pub(crate) failed: f64,
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// A load generator that is installed.
#[derive(Debug)]
pub(crate) enum Loader {
    Wrk { program: PathBuf, script: PathBuf },
    Oha { program: PathBuf },
}

impl Loader {
    /// The best that is installed; its files go to `folder`.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(folder: &Path) -> Result<Self, String> {
        if let Some(program) = machine::find("wrk") {
            let script = folder.join("wrk.lua");
            fs::write(&script, SCRIPT).map_err(|error| error.to_string())?;
            return Ok(Self::Wrk { program, script });
        }
        let program = machine::find("oha").ok_or(
            "no load generator: install wrk (a package of Debian, Ubuntu and Homebrew) or oha \
             (`cargo install oha`)",
        )?;
        Ok(Self::Oha { program })
    }

    /// Writes the bodies of `scenario` to a file of `folder`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn bodies(folder: &Path, scenario: &Scenario) -> Result<PathBuf, String> {
        let file = folder.join(format!("{}.bodies", scenario.name));
        fs::write(&file, scenario.bodies().join("\n")).map_err(|error| error.to_string())?;
        Ok(file)
    }

    /// Loads `address` for `seconds`.
    ///
    /// # Errors
    /// The generator failed, or `interrupted` was set.
    pub(crate) fn run(
        &self,
        load: &Load<'_>,
        folder: &Path,
        interrupted: &AtomicBool,
    ) -> Result<Counted, String> {
        let command = match self {
            Self::Wrk { program, script } => wrk(program, script, load),
            Self::Oha { program } => oha(program, load),
        };
        let mut process = Process::start("loader", command, folder)?;
        let latest = Instant::now() + Duration::from_secs(load.seconds.into()) + PATIENCE;
        let status = loop {
            if let Some(status) = process.ended()? {
                break status;
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".to_owned());
            }
            if Instant::now() > latest {
                return Err("the load generator does not end".to_owned());
            }
            sleep(Duration::from_millis(10));
        };
        let said = process.said();
        let counted = match self {
            Self::Wrk { .. } => wrk_result(&said),
            Self::Oha { .. } => oha_result(&said),
        };
        let counted = counted.filter(|_| status.success());
        counted.ok_or_else(|| format!("the load generator, {status}: {said}"))
    }
}

/// One run.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) bodies: &'a Path,
    pub(crate) different: bool,
    pub(crate) seconds: u32,
    pub(crate) connections: u32,
}

impl Load<'_> {
    fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }
}

fn wrk(program: &Path, script: &Path, load: &Load<'_>) -> Command {
    let mut command = Place::Rest.command(program);
    command
        .arg("-t1")
        .arg(format!("-c{}", load.connections))
        .arg(format!("-d{}s", load.seconds))
        .args(["--timeout", "20s", "-s"])
        .arg(script)
        .arg(load.url())
        .arg("--")
        .arg(load.bodies)
        .arg(if load.different { "different" } else { "same" });
    command
}

/// Reads the line that the script writes.
fn wrk_result(said: &str) -> Option<Counted> {
    let line = said.lines().find_map(|line| line.strip_prefix("RESULT "))?;
    let numbers: Vec<f64> = line
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let [requests, micros, p50, p99, failed] = numbers.try_into().ok()?;
    Some(Counted {
        requests,
        failed,
        seconds: micros / 1e6,
        p50_ms: p50 / 1e3,
        p99_ms: p99 / 1e3,
    })
}

/// It draws bodies from the file as they are: they come again, also where they should not.
fn oha(program: &Path, load: &Load<'_>) -> Command {
    let mut command = Place::Rest.command(program);
    command
        .args(["--no-tui", "--output-format", "json", "-m", "POST"])
        .args(["-T", "application/json"])
        .arg("-z")
        .arg(format!("{}s", load.seconds))
        .arg("-c")
        .arg(load.connections.to_string())
        .arg("-Z")
        .arg(load.bodies)
        .arg(load.url());
    command
}

fn oha_result(said: &str) -> Option<Counted> {
    let report: Value = serde_json::from_str(said.trim()).ok()?;
    let mut counted = Counted {
        requests: 0.0,
        failed: 0.0,
        seconds: report["summary"]["total"].as_f64()?,
        p50_ms: report["latencyPercentiles"]["p50"].as_f64()? * 1e3,
        p99_ms: report["latencyPercentiles"]["p99"].as_f64()? * 1e3,
    };
    for (status, count) in report["statusCodeDistribution"].as_object()? {
        counted.requests += count.as_f64()?;
        if status != "200" {
            counted.failed += count.as_f64()?;
        }
    }
    for (error, count) in report["errorDistribution"].as_object()? {
        // What was under way when the time was over is no failure.
        if !error.contains("deadline") {
            counted.failed += count.as_f64()?;
        }
    }
    Some(counted)
}

/// One request by hand.
///
/// # Errors
/// Anything but a 200.
pub(crate) fn post(address: SocketAddr, body: &str) -> Result<(), String> {
    let body = body.replace(PLACE, "00000000");
    let answer = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            socket,
            "POST {PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = answer().map_err(|error| error.to_string())?;
    if answer.starts_with("HTTP/1.1 200") {
        return Ok(());
    }
    Err(answer.lines().next().unwrap_or("no answer").to_owned())
}
