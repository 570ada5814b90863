//! The longest work between two awaits while a prompt is prepared: `prepare`, polled by hand. Counts the
//! processor's time, so that a machine with other work gives the same figures.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use nix::time::ClockId;
use serde_json::json;
use sgl_edge::config;
use sgl_edge::policies::PolicyServices;
use sgl_edge::server::metrics::Metrics;
use sgl_edge::server::pool::WorkPool;
use sgl_edge::server::prepare::{Counting, prepare};
use sgl_edge::server::routing::Routing;
use sgl_edge::state::EngineLoadTable;

use crate::{TOKENIZER, buckets, chat, summary, text};

/// Rounds of each body.
const ROUNDS: usize = 2_000;

/// The worst bodies of the sizes that are worked on between two awaits.
fn inline_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let (room, wide) = ((16 << 10) - 80, (64 << 10) - 200);
    let listed = |item: &str, times: usize| {
        let items = vec![item; times].join(",");
        format!(r#"{{"model":"m","messages":[{items}]}}"#).into_bytes()
    };
    let ids = vec!["7"; wide / 2].join(",");
    let keys: Vec<String> = (0..wide / 12).map(|n| format!(r#""k{n:05}":1"#)).collect();
    vec![
        (
            "16 KiB of text",
            chat("m", &text(room - 200, 3)[..room - 200]),
        ),
        ("16 KiB of one letter", chat("m", &"a".repeat(room))),
        (
            "16 KiB of marks",
            chat("m", &"a\u{301}\u{323}".repeat(room / 5)),
        ),
        ("16 KiB of digits", chat("m", &"7".repeat(room))),
        ("16 KiB of blanks", chat("m", &" ".repeat(room))),
        (
            "16 KiB of special tokens",
            chat("m", &"<|im_start|>".repeat(room / 12)),
        ),
        (
            "16 KiB of messages",
            listed(r#"{"role":"user","content":""}"#, room / 29),
        ),
        (
            "16 KiB of tool calls",
            listed(
                r#"{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
                room / 98,
            ),
        ),
        (
            "16 KiB of tool answers",
            listed(r#"{"role":"tool","content":"<tool_response>"}"#, room / 44),
        ),
        ("64 KiB of text", chat("m", &"word ".repeat(wide / 5))),
        ("64 KiB of escapes", chat("m", &"\n\"\\".repeat(wide / 6))),
        (
            "64 KiB of keys",
            format!(r#"{{"model":"m","messages":[],{}}}"#, keys.join(",")).into_bytes(),
        ),
        (
            "64 KiB of ids",
            format!(r#"{{"model":"m","messages":[],"input_ids":[{ids}]}}"#).into_bytes(),
        ),
        (
            "64 KiB, model renamed",
            chat("alias", &"word ".repeat(wide / 5)),
        ),
    ]
}

fn routing() -> Routing {
    let yaml = json!({"models": [{
        "id": "m", "aliases": ["alias"], "tokenizer": TOKENIZER, "forward_input_ids": true,
        "engines": {"static": [{"id": "e", "url": "http://127.0.0.1:1", "role": "plain"}]},
        "buckets": buckets(),
    }]});
    let config = config::parse(&config::to_yaml(&yaml), "bench.yaml");
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let services = PolicyServices::new(Arc::new(EngineLoadTable::default()));
    let routing = Routing::build(Arc::new(config), &services, None).expect("it can be built");
    let (model, _) = routing.model("m").expect("configured");
    model.tokenizer.as_ref().expect("configured").settle();
    routing
}

/// Time that the processor has spent on this thread.
fn worked() -> Duration {
    let now = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    now.expect("every Linux has this clock").into()
}

/// The longest poll of one preparation.
fn longest_poll(
    routing: &Routing,
    pool: &WorkPool,
    metrics: &Arc<Metrics>,
    body: Bytes,
) -> Duration {
    let headers = HeaderMap::new();
    let mut work = pin!(prepare(
        routing,
        pool,
        metrics,
        &headers,
        body,
        Counting::AsNeeded
    ));
    let mut context = Context::from_waker(Waker::noop());
    let mut longest = Duration::ZERO;
    loop {
        let started = worked();
        let polled = work.as_mut().poll(&mut context);
        longest = longest.max(worked() - started);
        match polled {
            Poll::Ready(_) => return longest,
            Poll::Pending => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Prints a line for each body.
pub(crate) fn measure() {
    let (routing, pool, metrics) = (routing(), WorkPool::new(2), Arc::new(Metrics::default()));
    println!("longest work between two awaits, µs         median     99 %  largest");
    for (what, body) in inline_bodies() {
        let body = Bytes::from(body);
        let times = (0..ROUNDS).map(|_| longest_poll(&routing, &pool, &metrics, body.clone()));
        println!("  {what:<38} {}", summary(times.collect()));
    }
}
