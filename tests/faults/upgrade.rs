//! Leaving under load: the sockets handed to a new process (SIGQUIT and `--upgrade`), and SIGTERM
//! while clients keep their connections.
//!
//! What is measured: twenty clients send one request after the other, half of them each on a new
//! connection, half on one that they keep. A request is *lost* when its connection is refused, when
//! a new connection ends without an answer, or when an answer is not 200 and whole. A kept connection
//! that ends between two requests is no loss: HTTP/1.1 allows that at any time, nothing of the
//! request was worked on, and every client library sends it again; these are counted as `stale`, at
//! most one per client, and the engines must not have seen them.

mod load;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig};

use crate::support::body::{self, stream};
use crate::support::child::{Proxy, free_address};
use crate::support::client::{Client, End};
use crate::support::fleet::{and, engine_with, plain};
use crate::support::h2c::{H2Client, H2Exchange};
use crate::support::{SOON, eventually, pause};
use load::Load;

async fn engine(name: &str) -> Engine {
    let config = EngineConfig {
        ttft: Duration::from_millis(10),
        token_interval: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    engine_with(name, config).await
}

/// Pingora's own file, with sockets that nobody else uses.
struct ServerFile(PathBuf);

impl ServerFile {
    fn new() -> Self {
        let name = format!("upgrade-{}", free_address().port());
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&directory).expect("a writable target directory");
        let file = Self(directory);
        let text = format!(
            "version: 1\nupgrade_sock: {}\npid_file: {}\n",
            file.socket().display(),
            file.0.join("pid").display()
        );
        fs::write(file.path(), text).expect("a writable directory");
        file
    }

    fn path(&self) -> PathBuf {
        self.0.join("server.yaml")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    fn argument(&self) -> String {
        self.path().to_str().expect("a plain path").to_owned()
    }
}

impl Drop for ServerFile {
    fn drop(&mut self) {
        // What stays is below the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A stream of that many seconds whose first chunk has come.
async fn long_stream(proxy: &Proxy, seconds: u32) -> (Client, crate::support::client::Answer) {
    let headers = format!(
        "x-sgl-mock-tokens: {}\r\nx-sgl-mock-interval-ms: 100\r\n",
        seconds * 10
    );
    let mut client = proxy.client().await;
    let request = body::with_length(stream("one").to_string().as_bytes(), &headers);
    client.send(&request).await;
    let mut head = client.head(SOON).await.expect("a stream");
    head.body = client.chunk().await.expect("a chunk");
    (client, head)
}

/// The same over HTTP/2.
async fn long_http2(proxy: &Proxy, seconds: u32) -> H2Exchange {
    let body = stream("one").to_string();
    let request = http::Request::post("http://edge/v1/chat/completions")
        .header("content-length", body.len())
        .header("x-sgl-mock-tokens", seconds * 10)
        .header("x-sgl-mock-interval-ms", 100)
        .body(())
        .expect("a sane request");
    let mut client = H2Client::connect(proxy.data).await;
    let mut exchange = client.send_request(request, false).await;
    exchange.send(body.as_bytes()).await;
    exchange
}

/// Requests that reached an engine.
fn seen(engines: &[&Engine]) -> u64 {
    engines.iter().map(|engine| engine.stats().requests).sum()
}

/// Hands the sockets of `old` to a new process.
async fn hand_over(old: &Proxy, settings: &Value, file: &ServerFile) -> Proxy {
    let arguments = ["--upgrade", "--conf", &file.argument()];
    let new = Proxy::launch_at([old.data, old.admin], settings, &arguments);
    eventually("the new process waits", async || file.socket().exists()).await;
    // The file is there a moment before somebody listens on it; the sender would try again.
    pause(50).await;
    old.signal("QUIT");
    new
}

#[tokio::test]
async fn an_upgrade_under_load_loses_nothing() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let more = json!({"shutdown": {"drain": "0s", "grace": "60s"}, "log": {"level": "info", "access": false}});
    let settings = and(plain(&[&first, &second]), more);
    let file = ServerFile::new();
    let at = [free_address(), free_address()];
    let mut old = Proxy::launch_at(at, &settings, &["--conf", &file.argument()]);
    assert!(old.serves().await, "{}", old.log());
    let load = Load::new(old.data);
    let scenario = async {
        load.progress(100).await;
        let mut running = long_stream(&old, 12).await;
        let started = Instant::now();
        let mut new = hand_over(&old, &settings, &file).await;
        // Both serve for a while, then only the new one.
        running.0.body(&mut running.1).await;
        assert_eq!(running.1.end, End::Clean, "the running stream");
        assert!(running.1.text().ends_with("data: [DONE]\n\n"));
        assert!(
            started.elapsed() > Duration::from_secs(8),
            "it was a long one"
        );
        let status = old.exit_within(SOON).await;
        assert_eq!(status.code(), Some(0), "{}", old.log());
        assert!(!old.log().contains("panicked"));
        load.progress(200).await;
        load.stop.store(true, Ordering::Relaxed);
        assert!(new.exited().is_none(), "{}", new.log());
        new
    };
    let (tally, new) = tokio::join!(load.run(10, 10), scenario);
    eprintln!("upgrade: {tally:?}");
    tally.assert_nothing_lost();
    assert_eq!(
        seen(&[&first, &second]),
        tally.answered + 1,
        "worked on in vain"
    );
    for engine in [&first, &second] {
        assert_eq!(engine.stats().aborted, 0);
    }
    let again = new.chat(&stream("x")).await;
    again.assert_engine(200);
    new.finish().await;
}

#[tokio::test]
async fn a_second_upgrade_works_like_the_first() {
    let first = engine("E1").await;
    let settings = plain(&[&first]);
    let file = ServerFile::new();
    let at = [free_address(), free_address()];
    let mut proxy = Proxy::launch_at(at, &settings, &["--conf", &file.argument()]);
    assert!(proxy.serves().await, "{}", proxy.log());
    for _ in 0..2 {
        let new = hand_over(&proxy, &settings, &file).await;
        let status = proxy.exit_within(SOON).await;
        assert_eq!(status.code(), Some(0), "{}", proxy.log());
        assert!(!proxy.log().contains("panicked"));
        proxy = new;
        proxy.chat(&stream("x")).await.assert_engine(200);
        assert_eq!(proxy.admin("GET", "/readyz").await.status, 200);
    }
    proxy.finish().await;
}

#[tokio::test]
async fn an_upgrade_that_nobody_hands_sockets_to_ends_by_itself() {
    let first = engine("E1").await;
    let file = ServerFile::new();
    let settings = plain(&[&first]);
    let running = Proxy::start(settings.clone()).await;
    let arguments = ["--upgrade", "--conf", &file.argument()];
    let at = [running.data, running.admin];
    let mut lonely = Proxy::launch_at(at, &settings, &arguments);
    // The other one does not notice.
    let status = lonely.exit_within(Duration::from_secs(60)).await;
    assert_ne!(status.code(), Some(0), "{}", lonely.log());
    running.chat(&stream("x")).await.assert_engine(200);
    running.finish().await;
}

#[tokio::test]
async fn sigterm_under_load_answers_everything_that_was_accepted() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let more = json!({"shutdown": {"drain": "2s", "grace": "60s"}, "log": {"access": false}});
    let mut proxy = Proxy::start(and(plain(&[&first, &second]), more)).await;
    let load = Load::new(proxy.data);
    let scenario = async {
        load.progress(100).await;
        let mut running = long_stream(&proxy, 6).await;
        let http2 = long_http2(&proxy, 6).await;
        pause(300).await;
        proxy.signal("TERM");
        eventually("not ready", async || {
            proxy.admin("GET", "/readyz").await.status == 503
        })
        .await;
        // A balancer stops sending new connections now; kept ones go on until the end.
        load.no_new.store(true, Ordering::Relaxed);
        running.0.body(&mut running.1).await;
        assert_eq!(running.1.end, End::Clean, "the running stream");
        let answer = http2.answer().await;
        assert_eq!(
            (answer.status, answer.end),
            (200, End::Clean),
            "over HTTP/2"
        );
        let status = proxy.exit_within(SOON).await;
        load.stop.store(true, Ordering::Relaxed);
        assert_eq!(status.code(), Some(0), "{}", proxy.log());
    };
    let (tally, ()) = tokio::join!(load.run(10, 10), scenario);
    eprintln!("SIGTERM: {tally:?}");
    tally.assert_nothing_lost();
    assert_eq!(
        seen(&[&first, &second]),
        tally.answered + 2,
        "worked on in vain"
    );
}

/// A kept connection that is busy while the process prepares to leave is told so by `connection:
/// close`, instead of being closed under the next request: a POST must not be sent twice by itself
/// (RFC 9110 §9.2.2), so to many clients that is an error.
#[tokio::test]
async fn busy_kept_connections_are_told_before_the_drain_is_over() {
    let first = engine("E1").await;
    let more = json!({"shutdown": {"drain": "2s", "grace": "60s"}, "log": {"access": false}});
    let mut proxy = Proxy::start(and(plain(&[&first]), more)).await;
    let load = Load::new(proxy.data);
    let scenario = async {
        load.progress(50).await;
        load.no_new.store(true, Ordering::Relaxed);
        proxy.signal("TERM");
        proxy.exit_within(SOON).await;
        load.stop.store(true, Ordering::Relaxed);
    };
    let (tally, ()) = tokio::join!(load.run(0, 6), scenario);
    assert_eq!((tally.told, tally.stale), (6, 0), "{tally:?}");
}

/// The same while the sockets are handed over, which takes five seconds.
#[tokio::test]
async fn busy_kept_connections_are_told_before_an_upgrade_is_over() {
    let first = engine("E1").await;
    let settings = plain(&[&first]);
    let file = ServerFile::new();
    let at = [free_address(), free_address()];
    let mut old = Proxy::launch_at(at, &settings, &["--conf", &file.argument()]);
    assert!(old.serves().await, "{}", old.log());
    let load = Load::new(old.data);
    let scenario = async {
        load.progress(50).await;
        let new = hand_over(&old, &settings, &file).await;
        old.exit_within(SOON).await;
        load.progress(50).await;
        load.stop.store(true, Ordering::Relaxed);
        new
    };
    let (tally, new) = tokio::join!(load.run(0, 6), scenario);
    new.finish().await;
    assert_eq!(tally.stale, 0, "{tally:?}");
}
