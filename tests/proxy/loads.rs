//! Load reports of engines without a load socket: asked for over HTTP, shown, and used.

use serde_json::{Value, json};
use sgl_edge::mock::Faults;

use crate::support::body::{small, with_length};
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::{engine, faulty, plain_buckets, seen};

fn settings(engines: &[&sgl_edge::mock::Engine], poll: Value) -> Value {
    let caps = json!({"max_running_requests": 1});
    let policy = json!({"type": "load_based", "admission": caps});
    let buckets = json!([{"id": "all", "groups": {"plain": {"policy": policy}}}]);
    let mut settings = plain_buckets(engines, buckets);
    settings["models"][0]["load_poll_interval"] = poll;
    settings
}

async fn report(proxy: &Proxy) -> Value {
    proxy.state().await["models"][0]["engines"][0]["report"].clone()
}

#[tokio::test]
async fn an_engine_without_a_load_socket_is_asked_and_its_cap_holds() {
    let engine = faulty(
        "E1",
        Faults {
            ttft_ms: Some(20_000),
            ..Faults::default()
        },
    )
    .await;
    let proxy = Proxy::start(settings(&[&engine], json!("50ms"))).await;
    eventually("a report", async || report(&proxy).await["running"] == 0).await;
    // Somebody else's request is running there: only the report knows.
    let mut direct = crate::support::client::Client::connect(engine.addr()).await;
    direct
        .send(&with_length(&small(), "content-type: application/json\r\n"))
        .await;
    seen(&engine, 1).await;
    eventually("the report shows it", async || {
        report(&proxy).await["running"] == 1
    })
    .await;
    let answer = proxy.chat_bytes(&small()).await;
    answer.assert_refusal(503, "policy_selection_failed");
    let gauges = proxy.gauges().await;
    assert!(
        gauges
            .text
            .contains("sgl_router_load_report_age_seconds{engine=\"E1\"}")
    );
    drop(direct);
    engine.faults().clear();
    proxy.finish().await;
}

#[tokio::test]
async fn polling_can_be_switched_off_and_nothing_is_then_known() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(settings(&[&engine], Value::Null)).await;
    proxy.chat_bytes(&small()).await.assert_engine(200);
    assert_eq!(report(&proxy).await, Value::Null);
    proxy.finish().await;
}
