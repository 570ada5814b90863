//! Ending: not ready at once, serving while it drains, finishing what it has, gone in time.

use std::time::{Duration, Instant};

use serde_json::json;
use sgl_edge::mock::{Engine, Faults};

use crate::support::body::{self, small, stream};
use crate::support::child::Proxy;
use crate::support::client::{Answer, Client, End};
use crate::support::fleet::{and, engine, faulty, plain};
use crate::support::{SOON, eventually, pause};

async fn start(engine: &Engine, drain: &str, grace: &str) -> Proxy {
    let more = json!({"shutdown": {"drain": drain, "grace": grace}});
    Proxy::start(and(plain(&[engine]), more)).await
}

fn seconds(count: u32) -> Faults {
    Faults {
        tokens: Some(count * 10),
        interval_ms: Some(100),
        ..Faults::default()
    }
}

/// A stream of which the first chunk has come.
async fn begun(proxy: &Proxy) -> (Client, Answer) {
    let mut client = proxy.client().await;
    let body = stream("one").to_string();
    client.send(&body::with_length(body.as_bytes(), "")).await;
    let mut head = client.head(SOON).await.expect("a stream");
    head.body = client.chunk().await.expect("a chunk");
    (client, head)
}

async fn rest(mut stream: (Client, Answer)) -> Answer {
    stream.0.body(&mut stream.1).await;
    stream.1
}

#[tokio::test]
async fn an_idle_process_leaves_at_once() {
    let engine = engine("E1").await;
    for signal in ["TERM", "INT"] {
        // SIGINT skips the drain; neither waits for the grace.
        let drain = if signal == "INT" { "300s" } else { "0s" };
        let mut proxy = start(&engine, drain, "300s").await;
        proxy.chat_bytes(&small()).await.assert_engine(200);
        // A connection that only might send something keeps nobody.
        let idle = proxy.client().await;
        proxy.signal(signal);
        let status = proxy.exit_within(Duration::from_secs(8)).await;
        assert_eq!(status.code(), Some(0), "SIG{signal}: {}", proxy.log());
        assert!(!proxy.log().contains("panicked"));
        drop(idle);
    }
}

#[tokio::test]
async fn draining_is_unready_and_serves() {
    let engine = faulty("E1", seconds(6)).await;
    let mut proxy = start(&engine, "3s", "60s").await;
    let mut kept = proxy.client().await;
    assert_eq!(kept.call("GET", "/readyz").await.status, 200);
    let running = begun(&proxy).await;
    let started = Instant::now();
    proxy.signal("TERM");
    eventually("not ready", async || {
        proxy.admin("GET", "/readyz").await.status == 503
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(2), "at once");
    assert_eq!(proxy.admin("GET", "/healthz").await.status, 200);
    assert_eq!(proxy.state().await["draining"], true);
    // New work is still served, on a new connection and on an old one.
    engine.faults().clear();
    proxy.chat_bytes(&small()).await.assert_engine(200);
    kept.chat(&small()).await.assert_engine(200);
    assert_eq!(kept.call("GET", "/readyz").await.status, 503);
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "all this within the drain"
    );
    // The drain is over before the stream is.
    eventually("no new connections", async || {
        tokio::net::TcpStream::connect(proxy.data).await.is_err()
    })
    .await;
    assert!(proxy.exited().is_none(), "the stream still runs");
    let answer = rest(running).await;
    assert_eq!(answer.end, End::Clean);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    let status = proxy.exit_within(Duration::from_secs(8)).await;
    assert_eq!(status.code(), Some(0), "{}", proxy.log());
}

#[tokio::test]
async fn what_outlives_the_grace_is_cut() {
    let engine = faulty("E1", seconds(60)).await;
    let mut proxy = start(&engine, "0s", "2s").await;
    let running = begun(&proxy).await;
    proxy.signal("TERM");
    let answer = rest(running).await;
    assert_eq!(answer.end, End::Cut, "a cut stream does not look whole");
    let status = proxy.exit_within(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", proxy.log());
    eventually("the engine is let go", async || engine.stats().aborted == 1).await;
}

#[tokio::test]
async fn limits_hold_while_it_ends() {
    let stalled = Faults {
        stall_before_headers: true,
        ..Faults::default()
    };
    let engine = faulty("E1", stalled).await;
    let more = json!({
        "shutdown": {"drain": "0s", "grace": "60s"}, "timeouts": {"first_byte": "2s"},
    });
    let mut proxy = Proxy::start(and(plain(&[&engine]), more)).await;
    let mut client = proxy.client().await;
    client.send(&body::with_length(&small(), "")).await;
    crate::support::fleet::seen(&engine, 1).await;
    proxy.signal("TERM");
    let answer = client.answer().await;
    answer.assert_refusal(504, "upstream_timeout");
    assert!(answer.says_close());
    proxy.exit_within(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_second_signal_cuts_the_drain_short() {
    let engine = engine("E1").await;
    for second in ["TERM", "INT"] {
        let mut proxy = start(&engine, "300s", "300s").await;
        proxy.signal("TERM");
        eventually("draining", async || {
            proxy.admin("GET", "/readyz").await.status == 503
        })
        .await;
        proxy.signal(second);
        let status = proxy.exit_within(Duration::from_secs(8)).await;
        assert_eq!(status.code(), Some(0), "{}", proxy.log());
    }
}

#[tokio::test]
async fn a_second_interrupt_ends_at_once() {
    let engine = faulty("E1", seconds(60)).await;
    let mut proxy = start(&engine, "300s", "300s").await;
    let running = begun(&proxy).await;
    proxy.signal("INT");
    eventually("no new connections", async || {
        tokio::net::TcpStream::connect(proxy.data).await.is_err()
    })
    .await;
    assert!(proxy.exited().is_none(), "the stream still runs");
    pause(300).await;
    proxy.signal("INT");
    let answer = rest(running).await;
    assert_eq!(answer.end, End::Cut);
    proxy.exit_within(Duration::from_secs(8)).await;
}
