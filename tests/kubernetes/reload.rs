//! A new configuration: engines stay while their source does.

use serde_json::json;

use crate::api::{Api, Mood};
use crate::fleet::{Load, ids, known, only, plain, pod, settings, slice, start};
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::engine;

/// Sends SIGHUP and waits for the next generation.
async fn hang_up(proxy: &Proxy) {
    let generation = async || proxy.gauges().await.sum("config_generation");
    let before = generation().await;
    proxy.signal("HUP");
    eventually("the next generation", async || generation().await > before).await;
}

#[tokio::test]
async fn reloads_never_leave_the_fleet_empty() {
    let (a, b) = (engine("a").await, engine("b").await);
    let api = Api::started();
    api.apply(only("s-a", &a));
    let mut proxy = start(&api, settings(plain())).await;
    known(&proxy, &["prod/a"]).await;
    eventually("a watch", async || api.watches() == 1).await;
    let data = proxy.data;
    let load = Load::default();
    let changes = async {
        load.progress().await;
        // The server does not even answer: what is known is enough.
        api.mood(Mood::Hangs);
        for level in ["warn", "info", "warn"] {
            proxy.write_config(&json!({"log": {"level": level}}));
            hang_up(&proxy).await;
            assert_eq!(ids(&proxy).await, ["prod/a"]);
            load.progress().await;
        }
        assert_eq!((api.lists(), api.watches()), (1, 1), "the watch goes on");
        api.mood(Mood::Well);
        // Other labels: those who served do so until the others are known.
        let labels = json!({"app": "next"});
        let next = slice(
            ["prod", "s-b"],
            labels,
            b.addr().port(),
            &[pod("127.0.0.1", "b")],
        );
        api.apply(next);
        let source = json!({"namespace": "prod", "selector": {"app": "next"}});
        proxy.write_config(&settings(source));
        hang_up(&proxy).await;
        known(&proxy, &["prod/b"]).await;
        load.avoids(&a).await;
        // The old source is not followed any more.
        api.apply(only("s-c", &a));
        load.avoids(&a).await;
        assert_eq!(ids(&proxy).await, ["prod/b"]);
        // From a list, and back.
        let listed = json!([{"id": "a", "url": a.url(), "role": "plain"}]);
        let model = json!({"models": [{"id": "m", "engines": {"static": listed}}]});
        proxy.write_config(&model);
        hang_up(&proxy).await;
        assert_eq!(ids(&proxy).await, ["a"]);
        load.avoids(&b).await;
        load.stop();
    };
    tokio::join!(load.run(data), changes);
    let taken: u64 = [&a, &b].iter().map(|engine| engine.stats().requests).sum();
    assert_eq!(taken, load.answered(), "one request, one engine");
    proxy.finish().await;
}
