//! The meeting of prefill and decode.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{answer, chat_bytes, engine, eventually, receive, send, user, with};
use crate::mock::{Engine, EngineConfig, Role, start};

async fn pair(pd_timeout: Duration) -> (Engine, Engine) {
    let prefill = EngineConfig {
        name: "P1".into(),
        role: Role::Prefill,
        bootstrap_port: 0,
        pd_timeout,
        ..EngineConfig::default()
    };
    let decode = EngineConfig {
        name: "D1".into(),
        role: Role::Decode,
        bootstrap_port: 1,
        ..prefill.clone()
    };
    (start(prefill).await.unwrap(), start(decode).await.unwrap())
}

fn long() -> Duration {
    Duration::from_secs(300)
}

/// Long enough for anything on loopback, short enough to wait for.
fn short() -> Duration {
    Duration::from_millis(300)
}

fn in_room(prefill: &Engine, room: u64, more: Value) -> Value {
    let bootstrap = json!({
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": prefill.bootstrap_port(),
        "bootstrap_room": room,
    });
    with(with(user("one two three"), bootstrap), more)
}

#[tokio::test]
async fn both_legs_meet_whichever_comes_first() {
    let (prefill, decode) = pair(long()).await;
    for (room, stream, prefill_first) in [
        (1, false, true),
        (i64::MAX as u64, true, false),
        (7, false, false),
    ] {
        let body = in_room(&prefill, room, json!({"stream": stream}));
        let (first, second) = if prefill_first {
            (&prefill, &decode)
        } else {
            (&decode, &prefill)
        };
        let early = send(first.addr(), &chat_bytes(&body, "")).await;
        eventually("the first leg waits", || first.stats().inflight == 1).await;
        let late = answer(second, &body, "").await;
        let early = receive(early).await.unwrap();
        let (one, all) = if prefill_first {
            (early, late)
        } else {
            (late, early)
        };
        assert_eq!((one.status, all.status), (200, 200));
        if stream {
            assert_eq!(one.streamed_text(), "one");
            assert_eq!(one.streamed_finish().as_deref(), Some("length"));
            assert_eq!(all.streamed_text(), "one two three");
        } else {
            assert_eq!(one.json()["choices"][0]["message"]["content"], "one");
            assert_eq!(one.json()["choices"][0]["finish_reason"], "length");
            let text = &all.json()["choices"][0]["message"]["content"];
            assert_eq!(text, "one two three");
        }
    }
    assert_eq!(prefill.stats().bootstrap, decode.stats().bootstrap);
    assert_eq!(prefill.stats().kv_transfers, 3);
    assert_eq!(prefill.shared().rooms.len(), 0);
}

#[tokio::test]
async fn a_body_without_a_room_is_refused() {
    let (prefill, decode) = pair(long()).await;
    for engine in [&prefill, &decode] {
        let reply = answer(engine, &user("x"), "").await;
        assert_eq!(reply.status, 400);
        assert_eq!(
            reply.json()["message"],
            "Disaggregated request received without bootstrap room id"
        );
        let body = with(user("x"), json!({"bootstrap_room": 1.5}));
        assert_eq!(answer(engine, &body, "").await.status, 400);
    }
    let body = with(user("x"), json!({"bootstrap_room": 5}));
    assert_eq!(answer(&engine().await, &body, "").await.status, 200);
}

#[tokio::test]
async fn room_0_never_becomes_ready() {
    let (prefill, decode) = pair(short()).await;
    let body = in_room(&prefill, 0, json!({}));
    let one = send(prefill.addr(), &chat_bytes(&body, "")).await;
    let reply = answer(&decode, &body, "").await;
    assert_eq!(
        (reply.status, reply.json()["type"].as_str()),
        (500, Some("500"))
    );
    assert_eq!(receive(one).await.unwrap().status, 500);
    assert_eq!((decode.stats().room_zero, decode.stats().errors), (1, 1));
}

#[tokio::test]
async fn a_wrong_port_room_or_host_fails_by_waiting() {
    let (prefill, decode) = pair(short()).await;
    for wrong in [
        json!({"bootstrap_room": 12}),
        json!({"bootstrap_port": decode.addr().port()}),
        json!({"bootstrap_port": null}),
        json!({"bootstrap_host": "127.0.0.2"}),
        json!({"bootstrap_host": null}),
    ] {
        let body = in_room(&prefill, 11, json!({}));
        let one = send(prefill.addr(), &chat_bytes(&body, "")).await;
        let reply = answer(&decode, &with(body, wrong.clone()), "").await;
        assert_eq!(reply.status, 500, "{wrong}");
        assert_eq!(receive(one).await.unwrap().status, 500, "{wrong}");
    }
    // A stream was promised, so the failure comes inside it.
    let body = in_room(&prefill, 13, json!({"stream": true}));
    let reply = answer(&decode, &body, "").await;
    assert_eq!(reply.status, 200);
    assert!(reply.events()[0].contains("INTERNAL_SERVER_ERROR"));
}

#[tokio::test]
async fn decode_waits_on_when_prefill_fails_or_leaves() {
    let (prefill, decode) = pair(long()).await;
    let body = in_room(&prefill, 21, json!({}));
    let waiting = send(decode.addr(), &chat_bytes(&body, "")).await;
    eventually("decode waits", || decode.stats().inflight == 1).await;
    assert_eq!(
        answer(&prefill, &body, "x-sgl-mock-status: 503\r\n")
            .await
            .status,
        503
    );
    let slow = chat_bytes(&body, "x-sgl-mock-ttft-ms: 3600000\r\n");
    let leaves = send(prefill.addr(), &slow).await;
    eventually("prefill computes", || prefill.stats().inflight == 1).await;
    drop(leaves);
    eventually("prefill gives up", || prefill.stats().aborted == 1).await;
    assert_eq!(decode.stats().inflight, 1);
    // A third prefill in the same room rescues it.
    assert_eq!(answer(&prefill, &body, "").await.status, 200);
    assert_eq!(receive(waiting).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_decode_that_leaves_frees_its_room_and_prefill_waits() {
    let (prefill, decode) = pair(long()).await;
    let body = in_room(&prefill, 31, json!({}));
    let leaves = send(decode.addr(), &chat_bytes(&body, "")).await;
    eventually("decode asks", || prefill.shared().rooms.len() == 1).await;
    drop(leaves);
    eventually("decode is counted", || decode.stats().aborted == 1).await;
    eventually("its room is gone", || prefill.shared().rooms.len() == 0).await;
    let one = send(prefill.addr(), &chat_bytes(&body, "")).await;
    eventually("prefill waits", || prefill.shared().rooms.len() == 1).await;
    assert_eq!(answer(&decode, &body, "").await.status, 200);
    assert_eq!(receive(one).await.unwrap().status, 200);
}

#[tokio::test]
async fn live_rooms_that_meet_are_counted_with_their_choices() {
    let (prefill, decode) = pair(long()).await;
    let body = in_room(&prefill, 40, json!({"n": 3}));
    let _held = send(decode.addr(), &chat_bytes(&body, "")).await;
    eventually("the first is live", || decode.stats().bootstrap.len() == 1).await;
    eventually("it asks", || prefill.shared().rooms.len() == 1).await;
    let body = in_room(&prefill, 42, json!({}));
    let _second = send(decode.addr(), &chat_bytes(&body, "")).await;
    eventually("the collision is seen", || {
        decode.stats().room_collisions == 1
    })
    .await;
}

#[tokio::test]
async fn the_fake_host_needs_no_partner() {
    let (prefill, decode) = pair(long()).await;
    let body = in_room(&prefill, 1, json!({"bootstrap_host": "2.2.2.2"}));
    assert_eq!(answer(&prefill, &body, "").await.status, 200);
    assert_eq!(answer(&decode, &body, "").await.status, 200);
}

#[tokio::test]
async fn a_late_failure_of_prefill_comes_after_the_hand_over() {
    let (prefill, decode) = pair(long()).await;
    let body = in_room(&prefill, 51, json!({}));
    let headers = "x-sgl-mock-for: prefill\r\nx-sgl-mock-late-status: 500\r\n";
    let one = send(prefill.addr(), &chat_bytes(&body, headers)).await;
    assert_eq!(answer(&decode, &body, headers).await.status, 200);
    assert_eq!(receive(one).await.unwrap().status, 500);
    assert_eq!(prefill.stats().kv_transfers, 1);
}
