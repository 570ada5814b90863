//! Three engines whose caches are earned and whose load reports are written here.

mod reports;

use serde_json::{Value, json};
use sgl_edge::mock::Engine;

use super::super::follow::publishing;
use crate::support::body::with_length;
use crate::support::child::Proxy;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::fleet::{engine_with, plain_buckets, quiet};
use crate::support::gauges::{Gauges, admin};
use reports::{Numbers, Reports};

/// Tokens of a block.
const BLOCK: u32 = 64;
/// Ids of one prompt; no two prompts share any.
const PROMPT: u32 = 10_000;
/// Where a request goes that the examples' bucket refuses.
const NEXT: &str = "next";

const DECISIONS: [&str; 4] = [
    "cache_hit",
    "cache_miss",
    "cache_worker_queued",
    "all_queued",
];

pub(super) struct Stage {
    engines: Vec<Engine>,
    reports: Vec<Reports>,
    proxy: Proxy,
    prompts: u32,
}

/// One engine of an example: its name there, what it holds, what it reports.
#[derive(Debug)]
struct Part<'t> {
    name: &'t str,
    depth: u32,
    inflight: u64,
    numbers: Option<Numbers>,
}

/// Reads `NAME dN wN tN rN mN iN`, or `stale` for no report: blocks held, requests waiting, uncached
/// tokens waiting, requests running, estimated milliseconds, requests in flight from this router.
fn part(text: &str) -> Part<'_> {
    let mut words = text.split_whitespace();
    let mut part = Part {
        name: words.next().expect("a name"),
        depth: 0,
        inflight: 0,
        numbers: None,
    };
    let mut numbers = Some(Numbers::default());
    for word in words {
        let Some(reported) = numbers.as_mut().filter(|_| word != "stale") else {
            numbers = None;
            continue;
        };
        let (key, number) = word.split_at(1);
        let number = number.parse().expect("a number");
        match key {
            "d" => part.depth = u32::try_from(number).expect("a depth"),
            "i" => part.inflight = number,
            "w" => reported.waiting = number,
            "t" => reported.tokens = number,
            "r" => reported.running = number,
            "m" => reported.estimate = Some(number),
            _ => panic!("the word {word}"),
        }
    }
    part.numbers = numbers;
    part
}

impl Stage {
    pub(super) async fn new() -> Self {
        let (mut engines, mut reports) = (Vec::new(), Vec::new());
        for name in ["E1", "E2", "E3"] {
            let config = sgl_edge::mock::EngineConfig {
                page_size: BLOCK,
                ..publishing()
            };
            engines.push(engine_with(name, config).await);
            reports.push(Reports::start().await);
        }
        let settings = settings(&engines, &reports, 3, &json!({}), &json!({}));
        let proxy = Proxy::start(settings).await;
        for engine in &engines {
            super::super::follow::subscribed(&proxy, engine).await;
        }
        Self {
            engines,
            reports,
            proxy,
            prompts: 0,
        }
    }

    /// Sets an example up and sends its request of `input` tokens: `ENGINE decision`, or for a miss
    /// `decision of POOL`, or `refused: ENGINE limit, …`.
    pub(super) async fn play(
        &mut self,
        input: u32,
        text: &str,
        params: Value,
        admission: Value,
    ) -> String {
        let parts: Vec<Part<'_>> = text.split(';').map(part).collect();
        let settings = settings(
            &self.engines,
            &self.reports,
            parts.len(),
            &params,
            &admission,
        );
        self.proxy.write_config(&settings);
        let reloaded = self.proxy.admin("POST", "/admin/reload").await;
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        let held = self.held(&parts).await;
        let prompt = self.next_prompt();
        for (place, part) in parts.iter().enumerate() {
            self.seed(place, prompt, part.depth).await;
        }
        self.settled(&parts).await;
        let outcome = self.send(&parts, &chat(prompt, input)).await;
        drop(held);
        for engine in &self.engines {
            quiet(engine).await;
        }
        self.proxy.idle().await;
        outcome
    }

    pub(super) async fn finish(self) {
        self.proxy.finish().await;
    }

    fn next_prompt(&mut self) -> u32 {
        self.prompts += 1;
        self.prompts * PROMPT
    }

    /// Straight to the engine: afterwards it holds so many blocks of the prompt.
    async fn seed(&self, place: usize, prompt: u32, blocks: u32) {
        if blocks == 0 {
            return;
        }
        let body = chat(prompt, blocks * BLOCK).to_string();
        let mut client = Client::connect(self.engines[place].addr()).await;
        let headers = "content-type: application/json\r\n";
        let answer = client.chat_with(body.as_bytes(), headers).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Requests of this router that engines keep for as long as the connections live. Each engine
    /// gets its own by a prompt that only it holds.
    async fn held(&mut self, parts: &[Part<'_>]) -> Vec<Client> {
        let mut clients = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            if part.inflight == 0 {
                continue;
            }
            let prompt = self.next_prompt();
            self.seed(place, prompt, 32).await;
            self.settled(parts).await;
            for nth in 1..=part.inflight {
                let body = chat(prompt, 32 * BLOCK).to_string();
                let mut client = self.proxy.client().await;
                let stall = "x-sgl-mock-stall-before-headers: true\r\n";
                client.send(&with_length(body.as_bytes(), stall)).await;
                clients.push(client);
                eventually("the engine has taken it", async || {
                    engine_state(&self.proxy, place).await["inflight"] == nth
                })
                .await;
            }
        }
        clients
    }

    /// Waits until the router knows what the engines hold and report.
    async fn settled(&self, parts: &[Part<'_>]) {
        for (place, engine) in self.engines.iter().enumerate() {
            let wanted = parts.get(place).and_then(|part| part.numbers);
            self.reports[place].set(wanted);
            eventually("cache and load are known", async || {
                let state = engine_state(&self.proxy, place).await;
                state["kv_events"]["ranks"][0]["blocks"] == engine.kv_pages()
                    && match wanted {
                        Some(numbers) => numbers.are_those_of(&state["report"]),
                        None => state["report"]["fresh"] != true,
                    }
            })
            .await;
        }
    }

    async fn send(&self, parts: &[Part<'_>], body: &Value) -> String {
        let name = |id: &Value| {
            let place = self.engines.iter().position(|engine| *id == engine.name());
            parts[place.expect("one of the engines")].name.to_owned()
        };
        let explained = explain(&self.proxy, body).await;
        let attempt = &explained["attempts"][0];
        assert_eq!(attempt["bucket"], "examples");
        let group = &attempt["groups"][0];
        let before = self.proxy.gauges().await;
        let answer = self.proxy.chat(body).await;
        answer.assert_engine(200);
        if answer.header("x-edge-bucket") == Some(NEXT) {
            let refused = group["admission"].as_array().expect("a list").iter();
            let refused = refused.filter(|asked| asked["allowed"] == false);
            let refused = refused.map(|asked| {
                let limit = asked["limit"].as_str().expect("a limit");
                format!("{} {limit}", name(&asked["engine"]))
            });
            return format!("refused: {}", refused.collect::<Vec<_>>().join(", "));
        }
        let engine = name(&json!(answer.header("x-edge-engine")));
        let decision = decision(&before, &self.proxy.gauges().await);
        let reason = answer.header("x-edge-reason").expect("a reason");
        let expected = match decision {
            "cache_hit" => "cache_candidate",
            "all_queued" => "saturation_pin",
            _ => "no_cache_candidate",
        };
        assert_eq!((reason, &group["reason"]), (expected, &json!(expected)));
        if expected != "no_cache_candidate" {
            return format!("{engine} {decision}");
        }
        let pool = group["compared"]["fallback"]["pool"].as_array();
        let pool: Vec<String> = pool.expect("a pool").iter().map(name).collect();
        assert!(pool.contains(&engine), "{engine} of {pool:?}");
        format!("{decision} of {}", pool.join(" "))
    }
}

/// The first engines in the bucket of the examples, all of them in the next one.
fn settings(
    engines: &[Engine],
    reports: &[Reports],
    count: usize,
    params: &Value,
    admission: &Value,
) -> Value {
    let ids: Vec<&str> = engines.iter().map(Engine::name).take(count).collect();
    let mut policy = json!({"type": "cache_aware", "admission": admission});
    crate::support::child::merge(&mut policy, params);
    let buckets = json!([
        {"id": "examples", "rank": 1, "groups": {"plain": {"worker_ids": ids, "policy": policy}}},
        {"id": NEXT, "rank": 2, "groups": {"plain": {"policy": {"type": "round_robin"}}}},
    ]);
    let refs: Vec<&Engine> = engines.iter().collect();
    let mut settings = plain_buckets(&refs, buckets);
    settings["response_headers"] = json!(true);
    for (engine, reports) in engines.iter().zip(reports) {
        let at = |port: Option<u16>| format!("tcp://127.0.0.1:{}", port.expect("a port"));
        settings["models"][0]["kv_events"][engine.name()] = json!({
            "endpoint": at(engine.kv_port()),
            "replay_endpoint": at(engine.kv_replay_port()),
            "block_size": BLOCK,
            "load_endpoint": at(Some(reports.port())),
        });
    }
    settings
}

fn chat(first: u32, tokens: u32) -> Value {
    super::super::follow::prompt(first..first + tokens)
}

async fn engine_state(proxy: &Proxy, place: usize) -> Value {
    proxy.state().await["models"][0]["engines"][place].clone()
}

async fn explain(proxy: &Proxy, body: &Value) -> Value {
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "POST /admin/explain HTTP/1.1\r\nhost: edge\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    admin(proxy.admin, &request).await.json()
}

/// The one decision that was counted in between.
fn decision(before: &Gauges, after: &Gauges) -> &'static str {
    let count = |gauges: &Gauges, decision: &str| {
        gauges.sum_of("cache_aware_decisions_total", &[("decision", decision)])
    };
    let counted = |decision: &&str| count(after, decision) - count(before, decision) == 1.0;
    let found: Vec<&str> = DECISIONS.into_iter().filter(counted).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}
