//! An API server that forgets, forbids, breaks connections off, or is not there.

use serde_json::json;

use crate::api::{Api, Gone, Mood};
use crate::fleet::{Load, ids, known, logged, only, plain, settings, start};
use crate::support::body::chat;
use crate::support::child::Proxy;
use crate::support::eventually;
use crate::support::fleet::engine;

#[tokio::test]
async fn a_cut_connection_goes_on_where_the_last_bookmark_was() {
    let (a, b) = (engine("a").await, engine("b").await);
    let api = Api::started();
    api.apply(only("s-1", &a));
    let proxy = start(&api, settings(plain())).await;
    known(&proxy, &["prod/a"]).await;
    eventually("a watch", async || api.watches() == 1).await;
    let version = api.bookmark();
    api.cut();
    eventually("a watch from the bookmark on", async || {
        let seen = api.seen();
        seen.iter()
            .any(|seen| seen.watch && seen.version == Some(version))
    })
    .await;
    api.apply(only("s-2", &b));
    known(&proxy, &["prod/a", "prod/b"]).await;
    assert_eq!(api.lists(), 1);
    proxy.finish().await;
}

async fn what_vanished_unseen_goes_with_the_next_list(gone: Gone) {
    let engines = [engine("a").await, engine("b").await, engine("c").await];
    let mut api = Api::started();
    for engine in &engines {
        api.apply(only(&format!("s-{}", engine.name()), engine));
    }
    let proxy = start(&api, settings(plain())).await;
    let all = ["prod/a", "prod/b", "prod/c"];
    known(&proxy, &all).await;
    assert_eq!(api.lists(), 2, "two pages");
    eventually("a watch", async || api.watches() == 1).await;
    api.stop();
    logged(&proxy, "engines stay as they are").await;
    assert_eq!(ids(&proxy).await, all);
    let load = Load::default();
    let changes = async {
        load.progress().await;
        api.delete("prod", "s-b");
        api.forget(gone);
        api.start();
        known(&proxy, &["prod/a", "prod/c"]).await;
        load.avoids(&engines[1]).await;
        load.stop();
    };
    tokio::join!(load.run(proxy.data), changes);
    assert_eq!(api.lists(), 3);
    proxy.finish().await;
}

#[tokio::test]
async fn what_vanished_unseen_goes_with_the_list_after_an_event_that_says_gone() {
    what_vanished_unseen_goes_with_the_next_list(Gone::Event).await;
}

#[tokio::test]
async fn what_vanished_unseen_goes_with_the_list_after_a_status_that_says_gone() {
    what_vanished_unseen_goes_with_the_next_list(Gone::Status).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_delays_engines_and_not_the_start() {
    let a = engine("a").await;
    let mut api = Api::new();
    api.apply(only("s", &a));
    let proxy = start(&api, settings(plain())).await;
    assert!(ids(&proxy).await.is_empty());
    assert_eq!(
        proxy.client().await.call("GET", "/readyz").await.status,
        503
    );
    assert_eq!(proxy.chat(&chat("hi")).await.status, 503);
    logged(&proxy, "Connection refused").await;
    api.start();
    known(&proxy, &["prod/a"]).await;
    assert_eq!(
        proxy.client().await.call("GET", "/readyz").await.status,
        200
    );
    proxy.chat(&chat("hi")).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn what_the_role_does_not_allow_is_told_and_asked_again() {
    let a = engine("a").await;
    let api = Api::started();
    api.apply(only("s", &a));
    api.mood(Mood::Forbids);
    let proxy = start(&api, settings(plain())).await;
    logged(&proxy, "may not get, list and watch endpointslices").await;
    logged(&proxy, "namespace prod, plain by app=engines").await;
    assert_eq!(
        proxy.client().await.call("GET", "/readyz").await.status,
        503
    );
    api.mood(Mood::Well);
    known(&proxy, &["prod/a"]).await;
    eventually("a watch", async || api.watches() == 1).await;
    // Taken away later: nothing changes for those who serve.
    api.mood(Mood::Forbids);
    api.cut();
    eventually("a refused watch", async || api.watches() > 2).await;
    assert_eq!(ids(&proxy).await, ["prod/a"]);
    proxy.chat(&chat("hi")).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn without_a_cluster_the_program_says_so_and_serves_what_it_can() {
    let a = engine("a").await;
    let listed = json!([{"id": "a", "url": a.url(), "role": "plain"}]);
    let models = json!({"models": [
        {"id": "k", "engines": {"kubernetes": plain()}},
        {"id": "m", "engines": {"static": listed}},
    ]});
    let proxy = Proxy::start_in(models, &[("KUBECONFIG", "/nowhere/kubeconfig")]).await;
    logged(&proxy, "no cluster is configured").await;
    proxy.chat(&chat("hi")).await.assert_engine(200);
    proxy.finish().await;
}
