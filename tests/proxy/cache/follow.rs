//! Turns of a conversation, and who gets them.

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig, Faults, Role};

use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::{and, engine_with, plain_buckets};

/// Tokens of a page.
pub(super) const PAGE: u32 = 16;

/// What every engine here is: a publisher with replay that reports what it had cached.
pub(super) fn publishing() -> EngineConfig {
    EngineConfig {
        page_size: PAGE,
        kv_port: Some(0),
        kv_replay_port: Some(0),
        cache_report: true,
        ..EngineConfig::default()
    }
}

/// Engines `E1`, `E2`, … and a proxy that picks by prefix.
pub(super) async fn fleet(count: usize, config: EngineConfig) -> (Vec<Engine>, Proxy) {
    let mut engines = Vec::new();
    for nth in 1..=count {
        engines.push(engine_with(&format!("E{nth}"), config.clone()).await);
    }
    let settings = over(&engines.iter().collect::<Vec<_>>());
    let proxy = Proxy::start(settings).await;
    for engine in &engines {
        subscribed(&proxy, engine).await;
    }
    (engines, proxy)
}

/// Settings that pick by prefix among these engines.
pub(super) fn over(engines: &[&Engine]) -> Value {
    let policy = json!({"type": "cache_aware", "min_matched_tokens": PAGE});
    let bucket = json!({"id": "all", "groups": {"plain": {"policy": policy}}});
    let settings = plain_buckets(engines, json!([bucket]));
    and(settings, json!({"response_headers": true}))
}

/// Waits until the engine's events are followed.
pub(super) async fn subscribed(proxy: &Proxy, engine: &Engine) {
    eventually("the engine's events are followed", async || {
        rank(&proxy.state().await, engine.name())["connected"] == true
    })
    .await;
}

/// The first rank of an engine's streams, in the admin state.
pub(super) fn rank(state: &Value, engine: &str) -> Value {
    let engines = state["models"][0]["engines"].as_array().expect("engines");
    let found = engines.iter().find(|found| found["id"] == engine);
    found.map_or(Value::Null, |engine| {
        engine["kv_events"]["ranks"][0].clone()
    })
}

/// Waits until the index says that this engine holds so many blocks.
pub(super) async fn holds(proxy: &Proxy, engine: &str, blocks: u64) {
    eventually(&format!("{engine} holds {blocks} blocks"), async || {
        rank(&proxy.state().await, engine)["blocks"] == blocks
    })
    .await;
}

/// A chat whose prompt has these ids, and one token of answer.
pub(super) fn prompt(ids: impl IntoIterator<Item = u32>) -> Value {
    let ids: Vec<u32> = ids.into_iter().collect();
    json!({
        "model": "m", "max_tokens": 1, "input_ids": ids,
        "messages": [{"role": "user", "content": "x"}],
    })
}

/// Who served a prompt, why, and what it says was cached.
pub(super) async fn served(proxy: &Proxy, body: &Value) -> (String, String, u64) {
    let answer = proxy.chat(body).await;
    answer.assert_engine(200);
    let header = |name| answer.header(name).expect("a header").to_owned();
    let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    let cached = cached.as_u64().expect("cached tokens");
    (header("x-edge-engine"), header("x-edge-reason"), cached)
}

#[tokio::test]
async fn the_next_turn_goes_to_the_engine_that_holds_the_last_one() {
    let (engines, proxy) = fleet(4, publishing()).await;
    let (owner, reason, cached) = served(&proxy, &prompt(0..100)).await;
    assert_eq!((reason.as_str(), cached), ("no_cache_candidate", 0));
    holds(&proxy, &owner, 6).await;
    for length in [101, 150, 260] {
        let (engine, reason, cached) = served(&proxy, &prompt(0..length)).await;
        assert_eq!(
            (engine.as_str(), reason.as_str()),
            (owner.as_str(), "cache_candidate")
        );
        assert!(cached >= 96, "{cached} of {length}");
        holds(&proxy, &owner, u64::from(length / PAGE)).await;
    }
    let gauges = proxy.gauges().await;
    let decisions =
        |decision| gauges.sum_of("cache_aware_decisions_total", &[("decision", decision)]);
    assert_eq!(
        (decisions("cache_hit"), decisions("cache_miss")),
        (3.0, 1.0)
    );
    assert_eq!(gauges.sum("kv_index_blocks"), 16.0);
    assert_eq!(gauges.sum("kv_index_owners"), 1.0);
    assert_eq!(engines.iter().map(Engine::kv_pages).sum::<usize>(), 16);
    predictions_held(&proxy, &owner, 4.0).await;
    proxy.finish().await;
}

/// Every answer of `engine` had exactly as much cached as the index had told.
pub(super) async fn predictions_held(proxy: &Proxy, engine: &str, answers: f64) {
    // An answer is reported after its client has it.
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    let sum = |name: &str, more: &[(&str, &str)]| {
        let labels = [&[("worker_url", engine)], more].concat();
        gauges.sum_of(name, &labels)
    };
    assert_eq!(sum("cached_tokens_error_count", &[]), answers);
    assert_eq!(sum("cached_tokens_error_sum", &[]), 0.0, "{}", gauges.text);
    let total = |kind| sum("cached_tokens_total", &[("kind", kind)]);
    assert_eq!(total("predicted"), total("reported"));
}

#[tokio::test]
async fn a_salt_is_a_prefix_of_its_own_and_text_ids_ask_no_index() {
    let (_engines, proxy) = fleet(2, publishing()).await;
    let salted = |salt: &str| {
        let mut body = prompt(0..64);
        body["cache_salt"] = json!(salt);
        body
    };
    let (owner, ..) = served(&proxy, &salted("one")).await;
    holds(&proxy, &owner, 4).await;
    let (_, reason, _) = served(&proxy, &salted("two")).await;
    assert_eq!(reason, "no_cache_candidate");
    let (engine, reason, cached) = served(&proxy, &salted("one")).await;
    assert_eq!(
        (engine, reason.as_str(), cached),
        (owner, "cache_candidate", 48)
    );
    let text = json!({"model": "m", "messages": [{"role": "user", "content": "no ids here"}]});
    let (_, reason, _) = served(&proxy, &text).await;
    assert_eq!(reason, "no_cache_candidate");
    let gauges = proxy.gauges().await;
    assert_eq!(
        gauges.sum_of("cache_lookups_total", &[("result", "no_signal")]),
        1.0
    );
    proxy.finish().await;
}

#[tokio::test]
async fn prefill_engines_are_picked_by_prefix_and_decode_engines_by_load() {
    let config = |role| EngineConfig {
        role,
        bootstrap_port: 0,
        ..publishing()
    };
    let mut engines = Vec::new();
    for (name, role) in [
        ("P1", Role::Prefill),
        ("P2", Role::Prefill),
        ("D1", Role::Decode),
        ("D2", Role::Decode),
    ] {
        let mut config = config(role);
        if role == Role::Decode {
            config.kv_port = None;
            config.kv_replay_port = None;
        }
        engines.push((engine_with(name, config).await, role));
    }
    let entries: Vec<Value> = engines
        .iter()
        .map(|(engine, role)| crate::support::fleet::entry(engine, *role))
        .collect();
    let prefill = json!({"type": "cache_aware", "min_matched_tokens": PAGE});
    let groups = json!({"pd": {"prefill": {"policy": prefill}, "decode": {}}});
    let proxy = Proxy::start(json!({
        "response_headers": true,
        "models": [{
            "id": "m",
            "engines": {"static": entries},
            "buckets": [{"id": "pd", "groups": groups}],
        }],
    }))
    .await;
    for (engine, role) in &engines {
        if *role == Role::Prefill {
            subscribed(&proxy, engine).await;
        }
    }
    let pair = async || {
        let answer = proxy.chat(&prompt(0..100)).await;
        answer.assert_engine(200);
        let header = |name| answer.header(name).expect("a header").to_owned();
        (
            header("x-edge-prefill-engine"),
            header("x-edge-prefill-reason"),
        )
    };
    let (owner, reason) = pair().await;
    assert_eq!(reason, "no_cache_candidate");
    holds(&proxy, &owner, 6).await;
    for _ in 0..5 {
        assert_eq!(pair().await, (owner.clone(), "cache_candidate".to_owned()));
    }
    eventually("every prefill leg has reported", async || {
        let gauges = proxy.gauges().await;
        gauges.sum_of("cached_tokens_error_count", &[("worker_url", &owner)]) == 6.0
    })
    .await;
    predictions_held(&proxy, &owner, 6.0).await;
    proxy.finish().await;
}

#[tokio::test]
async fn an_engine_with_other_blocks_is_refused_by_name_and_still_serves() {
    let first = engine_with("E1", publishing()).await;
    let proxy = Proxy::start(over(&[&first])).await;
    subscribed(&proxy, &first).await;
    let mut proxy = proxy;
    let other = EngineConfig {
        page_size: 64,
        ..publishing()
    };
    let second = engine_with("E2", other).await;
    proxy.write_config(&over(&[&first, &second]));
    proxy.signal("HUP");
    eventually("E2 is refused", async || {
        let state = proxy.state().await;
        let engines = state["models"][0]["engines"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        engines
            .iter()
            .any(|engine| engine["id"] == "E2" && engine["kv_events"]["subscribed"] == false)
    })
    .await;
    assert!(
        proxy.log().contains("other blocks than the index"),
        "{}",
        proxy.log()
    );
    for _ in 0..20 {
        served(&proxy, &prompt(0..8)).await;
    }
    assert!(second.stats().requests > 0, "it serves by load");
    // All of the old format leave: the new one is taken without a restart.
    proxy.write_config(&over(&[&second]));
    proxy.signal("HUP");
    subscribed(&proxy, &second).await;
    served(&proxy, &prompt(0..200)).await;
    holds(&proxy, "E2", 3).await;
    let (_, reason, cached) = served(&proxy, &prompt(0..200)).await;
    assert_eq!((reason.as_str(), cached), ("cache_candidate", 192));
    proxy.finish().await;
}

#[tokio::test]
async fn evicted_blocks_are_no_longer_counted() {
    let small = EngineConfig {
        max_total_num_tokens: 160,
        ..publishing()
    };
    let (_engines, proxy) = fleet(1, small).await;
    served(&proxy, &prompt(0..160)).await;
    holds(&proxy, "E1", 10).await;
    served(&proxy, &prompt(1000..1080)).await;
    // Ten pages fit: the five newest of the first prompt have gone.
    eventually("five blocks were removed", async || {
        proxy
            .gauges()
            .await
            .sum_of("kv_events_total", &[("kind", "removed")])
            == 5.0
    })
    .await;
    let (_, reason, cached) = served(&proxy, &prompt(0..160)).await;
    assert_eq!((reason.as_str(), cached), ("cache_candidate", 80));
    proxy.finish().await;
}

#[tokio::test]
async fn pairs_of_tokens_are_hashed_where_the_engine_does() {
    let eagle = EngineConfig {
        bigram: true,
        ..publishing()
    };
    let (_engines, proxy) = fleet(2, eagle).await;
    let (owner, ..) = served(&proxy, &prompt(0..65)).await;
    holds(&proxy, &owner, 4).await;
    let (engine, reason, _) = served(&proxy, &prompt(0..100)).await;
    assert_eq!((engine, reason.as_str()), (owner, "cache_candidate"));
    let state = proxy.state().await;
    assert_eq!(state["models"][0]["prefix_index"]["bigram"], true);
    proxy.finish().await;
}

/// Arrays and a replay without topic, as releases up to 0.5.19 write them.
#[tokio::test]
async fn engines_of_older_releases_are_followed() {
    let old = EngineConfig {
        faults: Faults {
            kv_arrays: true,
            kv_replay: sgl_edge::mock::Replay::WithoutTopic,
            ..Faults::default()
        },
        kv_topic: "kv-events".to_owned(),
        ..publishing()
    };
    let (_engines, proxy) = fleet(2, old).await;
    let (owner, ..) = served(&proxy, &prompt(0..100)).await;
    holds(&proxy, &owner, 6).await;
    let (engine, ..) = served(&proxy, &prompt(0..100)).await;
    assert_eq!(engine, owner);
    proxy.finish().await;
}
