//! Pairs: both legs get one body, meet in one room, and end together.

mod failures;
mod leaving;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig, Role};

use crate::support::body::{chat, chunked, sized, stream, with};
use crate::support::child::Proxy;
use crate::support::fleet::{and, engine_with, entry, newest};
use crate::support::h2c::H2Client;
use crate::support::{LARGE, within};

/// A prefill engine that gives up a meeting after `pd_timeout`.
async fn prefill(name: &str, pd_timeout: Duration) -> Engine {
    let config = EngineConfig {
        role: Role::Prefill,
        bootstrap_port: 0,
        pd_timeout,
        ..EngineConfig::default()
    };
    engine_with(name, config).await
}

async fn decode(name: &str) -> Engine {
    let config = EngineConfig {
        role: Role::Decode,
        reply_tokens: 1_000,
        ..EngineConfig::default()
    };
    engine_with(name, config).await
}

/// Settings with the one model `m` over pairs.
fn settings(prefill: &[&Engine], decode: &[&Engine]) -> Value {
    let prefill = prefill.iter().map(|engine| entry(engine, Role::Prefill));
    let decode = decode.iter().map(|engine| entry(engine, Role::Decode));
    let policy = json!({"type": "round_robin"});
    json!({"models": [{
        "id": "m",
        "engines": {"static": prefill.chain(decode).collect::<Vec<_>>()},
        "buckets": [{"id": "pd", "groups": {"pd": {
            "prefill": {"policy": policy}, "decode": {"policy": policy},
        }}}],
    }]})
}

/// One of each and the proxy over them.
struct Pair {
    prefill: Engine,
    decode: Engine,
    proxy: Proxy,
}

async fn pair_with(more: Value) -> Pair {
    let prefill = prefill("P1", Duration::from_secs(300)).await;
    let decode = decode("D1").await;
    let proxy = Proxy::start(and(settings(&[&prefill], &[&decode]), more)).await;
    Pair {
        prefill,
        decode,
        proxy,
    }
}

async fn pair() -> Pair {
    pair_with(json!({})).await
}

/// The three fields at the end of a paired body, and the body without them.
fn taken_apart(body: &[u8]) -> (String, Value, u64) {
    let text = String::from_utf8(body.to_vec()).expect("text");
    let start = text.rfind(r#","bootstrap_host":"#).expect("the fields");
    let end = text.rfind('}').expect("an end");
    let fields: Value =
        serde_json::from_str(&format!("{{{}}}", &text[start + 1..end])).expect("three fields");
    let room = fields["bootstrap_room"].as_u64().expect("a room");
    assert_eq!(fields.as_object().map(serde_json::Map::len), Some(3));
    (format!("{}{}", &text[..start], &text[end..]), fields, room)
}

/// Both legs got `body` with the same three fields.
#[track_caller]
fn assert_paired(pair: &Pair, body: &[u8]) {
    let (at_prefill, at_decode) = (newest(&pair.prefill), newest(&pair.decode));
    assert!(at_prefill.body == at_decode.body, "two bodies");
    let (original, fields, room) = taken_apart(&at_prefill.body);
    assert!(original.as_bytes() == body, "the rest is not as sent");
    assert_eq!(fields["bootstrap_host"], "127.0.0.1");
    assert_eq!(fields["bootstrap_port"], pair.prefill.bootstrap_port());
    assert!((1..(1 << 63) - 130).contains(&room), "{room}");
    for (leg, engine) in [(&at_prefill, &pair.prefill), (&at_decode, &pair.decode)] {
        assert_eq!(leg.headers["x-sgl-decode-url"], pair.decode.url());
        assert_eq!(leg.headers["host"], engine.addr().to_string());
        assert_eq!(leg.headers["content-length"], leg.body.len().to_string());
        assert_eq!(leg.headers.get_all("content-length").iter().count(), 1);
        assert!(leg.headers.get("transfer-encoding").is_none());
        assert_eq!(leg.headers["content-type"], "application/json");
    }
    assert_eq!(
        at_prefill.headers["x-request-id"],
        at_decode.headers["x-request-id"]
    );
}

#[tokio::test]
async fn both_legs_meet_and_decode_answers() {
    let pair = pair().await;
    for body in [chat("one two three"), stream("one two three")] {
        let bytes = body.to_string().into_bytes();
        let answer = pair.proxy.chat_bytes(&bytes).await;
        answer.assert_engine(200);
        assert_eq!(answer.header("x-mock-engine"), Some("D1"));
        assert_eq!(answer.header("x-sgl-decode-url"), None);
        if body["stream"] == true {
            assert!(answer.text().ends_with("data: [DONE]\n\n"));
            assert!(answer.text().contains("three"));
        } else {
            let text = &answer.json()["choices"][0]["message"]["content"];
            assert_eq!(text, "one two three");
        }
        assert_paired(&pair, &bytes);
    }
    assert_eq!(pair.prefill.stats().kv_transfers, 2);
    assert_eq!(pair.decode.stats().kv_transfers, 2);
    pair.proxy.idle().await;
    let gauges = pair.proxy.gauges().await;
    for (engine, mode) in [("P1", "prefill"), ("D1", "decode")] {
        let labels = [
            ("worker_url", engine),
            ("mode", mode),
            ("outcome", "success"),
        ];
        assert_eq!(
            gauges.sum_of("worker_requests_total", &labels),
            2.0,
            "{engine}"
        );
    }
    pair.proxy.finish().await;
}

#[tokio::test]
async fn every_framing_and_size_is_paired() {
    let pair = pair().await;
    let mut h2 = H2Client::connect(pair.proxy.data).await;
    let mut client = pair.proxy.client().await;
    for size in [200, 65_535, 65_536, 65_537, 5 << 20] {
        let body = sized(size);
        let answer = client.chat(&body).await;
        answer.assert_engine(200);
        assert_paired(&pair, &body);
        client.assert_kept(&answer).await;
        client.send(&chunked(&body, 65_537, "")).await;
        client.answer().await.assert_engine(200);
        assert_paired(&pair, &body);
        h2.chat(&body, true).await.assert_engine(200);
        assert_paired(&pair, &body);
    }
    // Blanks behind the object, strange keys, big numbers, repeated keys.
    let odd = b" {\"model\":\"m\",\"a\":{\"}\":\"}\"},\"big\":123456789012345678901234567890,\
        \"messages\":[{\"role\":\"user\",\"content\":\"x}\"}],\"t\":1,\"t\":2} \n";
    client.chat(odd).await.assert_engine(200);
    assert_paired(&pair, odd);
    pair.proxy.finish().await;
}

#[tokio::test]
async fn two_hundred_pairs_at_once_meet_in_rooms_of_their_own() {
    let (p1, p2) = (
        prefill("P1", Duration::from_secs(60)).await,
        prefill("P2", Duration::from_secs(60)).await,
    );
    let (d1, d2) = (decode("D1").await, decode("D2").await);
    let proxy = Proxy::start(settings(&[&p1, &p2], &[&d1, &d2])).await;
    let work = (0..200).map(|i| {
        let body = with(chat(&format!("word{i}")), json!({"stream": i % 2 == 0}));
        let proxy = &proxy;
        async move {
            let answer = proxy.chat(&body).await;
            answer.assert_engine(200);
            assert!(
                answer.text().contains(&format!("word{i}")),
                "another's answer"
            );
        }
    });
    within(LARGE, "200 pairs", futures_util::future::join_all(work)).await;
    let by_room = |engines: [&Engine; 2]| -> HashMap<u64, (bytes::Bytes, u64)> {
        let requests = engines.iter().flat_map(|engine| {
            let port = u64::from(engine.bootstrap_port());
            engine.recorded().into_iter().map(move |r| (r.body, port))
        });
        requests
            .map(|(body, port)| (taken_apart(&body).2, (body, port)))
            .collect()
    };
    let (at_prefill, at_decode) = (by_room([&p1, &p2]), by_room([&d1, &d2]));
    let rooms: HashSet<u64> = at_prefill.keys().copied().collect();
    assert_eq!(rooms.len(), 200, "a room was given twice");
    assert_eq!(rooms, at_decode.keys().copied().collect());
    for (room, (body, port)) in &at_prefill {
        assert_eq!(*body, at_decode[room].0, "room {room}");
        let fields = taken_apart(body).1;
        assert_eq!(
            fields["bootstrap_port"], *port,
            "the port of its own prefill"
        );
    }
    for engine in [&p1, &p2, &d1, &d2] {
        let stats = engine.stats();
        assert_eq!(
            (stats.requests, stats.completed),
            (100, 100),
            "{}",
            engine.name()
        );
        assert_eq!((stats.room_collisions, stats.room_zero), (0, 0));
    }
    proxy.finish().await;
}

#[tokio::test]
async fn bootstrap_fields_of_a_client_are_refused() {
    let pair = pair().await;
    for field in [
        json!({"bootstrap_room": 7}),
        json!({"bootstrap_host": "10.0.0.1"}),
        json!({"bootstrap_port": null}),
        json!({"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 1}),
    ] {
        let mut client = pair.proxy.client().await;
        let answer = client
            .chat(with(chat("x"), field).to_string().as_bytes())
            .await;
        answer.assert_refusal(400, "bad_request");
        assert!(answer.text().contains("bootstrap"));
        client.assert_kept(&answer).await;
    }
    let escaped = br#"{"model":"m","messages":[],"boot\u0073trap_room":1}"#;
    let answer = pair.proxy.chat_bytes(escaped).await;
    answer.assert_refusal(400, "bad_request");
    // Deeper down the name means nothing.
    let nested = with(chat("x"), json!({"metadata": {"bootstrap_room": 7}}));
    pair.proxy.chat(&nested).await.assert_engine(200);
    assert_eq!(
        (pair.prefill.stats().requests, pair.decode.stats().requests),
        (1, 1)
    );
    pair.proxy.finish().await;
}

#[tokio::test]
async fn without_a_prefill_engine_decode_is_left_alone() {
    let (prefill, decode) = (
        prefill("P1", Duration::from_secs(9)).await,
        decode("D1").await,
    );
    for (stage, code) in [
        ("prefill", "no_prefill_workers_available"),
        ("decode", "no_decode_workers_available"),
    ] {
        let mut settings = settings(&[&prefill], &[&decode]);
        settings["models"][0]["buckets"][0]["groups"]["pd"][stage]["worker_ids"] = json!([]);
        let proxy = Proxy::start(settings).await;
        let answer = proxy.chat(&chat("x")).await;
        answer.assert_refusal(503, code);
        proxy.finish().await;
    }
    for engine in [&prefill, &decode] {
        assert_eq!(engine.stats().requests, 0, "{}", engine.name());
    }
}

#[tokio::test]
async fn edge_headers_name_both_engines() {
    let pair = pair_with(json!({"response_headers": true})).await;
    let answer = pair.proxy.chat(&chat("x")).await;
    answer.assert_engine(200);
    assert_eq!(answer.header("x-edge-engine"), Some("D1"));
    assert_eq!(answer.header("x-edge-prefill-engine"), Some("P1"));
    assert_eq!(answer.header("x-edge-bucket"), Some("pd"));
    pair.proxy.finish().await;
}
