//! The program: its file, its start, and what it counts.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Rig;
use crate::engines;
use crate::ports::{self, local};
use crate::process::Process;

/// How long it may take until nothing is in flight any more. Chosen; it should be at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Beyond any pause after which it closes connections to engines or gives pages back.
const SETTLED: Duration = Duration::from_secs(6);

/// What it does of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idling {
    /// It asks the engines who they are, and no more.
    Quiet,
    /// What the defaults are: health checks, and reading loads.
    Default,
}

/// A running sgl-edge.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) process: Process,
    pub(crate) data: SocketAddr,
    admin: SocketAddr,
}

/// What it says is going on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Counted {
    /// Requests being served.
    pub(crate) requests: f64,
    /// Requests that some engine is charged with.
    pub(crate) at_engines: f64,
    /// Client connections.
    pub(crate) connections: f64,
    /// Bytes of request bodies that are held.
    pub(crate) body_bytes: f64,
}

impl Counted {
    /// In the order of the fields.
    pub(crate) const fn each(&self) -> [f64; 4] {
        [
            self.requests,
            self.at_engines,
            self.connections,
            self.body_bytes,
        ]
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.each() == [0.0; 4]
    }
}

impl Edge {
    /// Starts it in front of `fleet` and waits until it serves; `None` leaves the number of threads to it.
    ///
    /// # Errors
    /// It does not serve.
    pub(crate) async fn start(
        rig: &Rig,
        threads: Option<u32>,
        idling: Idling,
        fleet: &[SocketAddr],
    ) -> Result<Self, String> {
        let port = ports::free(2)?;
        let (data, admin) = (local(port), local(port + 1));
        let text = file(data, admin, threads, idling, fleet);
        let path = rig.scratch.path().join("edge.yaml");
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut process = Process::start("sgl-edge", command(rig, &path), rig.scratch.path())?;
        engines::serves(&mut process, data).await?;
        Ok(Self {
            process,
            data,
            admin,
        })
    }

    /// # Errors
    /// The admin listener does not answer.
    pub(crate) async fn counted(&self) -> Result<Counted, String> {
        let exchange = async {
            let mut socket = TcpStream::connect(self.admin).await?;
            let request = b"GET /metrics HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n";
            socket.write_all(request).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        let answer = answer.map_err(|_| "the admin listener does not answer".to_owned())?;
        let answer = answer.map_err(|error| format!("admin listener: {error}"))?;
        Ok(Counted {
            requests: sum(&answer, "inflight_requests")?,
            at_engines: sum(&answer, "worker_inflight_requests")?,
            connections: sum(&answer, "client_connections")?,
            body_bytes: sum(&answer, "buffered_body_bytes")?,
        })
    }

    /// Waits until nothing is counted any more, then until it has had time to tidy up. Returns what
    /// is counted then.
    ///
    /// # Errors
    /// The admin listener does not answer.
    pub(crate) async fn settle(&self) -> Result<Counted, String> {
        let started = Instant::now();
        while !self.counted().await?.is_nothing() && started.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(SETTLED).await;
        self.counted().await
    }
}

fn command(rig: &Rig, file: &PathBuf) -> Command {
    let mut command = Command::new(rig.options.edge());
    command.args(["run", "-c"]).arg(file);
    command
}

fn file(
    data: SocketAddr,
    admin: SocketAddr,
    threads: Option<u32>,
    idling: Idling,
    fleet: &[SocketAddr],
) -> String {
    let threads = threads.map_or_else(|| "null".to_owned(), |threads| threads.to_string());
    let (health, feeds) = match idling {
        Idling::Quiet => (
            "health: null\n",
            "    kv_events: off\n    load_poll_interval: null\n",
        ),
        Idling::Default => ("", ""),
    };
    let mut text = format!(
        "listen: [\"{data}\"]\nadmin: {{listen: \"{admin}\"}}\nthreads: {threads}\n{health}\
         log: {{level: warn, access: false}}\nmodels:\n  - id: demo\n{feeds}    engines:\n      static:\n"
    );
    for (engine, number) in fleet.iter().zip(1..) {
        let _ = writeln!(
            text,
            "        - {{id: E{number}, url: \"http://{engine}\", role: plain}}"
        );
    }
    text
}

/// The sum of all series of one name.
fn sum(scrape: &str, name: &str) -> Result<f64, String> {
    let values = scrape.lines().filter_map(|line| {
        let rest = line.strip_prefix("sgl_router_")?.strip_prefix(name)?;
        rest.starts_with([' ', '{']).then_some(())?;
        rest.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    let values: Vec<f64> = values.collect();
    if values.is_empty() {
        return Err(format!("/metrics has no {name}"));
    }
    Ok(values.iter().sum())
}
