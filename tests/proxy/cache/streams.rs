//! Streams that lose messages, begin anew, or end.

use sgl_edge::mock::{EngineConfig, Faults, Replay, start};

use super::follow::{fleet, holds, prompt, publishing, rank, served, subscribed};
use crate::support::child::Proxy;
use crate::support::eventually;

async fn lost(proxy: &Proxy) -> f64 {
    proxy.gauges().await.sum("kv_events_lost_total")
}

async fn kind(proxy: &Proxy, kind: &str) -> f64 {
    proxy
        .gauges()
        .await
        .sum_of("kv_events_total", &[("kind", kind)])
}

#[tokio::test]
async fn a_gap_is_repaired_by_replay_and_nothing_is_lost() {
    let (engines, proxy) = fleet(1, publishing()).await;
    served(&proxy, &prompt(0..32)).await;
    holds(&proxy, "E1", 2).await;
    engines[0].faults().update(|faults| faults.kv_silent = true);
    served(&proxy, &prompt(1000..1064)).await;
    served(&proxy, &prompt(2000..2064)).await;
    engines[0]
        .faults()
        .update(|faults| faults.kv_silent = false);
    served(&proxy, &prompt(3000..3064)).await;
    holds(&proxy, "E1", 2 + 3 * 4).await;
    assert_eq!(lost(&proxy).await, 0.0);
    assert_eq!(rank(&proxy.state().await, "E1")["gaps"], 1);
    proxy.finish().await;
}

#[tokio::test]
async fn a_gap_without_replay_is_counted_and_the_stream_goes_on() {
    for silent in [true, false] {
        let mut config = publishing();
        if silent {
            config.faults.kv_replay = Replay::Silent;
        } else {
            config.kv_replay_port = None;
        }
        let (engines, proxy) = fleet(1, config).await;
        served(&proxy, &prompt(0..32)).await;
        holds(&proxy, "E1", 2).await;
        engines[0].faults().update(|faults| faults.kv_silent = true);
        served(&proxy, &prompt(1000..1064)).await;
        engines[0]
            .faults()
            .update(|faults| faults.kv_silent = false);
        served(&proxy, &prompt(3000..3064)).await;
        holds(&proxy, "E1", 2 + 4).await;
        assert_eq!(lost(&proxy).await, 1.0);
        proxy.finish().await;
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_counted_and_dropped() {
    let (engines, proxy) = fleet(1, publishing()).await;
    engines[0]
        .faults()
        .update(|faults| faults.kv_garbage = true);
    served(&proxy, &prompt(0..64)).await;
    eventually("it is counted", async || {
        kind(&proxy, "malformed").await == 1.0
    })
    .await;
    engines[0]
        .faults()
        .update(|faults| faults.kv_garbage = false);
    served(&proxy, &prompt(1000..1064)).await;
    holds(&proxy, "E1", 4).await;
    proxy.finish().await;
}

#[tokio::test]
async fn a_flushed_cache_is_forgotten() {
    let (_engines, proxy) = fleet(1, publishing()).await;
    served(&proxy, &prompt(0..64)).await;
    holds(&proxy, "E1", 4).await;
    assert_eq!(proxy.admin("POST", "/flush_cache").await.status, 200);
    holds(&proxy, "E1", 0).await;
    let (_, reason, cached) = served(&proxy, &prompt(0..64)).await;
    assert_eq!((reason.as_str(), cached), ("no_cache_candidate", 0));
    holds(&proxy, "E1", 4).await;
    proxy.finish().await;
}

/// Numbers go back to 0 on a connection that stays, and the reset mark does the same.
#[tokio::test]
async fn a_publisher_that_begins_anew_leaves_no_owner() {
    for route in ["/mock/kv/restart", "/mock/kv/reset"] {
        let (engines, proxy) = fleet(1, publishing()).await;
        served(&proxy, &prompt(0..64)).await;
        holds(&proxy, "E1", 4).await;
        let request = format!(
            "POST {route} HTTP/1.1\r\nhost: mock\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let answer = crate::support::gauges::admin(engines[0].addr(), &request).await;
        assert_eq!(answer.status, 200);
        holds(&proxy, "E1", 0).await;
        assert_eq!(kind(&proxy, "restart").await, 1.0, "{route}");
        proxy.finish().await;
    }
}

/// The engine is killed and comes back at its address with an empty cache. With replay and
/// without, and also when its numbers have already passed those of its former life.
#[tokio::test]
async fn a_killed_and_restarted_engine_leaves_no_stale_owner() {
    for (replay, batches) in [(true, 0), (true, 5), (false, 0), (false, 5)] {
        let mut config = publishing();
        if !replay {
            config.kv_replay_port = None;
        }
        let (mut engines, proxy) = fleet(1, config.clone()).await;
        served(&proxy, &prompt(0..64)).await;
        holds(&proxy, "E1", 4).await;
        let engine = engines.remove(0);
        let again = EngineConfig {
            name: "E1".to_owned(),
            listen: engine.addr(),
            kv_port: engine.kv_port(),
            kv_replay_port: engine.kv_replay_port(),
            context_length: u32::MAX,
            ..config
        };
        engine.shutdown().await;
        let engine = start(again).await.expect("the same ports");
        for nth in 0..batches {
            // Straight to the engine: the router learns of these from the replay, or live, or not.
            let ids = 1000 * (nth + 1);
            let body = prompt(ids..ids + 32).to_string();
            let mut client = crate::support::client::Client::connect(engine.addr()).await;
            let answer = client
                .chat_with(body.as_bytes(), "content-type: application/json\r\n")
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let known = 2 * u64::from(batches);
        eventually("another life was noticed", async || {
            let rank = rank(&proxy.state().await, "E1");
            rank["connected"] == true && rank["restarts"].as_u64() >= Some(1)
        })
        .await;
        if replay {
            holds(&proxy, "E1", known).await;
        }
        let (_, reason, cached) = served(&proxy, &prompt(0..64)).await;
        assert_eq!(
            (reason.as_str(), cached),
            ("no_cache_candidate", 0),
            "{replay} {batches}"
        );
        if replay {
            holds(&proxy, "E1", known + 4).await;
        }
        proxy.finish().await;
    }
}

/// A proxy that starts later learns what the publisher remembers.
#[tokio::test]
async fn a_late_subscriber_catches_up_by_replay() {
    let (engines, first) = fleet(1, publishing()).await;
    served(&first, &prompt(0..64)).await;
    drop(first);
    let late = Proxy::start(super::follow::over(&[&engines[0]])).await;
    subscribed(&late, &engines[0]).await;
    holds(&late, "E1", 4).await;
    let (_, reason, cached) = served(&late, &prompt(0..64)).await;
    assert_eq!((reason.as_str(), cached), ("cache_candidate", 48));
    late.finish().await;
}

#[tokio::test]
async fn an_engine_that_leaves_is_forgotten_and_one_that_comes_back_is_known_again() {
    let (engines, mut proxy) = fleet(2, publishing()).await;
    for _ in 0..8 {
        served(&proxy, &prompt(0..32)).await;
    }
    served(&proxy, &prompt(0..64)).await;
    let both = super::follow::over(&engines.iter().collect::<Vec<_>>());
    proxy.write_config(&super::follow::over(&[&engines[0]]));
    proxy.signal("HUP");
    eventually("one owner at most is left", async || {
        proxy.gauges().await.sum("kv_index_owners") <= 1.0
            && proxy.state().await["models"][0]["engines"]
                .as_array()
                .map(Vec::len)
                == Some(1)
    })
    .await;
    proxy.write_config(&both);
    proxy.signal("HUP");
    subscribed(&proxy, &engines[1]).await;
    let pages = engines
        .iter()
        .map(|engine| engine.kv_pages() as f64)
        .sum::<f64>();
    eventually("both are known", async || {
        proxy.gauges().await.sum("kv_index_holdings") == pages
    })
    .await;
    proxy.finish().await;
}

/// A rank each on ports in a row, with a cache of its own.
#[tokio::test]
async fn every_rank_is_followed_and_the_best_one_counts() {
    let base = crate::support::child::free_address().port();
    let config = EngineConfig {
        kv_port: Some(base),
        kv_replay_port: None,
        kv_ranks: 3,
        faults: Faults::default(),
        ..publishing()
    };
    let (_engines, proxy) = fleet(1, config).await;
    let to_rank = |rank: u32, last: u32| {
        let mut body = prompt(0..last);
        body["routed_dp_rank"] = rank.into();
        body
    };
    for (rank, last) in [(0, 16), (1, 64), (2, 32)] {
        served(&proxy, &to_rank(rank, last)).await;
    }
    eventually("all three hold something", async || {
        proxy.gauges().await.sum("kv_index_holdings") == 7.0
    })
    .await;
    assert_eq!(proxy.gauges().await.sum("kv_index_owners"), 3.0);
    let (_, reason, cached) = served(&proxy, &to_rank(1, 100)).await;
    assert_eq!((reason.as_str(), cached), ("cache_candidate", 64));
    proxy.finish().await;
}
