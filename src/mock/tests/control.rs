//! What an engine says of itself, its remote control, its start and its end.

use std::time::Duration;

use serde_json::json;

use super::client::{answer, chat_bytes, engine, get, post, read_until, receive, send, user, with};
use crate::mock::loads::iso8601;
use crate::mock::{EngineConfig, Role, parse_duration, start};

#[tokio::test]
async fn server_info_has_the_keys_a_router_reads() {
    for (role, mode) in [
        (Role::Plain, "null"),
        (Role::Prefill, "prefill"),
        (Role::Decode, "decode"),
    ] {
        let config = EngineConfig {
            role,
            bootstrap_port: 0,
            model: "the-model".into(),
            ..EngineConfig::default()
        };
        let engine = start(config).await.unwrap();
        let info = get(&engine, "/server_info").await.json();
        assert_eq!(info["disaggregation_mode"], mode);
        assert_eq!(
            info["disaggregation_bootstrap_port"],
            engine.bootstrap_port()
        );
        assert_eq!(engine.bootstrap_port() == 0, role != Role::Prefill);
        for key in ["served_model_name", "model_path"] {
            assert_eq!(info[key], "the-model");
        }
        for key in [
            "page_size",
            "dp_size",
            "attn_dp_size",
            "tp_size",
            "context_length",
            "max_total_num_tokens",
            "max_req_input_len",
            "startup_time",
        ] {
            assert!(info[key].is_number(), "{key}");
        }
        assert_eq!(info.get("kv_events"), Some(&json!(null)));
        assert_eq!(
            (&info["status"], &info["frontend"]),
            (&json!("ready"), &json!("python"))
        );
    }
}

#[tokio::test]
async fn health_follows_its_fault() {
    let engine = engine().await;
    let routes = ["/health", "/health_generate", "/ready", "/ping"];
    for path in routes {
        assert_eq!(get(&engine, path).await.status, 200, "{path}");
    }
    engine.faults().update(|faults| faults.health = Some(503));
    for path in routes {
        assert_eq!(get(&engine, path).await.status, 503, "{path}");
    }
    assert_eq!(answer(&engine, &user("x"), "").await.status, 200);
}

#[tokio::test]
async fn models_are_listed_and_unknown_ones_are_nested_404s() {
    let engine = engine().await;
    assert_eq!(
        get(&engine, "/v1/models").await.json()["data"][0]["id"],
        "demo"
    );
    assert_eq!(get(&engine, "/v1/models/demo").await.json()["id"], "demo");
    let unknown = get(&engine, "/v1/models/nope").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["code"], "model_not_found");
    assert_eq!(
        get(&engine, "/get_model_info").await.json()["is_generation"],
        true
    );
}

#[tokio::test]
async fn loads_tell_the_work_that_is_held() {
    let config = EngineConfig {
        max_running_requests: 1,
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    let body = with(
        user("x"),
        json!({"stream": true, "input_ids": [1, 2, 3, 4]}),
    );
    let stall = chat_bytes(&body, "x-sgl-mock-stall-after-tokens: 1\r\n");
    let mut running = send(engine.addr(), &stall).await;
    read_until(&mut running, "content\":\"x\"").await;
    let _waiting = send(engine.addr(), &stall).await;
    let load = loop {
        let loads = get(&engine, "/v1/loads?include=core").await.json();
        if loads["loads"][0]["num_waiting_reqs"] == 1 {
            break loads["loads"][0].clone();
        }
    };
    assert_eq!(load["num_running_reqs"], 1);
    assert_eq!(load["num_used_tokens"], 5);
    assert_eq!(load["num_waiting_uncached_tokens"], 4);
    assert_eq!(load["total_prefill_uncached_tokens"], 4);
    assert_eq!(post(&engine, "/flush_cache", "").await.status, 400);
    assert_eq!(
        get(&engine, "/v1/loads?dp_rank=1").await.json()["loads"],
        json!([])
    );
}

/// Expected hits do not wait, and a decode engine has nothing to compute.
#[tokio::test]
async fn waiting_tokens_are_those_that_must_be_computed() {
    let config = EngineConfig {
        max_running_requests: 1,
        page_size: 2,
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    let request = |ids: &[u32]| {
        let body = with(user("x"), json!({"stream": true, "input_ids": ids}));
        chat_bytes(&body, "x-sgl-mock-stall-after-tokens: 1\r\n")
    };
    let mut running = send(engine.addr(), &request(&[1, 2, 3, 4, 5])).await;
    read_until(&mut running, "content\":\"x\"").await;
    let _same = send(engine.addr(), &request(&[1, 2, 3, 4, 9, 9])).await;
    let _other = send(engine.addr(), &request(&[7, 8, 9])).await;
    let load = loop {
        let loads = get(&engine, "/v1/loads").await.json();
        if loads["loads"][0]["num_waiting_reqs"] == 2 {
            break loads["loads"][0].clone();
        }
    };
    assert_eq!(load["num_waiting_uncached_tokens"], 2 + 3);
    assert_eq!(load["num_total_tokens"], 6 + 6 + 3);
    let config = EngineConfig {
        role: Role::Decode,
        ..EngineConfig::default()
    };
    let decode = start(config).await.unwrap();
    let rendezvous =
        json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 0});
    let _waiting = send(decode.addr(), &chat_bytes(&with(user("x"), rendezvous), "")).await;
    let load = loop {
        let loads = get(&decode, "/v1/loads").await.json();
        if loads["loads"][0]["num_waiting_reqs"] == 1 {
            break loads["loads"][0].clone();
        }
    };
    assert_eq!(load["num_waiting_uncached_tokens"], 0);
    assert!(load["num_total_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn an_idle_engine_flushes_its_cache() {
    let engine = engine().await;
    assert_eq!(get(&engine, "/flush_cache").await.status, 200);
}

#[tokio::test]
async fn stats_and_requests_are_told_over_http() {
    let engine = engine().await;
    answer(&engine, &user("x"), "x-b: 2\r\n").await;
    let stats = get(&engine, "/mock/stats").await.json();
    assert_eq!(
        (&stats["requests"], &stats["completed"]),
        (&json!(1), &json!(1))
    );
    let requests = get(&engine, "/mock/requests?last=1").await.json();
    let request = &requests["requests"][0];
    assert_eq!(request["headers"]["x-b"], "2");
    assert_eq!(request["body"], user("x").to_string());
    assert_eq!(request["body_len"], request["content_length"]);
    let hash = format!("{:016x}", engine.recorded()[0].fnv64());
    assert_eq!(request["fnv64"], hash);
    post(&engine, "/mock/reset", "").await;
    assert!(engine.recorded().is_empty());
    assert_eq!(engine.stats().requests, 0);
}

#[tokio::test]
async fn the_record_keeps_the_last_256() {
    let engine = engine().await;
    let mut socket = send(engine.addr(), b"").await;
    for turn in 0..260 {
        let bytes = chat_bytes(&user("x"), &format!("x-turn: {turn}\r\n"));
        let bytes = String::from_utf8(bytes)
            .unwrap()
            .replace("connection: close\r\n", "");
        tokio::io::AsyncWriteExt::write_all(&mut socket, bytes.as_bytes())
            .await
            .unwrap();
        read_until(&mut socket, "metadata").await;
    }
    let recorded = engine.recorded();
    assert_eq!(recorded.len(), 256);
    assert_eq!(recorded[0].headers["x-turn"], "4");
    assert_eq!(recorded[255].headers["x-turn"], "259");
}

#[tokio::test]
async fn a_killed_engine_breaks_its_connections_and_can_start_again() {
    let engine = engine().await;
    let body = with(user("x"), json!({"stream": true}));
    let stall = chat_bytes(&body, "x-sgl-mock-stall-after-tokens: 1\r\n");
    let mut open = send(engine.addr(), &stall).await;
    read_until(&mut open, "content\":\"x\"").await;
    let address = engine.addr();
    engine.shutdown().await;
    assert!(receive(open).await.is_none_or(|rest| !rest.whole));
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    let again = start(EngineConfig {
        listen: address,
        ..EngineConfig::default()
    });
    assert_eq!(
        answer(&again.await.unwrap(), &user("x"), "").await.status,
        200
    );
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_names_it() {
    let engine = engine().await;
    let config = EngineConfig {
        listen: engine.addr(),
        ..EngineConfig::default()
    };
    let error = start(config).await.unwrap_err().to_string();
    assert!(error.contains(&engine.addr().to_string()), "{error}");
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_understood() {
    let engine = engine().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let mut socket = send(engine.addr(), preface).await;
    let mut head = [0; 9];
    tokio::io::AsyncReadExt::read_exact(&mut socket, &mut head)
        .await
        .unwrap();
    // Frame type 4, stream 0: the server's own settings.
    assert_eq!((head[3], &head[5..]), (4, &[0, 0, 0, 0][..]));
}

#[test]
fn durations_need_a_unit() {
    for (text, expected) in [
        ("20ms", Duration::from_millis(20)),
        ("1.5s", Duration::from_millis(1500)),
        ("2m", Duration::from_secs(120)),
        ("250us", Duration::from_micros(250)),
        ("0", Duration::ZERO),
    ] {
        assert_eq!(parse_duration(text), Ok(expected), "{text}");
    }
    for text in ["", "5", "ms", "1h", "-1s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn dates_are_civil() {
    assert_eq!(iso8601(0), "1970-01-01T00:00:00Z");
    assert_eq!(iso8601(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(iso8601(1_796_034_637), "2026-11-30T10:30:37Z");
}
