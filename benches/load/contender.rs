//! The proxies and the engines behind them: how each is configured and started.
//!
//! One worker thread each, connections to engines kept, no access log, and no health checks, since a
//! proxy that is stopped between its turns would find its engines ill.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bare;
use crate::children::{Place, Process};
use crate::loader;
use crate::machine;

/// Engines behind every proxy.
const ENGINES: usize = 4;

/// How long a process may take until it serves. Chosen; a debug build loads tokenizers slowly.
const START: Duration = Duration::from_secs(60);

/// A proxy, with its program.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// This build.
    Edge(PathBuf),
    /// Another build of sgl-edge.
    OtherEdge(PathBuf),
    /// Pingora without anything, in this program.
    Bare,
    /// nginx.
    Nginx(PathBuf),
    /// HAProxy.
    Haproxy(PathBuf),
}

impl Kind {
    /// Its name in options and tables.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Edge(_) => "sgl-edge",
            Self::OtherEdge(_) => "other-build",
            Self::Bare => "bare-pingora",
            Self::Nginx(_) => "nginx",
            Self::Haproxy(_) => "haproxy",
        }
    }

    /// Whether it reads prompts where a scenario wants that.
    const fn tokenizes(&self) -> bool {
        matches!(self, Self::Edge(_) | Self::OtherEdge(_))
    }

    fn command(&self, at: &Site<'_>) -> Result<Command, String> {
        let mut command;
        match self {
            Self::Edge(program) | Self::OtherEdge(program) => {
                let file = at.write("edge.yaml", &edge(at)?)?;
                command = Place::Proxy.command(program);
                command.args(["run", "-c"]).arg(file);
                // The tokenizer's path is relative.
                command.current_dir(env!("CARGO_MANIFEST_DIR"));
            }
            Self::Bare => {
                let own = std::env::current_exe().map_err(|error| error.to_string())?;
                command = Place::Proxy.command(&own);
                command.arg(bare::WORD).arg(local(at.port).to_string());
                command.args(at.engines.iter().map(ToString::to_string));
            }
            Self::Nginx(program) => {
                let file = at.write("nginx.conf", &nginx(at))?;
                command = Place::Proxy.command(program);
                command.arg("-p").arg(at.folder).arg("-c").arg(file);
            }
            Self::Haproxy(program) => {
                let file = at.write("haproxy.cfg", &haproxy(at))?;
                command = Place::Proxy.command(program);
                command.args(["-db", "-f"]).arg(file);
            }
        }
        Ok(command)
    }
}

/// Where and for whom a proxy is started.
struct Site<'a> {
    folder: &'a Path,
    port: u16,
    engines: &'a [SocketAddr],
    tokenized: bool,
    name: String,
}

impl Site<'_> {
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(format!("{}-{name}", self.name));
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn edge(at: &Site<'_>) -> Result<String, String> {
    let mut text = format!(
        "listen: [\"{}\"]\nadmin: {{listen: \"{}\"}}\nthreads: 1\nhealth: null\n\
         log: {{level: warn, access: false}}\nmodels:\n  - id: demo\n",
        local(at.port),
        local(free_ports(1)?)
    );
    if at.tokenized {
        text.push_str(
            "    tokenizer: conf/tokenizers/demo\n    buckets:\n      - id: all\n        \
             groups: {plain: {policy: {type: cache_aware}}}\n",
        );
    }
    text.push_str("    engines:\n      static:\n");
    for (engine, number) in at.engines.iter().zip(1..) {
        let _ = writeln!(
            text,
            "        - {{id: E{number}, url: \"http://{engine}\", role: plain}}"
        );
    }
    Ok(text)
}

/// One process, which buffers request bodies (its default) and not answers.
fn nginx(at: &Site<'_>) -> String {
    let mut engines = String::new();
    for engine in at.engines {
        let _ = writeln!(engines, "    server {engine};");
    }
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|what| {
        let folder = at.folder.display();
        format!("  {what}_temp_path {folder}/nginx-{what};\n")
    });
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {folder}/nginx.pid;\n\
         error_log stderr crit;\nevents {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n\
         {temporary}  client_body_buffer_size 256k;\n  client_max_body_size 32m;\n\
         \x20 upstream engines {{\n{engines}    keepalive 1024;\n    keepalive_requests 1000000000;\n  }}\n\
         \x20 server {{\n    listen {listen} backlog=4096;\n    keepalive_requests 1000000000;\n\
         \x20   location / {{\n      proxy_pass http://engines;\n      proxy_http_version 1.1;\n\
         \x20     proxy_set_header Connection \"\";\n      proxy_buffering off;\n      proxy_read_timeout 600s;\n    }}\n  }}\n}}\n",
        folder = at.folder.display(),
        temporary = temporary.concat(),
        listen = local(at.port),
    )
}

fn haproxy(at: &Site<'_>) -> String {
    let mut text = format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  \
         timeout client 600s\n  timeout server 600s\n  option http-keep-alive\n  \
         option http-no-delay\n  http-reuse always\nfrontend clients\n  bind {}\n  \
         default_backend engines\nbackend engines\n  balance roundrobin\n",
        local(at.port)
    );
    for (engine, number) in at.engines.iter().zip(1..) {
        let _ = writeln!(text, "  server E{number} {engine}");
    }
    text
}

/// The first of `count` consecutive ports that nobody listens on, below those that the system hands
/// out to clients.
fn free_ports(count: u16) -> Result<u16, String> {
    use std::sync::atomic::{AtomicU16, Ordering};
    // Two runs at once start at different places.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 16_000 + u16::try_from(std::process::id() % 1_000).unwrap_or(0) * 12;
    for _ in 0..1_000 {
        let first = start + NEXT.fetch_add(count, Ordering::Relaxed);
        if (first..first + count).all(|port| TcpListener::bind(local(port)).is_ok()) {
            return Ok(first);
        }
    }
    Err("no free ports".to_owned())
}

/// The mock engines.
#[derive(Debug)]
pub(crate) struct Engines {
    addresses: Vec<SocketAddr>,
    _process: Process,
}

impl Engines {
    /// Starts them; they announce KV events, so that a `cache_aware` proxy hashes prompts.
    ///
    /// # Errors
    /// They do not serve.
    pub(crate) fn start(folder: &Path, body: &str) -> Result<Self, String> {
        let count = u16::try_from(ENGINES).map_err(|error| error.to_string())?;
        let first = free_ports(count)?;
        let kv_port = free_ports(count)?;
        let threads = machine::cores().saturating_sub(2).max(1);
        let mut command = Place::Rest.command(Path::new(env!("CARGO_BIN_EXE_mock-engine")));
        command
            .args(["--instant", "--no-record", "--model", "demo"])
            .args(["--listen", &local(first).to_string()])
            .args(["--count", &count.to_string()])
            .args(["--kv-port", &kv_port.to_string()])
            .args(["--threads", &threads.to_string()]);
        let mut process = Process::start("engines", command, folder)?;
        let addresses: Vec<SocketAddr> = (first..first + count).map(local).collect();
        for address in &addresses {
            wait(&mut process, "engines", *address, body)?;
        }
        Ok(Self {
            addresses,
            _process: process,
        })
    }
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    plain: Running,
    /// With a tokenizer, for the scenarios that want it.
    tokenized: Option<Running>,
}

/// One process of a proxy.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Contender {
    /// Starts a proxy, waits until it serves `body`, and stops it until its turn.
    ///
    /// # Errors
    /// It does not serve.
    pub(crate) fn start(
        kind: &Kind,
        engines: &Engines,
        tokenized: bool,
        folder: &Path,
        body: &str,
    ) -> Result<Self, String> {
        let start = |tokenized: bool| {
            let label = if tokenized { "tokenized-" } else { "" };
            let name = format!("{label}{}", kind.name());
            let site = Site {
                folder,
                port: free_ports(1)?,
                engines: &engines.addresses,
                tokenized,
                name: name.clone(),
            };
            let address = local(site.port);
            let mut process = Process::start(&name, kind.command(&site)?, folder)?;
            wait(&mut process, &name, address, body)?;
            process.signal("STOP")?;
            Ok::<_, String>(Running { process, address })
        };
        Ok(Self {
            name: kind.name(),
            plain: start(false)?,
            tokenized: (tokenized && kind.tokenizes())
                .then(|| start(true))
                .transpose()?,
        })
    }

    /// The process for a scenario.
    pub(crate) fn running(&self, tokenized: bool) -> &Running {
        let other = self.tokenized.as_ref().filter(|_| tokenized);
        other.unwrap_or(&self.plain)
    }
}

/// Waits until `address` answers `body` with 200.
fn wait(process: &mut Process, name: &str, address: SocketAddr, body: &str) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let problem = match loader::post(address, body) {
            Ok(()) => return Ok(()),
            Err(problem) => problem,
        };
        if let Some(status) = process.ended()? {
            return Err(format!("{name} ended, {status}: {}", process.said()));
        }
        if started.elapsed() > START {
            return Err(format!(
                "{name} does not serve: {problem}: {}",
                process.said()
            ));
        }
        sleep(Duration::from_millis(50));
    }
}
