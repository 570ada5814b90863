//! What prompts do to the event loops: the longest time between two awaits while one is prepared, and
//! the first byte of small requests while another connection sends prompts of 1 MiB.
//!
//! The first part polls `prepare` by hand. The second starts the program, with as many threads as its
//! default, in front of an engine that only reads and answers, and repeats the small requests beside nothing, beside large bodies
//! of a model without a tokenizer (what the transport costs), and beside large prompts never seen before.
//! Engine and clients take their share of the same cores.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod inline;
#[path = "../../tests/proxy/support/mod.rs"]
#[expect(dead_code, reason = "shared with tests/proxy, which uses the rest")]
mod support;

use support::child::Proxy;
use support::client::Client;
use support::raw_engine;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
/// Small requests beside each kind of large ones.
const SMALL: usize = 4_000;
/// Different large prompts; each is sent again when all were, longer than the memory of pieces is large.
const LARGE: usize = 160;

/// Values in order, as `median / 99 % / largest` in microseconds.
fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    format!("{:8.0} {:8.0} {:8.0}", at(0.5), at(0.99), at(1.0))
}

/// Words in an order of their own for every `number`.
fn text(bytes: usize, number: usize) -> String {
    const WORDS: [&str; 16] = [
        "All",
        "human",
        "beings",
        "are",
        "born",
        "free",
        "and",
        "équal",
        "in",
        "dignity",
        "人人生而",
        "rights.",
        "12345",
        "fn main() {}",
        "\n\n",
        "they",
    ];
    let mut state = number as u64 + 1;
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        text.push_str(WORDS[(state >> 60) as usize]);
        text.push(if state >> 52 & 15 == 0 { 'x' } else { ' ' });
    }
    text
}

fn chat(model: &str, content: &str) -> Vec<u8> {
    json!({"model": model, "messages": [{"role": "user", "content": content}]})
        .to_string()
        .into_bytes()
}

/// Limits that bytes alone cannot decide, so that every prompt is counted.
fn buckets() -> Value {
    let bucket = |max: u64| json!({"id": max.to_string(), "limits": {"min": 0, "max": max}, "groups": {"plain": {}}});
    let counts = (1..=20).map(|power| 1_u64 << power);
    Value::Array(counts.chain([10_000_000]).map(bucket).collect())
}

/// Times from the last byte of a small request to the first of its answer.
async fn small_requests(proxy: &Proxy) -> Vec<Duration> {
    let request = support::body::with_length(&chat("counted", "How do you do?"), "");
    let mut client = proxy.client().await;
    let mut times = Vec::with_capacity(SMALL);
    for _ in 0..SMALL {
        let sent = Instant::now();
        client.send(&request).await;
        let first = client.socket.readable().await;
        times.push(sent.elapsed());
        first.expect("an answer");
        assert_eq!(client.answer().await.status, 200);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times
}

/// Sends the bodies one after the other, again and again, and counts them.
async fn large_requests(proxy: SocketAddr, bodies: Vec<Vec<u8>>, over: Arc<AtomicBool>) -> usize {
    let mut client = Client::connect(proxy).await;
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        let answer = client.chat(&bodies[sent % bodies.len()]).await;
        assert_eq!(answer.status, 200);
        sent += 1;
    }
    sent
}

/// A thread of its own for each party, so that only cores are shared.
fn on_a_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| runtime().block_on(work))
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

async fn beside(proxy: &Proxy, what: &str, model: Option<&str>) {
    let over = Arc::new(AtomicBool::new(false));
    let large = model.map(|model| {
        let bodies = (0..LARGE).map(|number| chat(model, &text(1 << 20, number)));
        on_a_thread(large_requests(
            proxy.data,
            bodies.collect(),
            Arc::clone(&over),
        ))
    });
    let times = small_requests(proxy).await;
    over.store(true, Ordering::Relaxed);
    let sent = large.map_or(0, |large| large.join().expect("answered"));
    println!("  {what:<38} {}   {sent} large ones", summary(times));
}

async fn delay() {
    let (tell, address) = std::sync::mpsc::channel();
    drop(on_a_thread(async move {
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        let engine =
            raw_engine::start(vec![raw_engine::say(answer), raw_engine::Step::Again]).await;
        tell.send(engine).expect("awaited");
        std::future::pending::<()>().await;
    }));
    let engine = address.recv().expect("started");
    let model = |id: &str, tokenizer: Option<&str>| {
        let mut model = engine.settings()["models"][0].clone();
        model["id"] = id.into();
        model["engines"]["static"][0]["id"] = id.into();
        model["buckets"] = buckets();
        model["tokenizer"] = tokenizer.into();
        model
    };
    let models = [model("counted", Some(TOKENIZER)), model("uncounted", None)];
    let proxy = Proxy::start(json!({"models": models, "threads": null})).await;
    // Until the proof of its tokenizer is over.
    let proved = [("backend", "fastokens")];
    while proxy.gauges().await.sum_of("tokenizer_backend", &proved) == 0.0 {
        support::pause(100).await;
    }
    println!("first byte of a small request, µs           median     99 %  largest");
    for round in 0..2 {
        beside(&proxy, &format!("alone ({round})"), None).await;
        beside(
            &proxy,
            "beside 1 MiB that is not counted",
            Some("uncounted"),
        )
        .await;
        beside(&proxy, "beside 1 MiB that is counted", Some("counted")).await;
    }
    let gauges = proxy.gauges().await;
    println!(
        "  fallbacks: {:.0}",
        gauges.sum("tokenize_fallbacks_total").abs()
    );
    proxy.finish().await;
}

fn main() {
    inline::measure();
    runtime().block_on(delay());
}
