//! Engines that come and go while the API server is well.

use serde_json::json;
use sgl_edge::mock::{EngineConfig, Role};

use crate::api::Api;
use crate::fleet::{Load, engine_at, known, leaving, only, plain, pod, settings, slice, start};
use crate::support::body::{chat, small};
use crate::support::child::free_address;
use crate::support::eventually;
use crate::support::fleet::{engine, engine_with, newest, seen};

#[tokio::test]
async fn engines_come_and_go_under_load_and_nothing_is_lost() {
    let port = free_address().port();
    let a = engine_at("a", ([127, 0, 0, 1], port).into()).await;
    let b = engine_at("b", ([127, 0, 0, 2], port).into()).await;
    let c = engine("c").await;
    let app = json!({"app": "engines"});
    let api = Api::started();
    let both = [pod("127.0.0.1", "a"), pod("127.0.0.2", "b")];
    api.apply(slice(["prod", "e-1"], app.clone(), port, &both));
    // Neither the namespace nor the label is right.
    api.apply(slice(
        ["test", "e-1"],
        app.clone(),
        9,
        &[pod("127.0.0.1", "x")],
    ));
    api.apply(slice(
        ["prod", "o-1"],
        json!({"app": "other"}),
        9,
        &[pod("127.0.0.1", "y")],
    ));
    let proxy = start(&api, settings(plain())).await;
    known(&proxy, &["prod/a", "prod/b"]).await;
    assert_eq!(
        proxy.client().await.call("GET", "/readyz").await.status,
        200
    );
    let load = Load::default();
    let changes = async {
        load.progress().await;
        api.apply(only("e-2", &c));
        known(&proxy, &["prod/a", "prod/b", "prod/c"]).await;
        seen(&c, 1).await;
        // A second slice of the Service lists b too, before the first one lets it go.
        let more = [pod("127.0.0.2", "b")];
        api.apply(slice(["prod", "e-3"], app.clone(), port, &more));
        api.apply(slice(
            ["prod", "e-1"],
            app.clone(),
            port,
            &[leaving("127.0.0.1", "a")],
        ));
        known(&proxy, &["prod/b", "prod/c"]).await;
        load.avoids(&a).await;
        let taken = b.stats().requests;
        seen(&b, taken + 1).await;
        api.delete("prod", "e-3");
        known(&proxy, &["prod/c"]).await;
        load.avoids(&b).await;
        load.stop();
    };
    tokio::join!(load.run(proxy.data), changes);
    let taken: u64 = [&a, &b, &c]
        .iter()
        .map(|engine| engine.stats().requests)
        .sum();
    assert_eq!(taken, load.answered(), "one request, one engine");
    let seen = api.seen();
    let asked = |seen: &crate::api::Seen| {
        seen.namespace.as_deref() == Some("prod") && seen.selector.as_deref() == Some("app=engines")
    };
    assert!(seen.iter().all(asked), "{seen:?}");
    assert_eq!(api.lists(), 1, "events are enough");
    proxy.finish().await;
}

#[tokio::test]
async fn a_selector_in_words_and_all_namespaces() {
    let (a, b) = (engine("a").await, engine("b").await);
    let api = Api::started();
    let labels = |app: &str, tier: &str| json!({"app": app, "tier": tier});
    let one = |at, labels, engine: &sgl_edge::mock::Engine| {
        let pods = [pod("127.0.0.1", engine.name())];
        slice(at, labels, engine.addr().port(), &pods)
    };
    api.apply(one(["here", "s"], labels("x", "gold"), &a));
    api.apply(one(["there", "s"], labels("y", "gold"), &b));
    api.apply(one(["there", "t"], labels("y", "test"), &a));
    let source = json!({"selector": "app in (x, y), tier!=test"});
    let proxy = start(&api, settings(source)).await;
    known(&proxy, &["here/a", "there/b"]).await;
    // Relabelled: out of the selector, and into it.
    api.apply(one(["here", "s"], labels("z", "gold"), &a));
    known(&proxy, &["there/b"]).await;
    api.apply(one(["there", "t"], labels("y", "gold"), &a));
    known(&proxy, &["there/a", "there/b"]).await;
    assert!(api.seen().iter().all(|seen| seen.namespace.is_none()));
    proxy.chat(&chat("hi")).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn pairs_are_told_apart_by_the_labels_of_their_slices() {
    let with = |role| EngineConfig {
        role,
        ..EngineConfig::default()
    };
    let prefill = engine_with("p", with(Role::Prefill)).await;
    let decodes = [
        engine_with("d", with(Role::Decode)).await,
        engine_with("e", with(Role::Decode)).await,
    ];
    let api = Api::started();
    let one = |name: &str, role: &str, engine: &sgl_edge::mock::Engine| {
        let labels = json!({"app": "engines", "role": role});
        slice(
            ["prod", name],
            labels,
            engine.addr().port(),
            &[pod("127.0.0.1", engine.name())],
        )
    };
    api.apply(one("d-1", "decode", &decodes[0]));
    api.apply(slice(
        ["prod", "x"],
        json!({"app": "engines"}),
        9,
        &[pod("127.0.0.1", "x")],
    ));
    let source = json!({
        "namespace": "prod",
        "prefill_selector": {"app": "engines", "role": "prefill"},
        "decode_selector": {"app": "engines", "role": "decode"},
    });
    let proxy = start(&api, settings(source)).await;
    known(&proxy, &["prod/d decode"]).await;
    let lonely = proxy.client().await.call("GET", "/readyz").await;
    assert_eq!(lonely.status, 503, "half a pair serves nobody");
    api.apply(one("p-1", "prefill", &prefill));
    known(&proxy, &["prod/d decode", "prod/p prefill"]).await;
    // Only the engine itself knows its bootstrap port.
    let port = u64::from(prefill.bootstrap_port());
    eventually("the port is learned", async || {
        let state = proxy.state().await;
        state["models"][0]["engines"][1]["bootstrap_port"] == port
    })
    .await;
    proxy.client().await.chat(&small()).await.assert_engine(200);
    let body = newest(&decodes[0]).body;
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["bootstrap_port"], port);
    api.apply(one("d-2", "decode", &decodes[1]));
    api.delete("prod", "d-1");
    known(&proxy, &["prod/e decode", "prod/p prefill"]).await;
    proxy.client().await.chat(&small()).await.assert_engine(200);
    assert_eq!(decodes[1].stats().requests, 1);
    assert!(
        api.seen().iter().all(|seen| seen.selector.is_none()),
        "unfiltered"
    );
    proxy.finish().await;
}
