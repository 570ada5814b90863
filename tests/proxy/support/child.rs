//! The program itself: started with a file, watched over its admin port, ended by pid.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Answer, Client};
use super::gauges::Gauges;
use super::{SOON, eventually, pause};

/// Ports for listeners, below the range the system takes for outgoing connections.
const PORTS: std::ops::Range<u16> = 11_000..32_000;

/// A running `sgl-edge run -c FILE`.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) data: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) directory: PathBuf,
    config: Value,
    child: Child,
}

/// A free port, never given twice by this process.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let span = PORTS.end - PORTS.start;
    let next = NEXT.get_or_init(|| {
        let scattered = u64::from(std::process::id()).wrapping_mul(7_919) % u64::from(span);
        AtomicU16::new(u16::try_from(scattered).expect("below the span"))
    });
    loop {
        let offset = next.fetch_add(1, Ordering::Relaxed) % span;
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + offset));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A directory of this test, removed with the proxy.
fn directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("proxy-{}-{number}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).expect("a writable target directory");
    path
}

/// Puts `patch` over `target`: objects merge, everything else (`null` too) replaces.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(into), Value::Object(from)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (key, value) in from {
        match into.get_mut(key) {
            Some(present) if present.is_object() && value.is_object() => merge(present, value),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Runs the program; what it prints goes to a file in `directory`.
fn spawn(directory: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    let log = fs::File::create(directory.join("log")).expect("a writable file");
    Command::new(env!("CARGO_BIN_EXE_sgl-edge"))
        .arg("run")
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("the program of this package")
}

impl Proxy {
    /// Starts the program with quiet settings and `settings` over them, and waits until it serves.
    pub(crate) async fn start(settings: Value) -> Self {
        Self::start_in(settings, &[]).await
    }

    /// The same with more variables in its environment.
    pub(crate) async fn start_in(settings: Value, environment: &[(&str, &str)]) -> Self {
        for _ in 0..3 {
            let at = [free_address(), free_address()];
            let mut proxy = Self::launch_in(at, &settings, &[], environment);
            if proxy.serves().await {
                return proxy;
            }
            eprintln!("not started, once more: {}", proxy.log());
        }
        panic!("the program does not start");
    }

    /// Starts the program and waits for nothing.
    pub(crate) fn launch(settings: &Value) -> Self {
        Self::launch_at([free_address(), free_address()], settings, &[])
    }

    /// The same on these addresses (data, admin), with more arguments.
    pub(crate) fn launch_at(at: [SocketAddr; 2], settings: &Value, arguments: &[&str]) -> Self {
        Self::launch_in(at, settings, arguments, &[])
    }

    fn launch_in(
        at: [SocketAddr; 2],
        settings: &Value,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let ([data, admin], directory) = (at, directory());
        let mut config = json!({
            "listen": [data.to_string()],
            "admin": {"listen": admin.to_string()},
            "threads": 2,
            "shutdown": {"drain": "0s", "grace": "5s"},
            "health": null,
            "log": {"level": "info"},
        });
        merge(&mut config, settings);
        let path = directory.join("edge.yaml");
        fs::write(&path, sgl_edge::config::to_yaml(&config)).expect("a writable file");
        let path = path.to_str().expect("a plain path");
        let child = spawn(
            &directory,
            &[&["-c", path], arguments].concat(),
            environment,
        );
        Self {
            data,
            admin,
            directory,
            config,
            child,
        }
    }

    /// Starts the program with sgl-router's flags and free ports, and waits until it serves.
    pub(crate) async fn start_with_flags(flags: &[&str]) -> Self {
        for _ in 0..3 {
            let (data, admin, directory) = (free_address(), free_address(), directory());
            let (port, admin_listen) = (data.port().to_string(), admin.to_string());
            let ports = ["--port", &port, "--admin-listen", &admin_listen];
            let child = spawn(&directory, &[flags, &ports].concat(), &[]);
            let mut proxy = Self {
                data,
                admin,
                directory,
                config: Value::Null,
                child,
            };
            if proxy.serves().await {
                return proxy;
            }
            eprintln!("not started, once more: {}", proxy.log());
        }
        panic!("the program does not start");
    }

    /// Whether it answers on both ports before it ends or time is over.
    pub(crate) async fn serves(&mut self) -> bool {
        // A tokenizer takes seconds of work to load, and many programs start at once.
        let deadline = Instant::now() + 3 * SOON;
        while Instant::now() < deadline {
            if self.exited().is_some() {
                return false;
            }
            if self.is_open(self.admin).await && self.is_open(self.data).await {
                return self.admin("GET", "/healthz").await.status == 200;
            }
            pause(20).await;
        }
        false
    }

    async fn is_open(&self, address: SocketAddr) -> bool {
        tokio::net::TcpStream::connect(address).await.is_ok()
    }

    /// A new connection to the data listener.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.data).await
    }

    /// One chat on a connection of its own.
    pub(crate) async fn chat(&self, body: &Value) -> Answer {
        self.chat_bytes(body.to_string().as_bytes()).await
    }

    /// The same with bytes.
    pub(crate) async fn chat_bytes(&self, body: &[u8]) -> Answer {
        self.client().await.chat(body).await
    }

    /// One admin call on a connection of its own.
    pub(crate) async fn admin(&self, method: &str, path: &str) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        super::gauges::admin(self.admin, &request).await
    }

    /// `/admin/state`.
    pub(crate) async fn state(&self) -> Value {
        self.admin("GET", "/admin/state").await.json()
    }

    /// `/metrics`.
    pub(crate) async fn gauges(&self) -> Gauges {
        Gauges::parse(&self.admin("GET", "/metrics").await.text())
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status();
        assert!(sent.expect("kill").success(), "kill -{name}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Waits for its end, at most `limit`.
    pub(crate) async fn exit_within(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(Instant::now() < deadline, "still runs: {}", self.log());
            pause(20).await;
        }
    }

    /// What it printed.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Changes the file, and does not tell the program.
    pub(crate) fn write_config(&mut self, patch: &Value) {
        merge(&mut self.config, patch);
        self.write_text(&sgl_edge::config::to_yaml(&self.config));
    }

    /// Replaces the file by any text, in one step.
    pub(crate) fn write_text(&self, text: &str) {
        let fresh = self.directory.join("fresh");
        fs::write(&fresh, text).expect("a writable file");
        fs::rename(fresh, self.directory.join("edge.yaml")).expect("a writable directory");
    }

    /// Waits until nothing is counted as in flight anywhere.
    pub(crate) async fn idle(&self) {
        eventually("gauges at zero", async || {
            let gauges = self.gauges().await;
            gauges.sum("inflight_requests") == 0.0
                && gauges.sum("buffered_body_bytes") == 0.0
                && gauges.sum("worker_inflight_requests") == 0.0
        })
        .await;
    }

    /// The end of a test: idle, alive, serving, and nothing panicked.
    pub(crate) async fn finish(mut self) {
        self.idle().await;
        assert!(self.exited().is_none(), "ended: {}", self.log());
        let health = self.client().await.call("GET", "/healthz").await;
        assert_eq!(health.status, 200);
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the proxy\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
