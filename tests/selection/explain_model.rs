//! Property: an explanation predicts the real pick of every deterministic policy, and asking
//! changes nothing, over 10,000 random configurations and requests: `explain.md`.

use std::fmt::Write as _;

use bytes::Bytes;
use http::HeaderMap;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use sgl_edge::buckets::BucketPick;
use sgl_edge::server::explain::{Explained, Subject, explain};
use sgl_edge::server::pool::WorkPool;
use sgl_edge::server::select::select;

use crate::support::picks::now;
use crate::support::routing::Router;
use crate::support::seed;

const CONFIGURATIONS: usize = 1_000;
const REQUESTS: usize = 10;

/// Policies whose answer does not depend on a draw.
const POLICIES: [&str; 4] = [
    "{type: round_robin}",
    "{type: load_based}",
    "{type: sticky, fallback: load_based}",
    "{type: sticky}",
];

fn group(rng: &mut StdRng, engines: &[String]) -> String {
    let members: Vec<&str> = engines
        .iter()
        .filter(|_| rng.random_bool(0.7))
        .map(String::as_str)
        .collect();
    let members = if rng.random_bool(0.5) {
        "null".to_owned()
    } else {
        format!("[{}]", members.join(", "))
    };
    let policy = POLICIES.choose(rng).expect("policies");
    let cap = match rng.random_range(0..3) {
        0 => String::new(),
        _ => format!(
            ", admission: {{max_inflight_requests: {}}}",
            rng.random_range(1..4)
        ),
    };
    let policy = policy.replace('}', &format!("{cap}}}"));
    format!("{{worker_ids: {members}, policy: {policy}}}")
}

/// A fleet and its buckets.
fn configuration(rng: &mut StdRng) -> Router {
    let pair = rng.random_bool(0.4);
    let count = rng.random_range(1..6);
    let names = |letter: &str, count: usize| -> Vec<String> {
        (0..count).map(|at| format!("{letter}{at}")).collect()
    };
    let (first, second) = match pair {
        false => (names("E", count), Vec::new()),
        true => (names("P", count), names("D", rng.random_range(1..5))),
    };
    let role = if pair { "prefill" } else { "plain" };
    let engines: Vec<(&str, &str)> = first
        .iter()
        .map(|id| (id.as_str(), role))
        .chain(second.iter().map(|id| (id.as_str(), "decode")))
        .collect();
    let mut buckets = "    buckets:\n".to_owned();
    for at in 0..rng.random_range(1..4) {
        let groups = match pair {
            false => format!("plain: {}", group(rng, &first)),
            true => {
                let (prefill, decode) = (group(rng, &first), group(rng, &second));
                format!("pd: {{prefill: {prefill}, decode: {decode}}}")
            }
        };
        let max = [5, 10, 1000].choose(rng).expect("bounds");
        let rank = rng.random_range(0..3);
        writeln!(
            buckets,
            "      - {{id: b{at}, rank: {rank}, limits: {{max: {max}}}, groups: {{{groups}}}}}"
        )
        .expect("a string");
    }
    Router::of(&engines, &buckets)
}

fn asked(router: &Router, headers: &HeaderMap, body: &str) -> Explained {
    let subject = Subject {
        routing: &router.routing,
        loads: &router.loads,
        pool: &WorkPool::new(1),
        show_prompt: false,
    };
    now(explain(
        subject,
        headers,
        Bytes::copy_from_slice(body.as_bytes()),
    ))
}

/// What a real request gets: `bucket stage=engine…`, or the code of its refusal.
fn sent(router: &Router, headers: &HeaderMap, body: &str) -> (String, Option<BucketPick>) {
    let selection = router
        .prepare_with(body, headers)
        .and_then(|prepared| now(select(&prepared, &router.routing.workers, &router.metrics)));
    match selection {
        Ok(selection) => {
            let engines = match &selection.pick {
                BucketPick::Plain(pick) => format!("plain={}", pick.engine.id()),
                BucketPick::Pd { prefill, decode } => {
                    format!(
                        "prefill={} decode={}",
                        prefill.engine.id(),
                        decode.engine.id()
                    )
                }
            };
            (
                format!("{} {engines}", selection.bucket),
                Some(selection.pick),
            )
        }
        Err(refusal) => (format!("{} {}", refusal.status(), refusal.code()), None),
    }
}

fn predicted(explained: &Explained) -> String {
    let outcome = &explained.outcome;
    match (&outcome.bucket, &outcome.engines) {
        (Some(bucket), Some(engines)) => {
            let engines = engines.iter().map(|(stage, id)| format!("{stage}={id}"));
            format!("{bucket} {}", engines.collect::<Vec<_>>().join(" "))
        }
        _ => format!("{} {}", outcome.status, outcome.code.unwrap_or_default()),
    }
}

#[test]
fn an_explanation_predicts_the_real_pick() {
    let mut rng = seed::rng();
    let mut outcomes = std::collections::HashMap::<bool, u32>::new();
    for _ in 0..CONFIGURATIONS {
        let router = configuration(&mut rng);
        let mut held = Vec::new();
        for worker in router.routing.workers.members().all() {
            worker.set_healthy(rng.random_bool(0.9));
        }
        for _ in 0..REQUESTS {
            let (headers, body) = request(&mut rng);
            let first = asked(&router, &headers, &body);
            let second = asked(&router, &headers, &body);
            assert_eq!(first, second, "asking changed something: {body}");
            let (real, pick) = sent(&router, &headers, &body);
            assert_eq!(
                predicted(&first),
                real,
                "{body} {headers:?}\n{}",
                first.to_text()
            );
            *outcomes.entry(pick.is_some()).or_default() += 1;
            held.extend(pick.into_iter().flat_map(|pick| match pick {
                BucketPick::Plain(pick) => vec![pick.engine.acquire(1)],
                BucketPick::Pd { prefill, decode } => {
                    vec![prefill.engine.acquire(1), decode.engine.acquire(1)]
                }
            }));
            if rng.random_bool(0.3) && !held.is_empty() {
                drop(held.swap_remove(rng.random_range(0..held.len())));
            }
        }
    }
    assert!(outcomes.values().all(|count| *count > 500), "{outcomes:?}");
}

fn request(rng: &mut StdRng) -> (HeaderMap, String) {
    let text = "x".repeat(rng.random_range(0..60));
    let output = match rng.random_range(0..3) {
        0 => String::new(),
        _ => format!(r#","max_tokens":{}"#, rng.random_range(1..20)),
    };
    let body =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]{output}}}"#);
    let mut headers = HeaderMap::new();
    if rng.random_bool(0.7) {
        let key = format!("key{}", rng.random_range(0..4));
        headers.insert("x-sgl-routing-key", key.parse().expect("a value"));
    }
    (headers, body)
}
