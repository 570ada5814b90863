//! The client leaves while its prompt is being tokenized: no engine ever hears of it.

use serde_json::json;
use tokio::time::Instant;

use super::visit::{AT_ONCE, HOWS, How, Visit};
use crate::matrix::cell::{Cell, Leg, Wire};
use crate::matrix::run::settings;
use crate::support::body::{chat, with};
use crate::support::child::Proxy;
use crate::support::{eventually, pause};

/// Takes a second to tokenize.
const PROMPT: usize = if cfg!(debug_assertions) {
    1 << 20
} else {
    8 << 20
};

/// The shipped tokenizer with a normalizer that the fast library does not have.
fn slow_tokenizer() -> String {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
    let shipped = std::path::Path::new(shipped);
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow-tokenizer");
    std::fs::create_dir_all(&folder).expect("a writable target directory");
    let text = std::fs::read_to_string(shipped.join("tokenizer.json")).expect("readable");
    let changed = text.replacen("\"NFC\"", "\"NFKC\"", 1);
    assert_ne!(text, changed, "the shipped tokenizer normalizes");
    std::fs::write(folder.join("tokenizer.json"), changed).expect("written");
    let config = "tokenizer_config.json";
    std::fs::copy(shipped.join(config), folder.join(config)).expect("copied");
    folder.to_str().expect("text").to_owned()
}

async fn leave(proxy: &Proxy, cell: &Cell, how: How, text: &str) {
    let body = with(
        chat(text),
        json!({"model": cell.name, "stream": cell.stream}),
    );
    let body = body.to_string().into_bytes();
    let visit = Visit::begin(proxy, how, &body).await;
    eventually("it has been taken in", async || {
        let gauges = proxy.gauges().await;
        gauges.sum("buffered_body_bytes") == body.len() as f64
    })
    .await;
    // The rest of the upload, then the work.
    pause(200).await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("inflight_requests"), 1.0);
    let left = visit.leave().await;
    loop {
        let asked = Instant::now();
        let gauges = proxy.gauges().await;
        if gauges.sum("inflight_requests") + gauges.sum("buffered_body_bytes") == 0.0 {
            break;
        }
        assert!(asked < left + AT_ONCE, "{} {how:?}", cell.name);
        pause(50).await;
    }
}

#[tokio::test]
async fn nothing_is_dispatched() {
    let text = "Several words, some of them odd: zyxwvut 12345 Äpfel. ".repeat(PROMPT / 55);
    let mut cells = Vec::new();
    for leg in [Leg::Plain, Leg::Decode] {
        for stream in [false, true] {
            cells.push(Cell::new(leg, &format!("{leg:?}"), stream, Wire::Http1).await);
        }
    }
    let mut models: Vec<_> = cells.iter().map(Cell::model).collect();
    let tokenizer = slow_tokenizer();
    for model in &mut models {
        model["tokenizer"] = tokenizer.as_str().into();
        // Somebody reads the ids, so nothing is skipped.
        model["forward_input_ids"] = true.into();
    }
    let proxy = Proxy::start(settings(&models)).await;
    for cell in &cells {
        for how in HOWS {
            leave(&proxy, cell, how, &text).await;
        }
    }
    // What was begun ends in the background, without consequences.
    pause(3_000).await;
    let gauges = proxy.gauges().await;
    assert_eq!(gauges.sum("selection_seconds_count"), 0.0, "dispatched");
    assert_eq!(gauges.sum("worker_requests_total"), 0.0);
    for engine in cells.iter().flat_map(Cell::engines) {
        let stats = engine.stats();
        assert_eq!((stats.requests, stats.aborts_received.len()), (0, 0));
    }
    // The proxy still tokenizes.
    let answer = proxy.chat_bytes(&cells[0].request()).await;
    answer.assert_engine(200);
    proxy.finish().await;
}
