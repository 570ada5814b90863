//! Thousands of requests with clients that leave anywhere, engines that are killed and come back, and
//! reloads; afterwards no guard, task, thread or descriptor is left and memory has not grown.
//!
//! `SGL_EDGE_SOAK` is the number of requests, 4000 by default. The long run:
//!
//! ```sh
//! SGL_EDGE_SOAK=100000 cargo test --release --test faults soak -- --nocapture
//! ```

mod process;
mod visitor;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig, Role};

use crate::support::body::{chat, with};
use crate::support::child::Proxy;
use crate::support::fleet::{engine_with, entry, quiet};
use crate::support::{eventually, pause};
use process::Footprint;
use visitor::{Tally, visit};

/// Clients at the same time.
const CLIENTS: u64 = 24;

/// The two models.
const MODELS: [&str; 2] = ["m", "pair"];

fn requests() -> u64 {
    let wanted = std::env::var("SGL_EDGE_SOAK");
    wanted.map_or(4_000, |count| count.parse().expect("a number of requests"))
}

fn config(name: &str, role: Role) -> EngineConfig {
    EngineConfig {
        name: name.to_owned(),
        role,
        bootstrap_port: 0,
        ttft: Duration::from_millis(3),
        token_interval: Duration::from_millis(1),
        pd_timeout: Duration::from_secs(1),
        record: false,
        ..EngineConfig::default()
    }
}

/// Engines that can be killed; an empty place is one that is being started again.
struct Fleet {
    places: Vec<(Role, RefCell<Option<Engine>>)>,
    entries: Vec<Value>,
}

impl Fleet {
    async fn start() -> Self {
        let roles = [
            ("E1", Role::Plain),
            ("E2", Role::Plain),
            ("E3", Role::Plain),
            ("P1", Role::Prefill),
            ("P2", Role::Prefill),
            ("D1", Role::Decode),
            ("D2", Role::Decode),
        ];
        let (mut places, mut entries) = (Vec::new(), Vec::new());
        for (name, role) in roles {
            let engine = engine_with(name, config(name, role)).await;
            entries.push(entry(&engine, role));
            places.push((role, RefCell::new(Some(engine))));
        }
        Self { places, entries }
    }

    /// Kills an engine and starts it again after a moment.
    async fn restart(&self, nth: usize, away: u64) {
        let (role, place) = &self.places[nth];
        let Some(engine) = place.take() else { return };
        let config = EngineConfig {
            listen: engine.addr(),
            bootstrap_port: engine.bootstrap_port(),
            ..config(engine.name(), *role)
        };
        engine.shutdown().await;
        pause(away).await;
        let engine = engine_with(&config.name.clone(), config).await;
        place.replace(Some(engine));
    }

    fn settings(&self, plain: usize) -> Value {
        let policy = json!({"policy": {"type": "power_of_two"}});
        json!({"models": [
            {"id": "m", "engines": {"static": self.entries[..plain]},
             "buckets": [{"id": "all", "groups": {"plain": policy}}]},
            {"id": "pair", "engines": {"static": self.entries[3..]},
             "buckets": [{"id": "all", "groups": {"pd": {"prefill": policy, "decode": policy}}}]},
        ]})
    }

    async fn quiet(&self) {
        for (_, place) in &self.places {
            let engine = place.take().expect("every engine is back");
            quiet(&engine).await;
            let stats = engine.stats();
            assert_eq!((stats.room_collisions, stats.room_zero), (0, 0));
            place.replace(Some(engine));
        }
    }
}

/// Kills engines until told to stop.
async fn kill(fleet: &Fleet, stop: &Cell<bool>) -> u64 {
    let mut draw = StdRng::seed_from_u64(1);
    let mut kills = 0;
    while !stop.get() {
        pause(draw.random_range(100..500)).await;
        let nth = draw.random_range(0..fleet.places.len());
        fleet.restart(nth, draw.random_range(0..150)).await;
        kills += 1;
    }
    kills
}

/// Reloads until told to stop: fewer engines, more engines, a bad file.
async fn reload(proxy: &RefCell<Proxy>, fleet: &Fleet, stop: &Cell<bool>) -> u64 {
    let mut reloads = 0;
    while !stop.get() {
        pause(400).await;
        let mut proxy = proxy.borrow_mut();
        match reloads % 4 {
            0 => proxy.write_config(&fleet.settings(2)),
            1 => proxy.write_text("models: [{id: m, engines: {static: []}}]\nunknown: 1\n"),
            _ => proxy.write_config(&fleet.settings(3)),
        }
        proxy.signal("HUP");
        reloads += 1;
    }
    let mut proxy = proxy.borrow_mut();
    proxy.write_config(&fleet.settings(3));
    proxy.signal("HUP");
    reloads
}

/// Every engine serves and every breaker is closed.
async fn recovers(proxy: &Proxy) {
    eventually("every breaker closes", async || {
        for model in MODELS {
            for _ in 0..6 {
                let body = with(chat("x"), json!({"model": model}));
                let answer = proxy.chat(&body).await;
                assert!(
                    matches!(answer.status, 200 | 502 | 503),
                    "{}",
                    answer.text()
                );
            }
        }
        proxy.gauges().await.sum("worker_cb_state") == 0.0
    })
    .await;
    for model in MODELS {
        for _ in 0..20 {
            let body = with(chat("x"), json!({"model": model}));
            proxy.chat(&body).await.assert_engine(200);
        }
    }
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let fleet = Fleet::start().await;
    let mut settings = fleet.settings(3);
    let more = json!({
        "timeouts": {
            "connect": "1s", "first_byte": "4s", "stream_idle": "4s", "client_body_idle": "4s",
        },
        "circuit_breaker": {"failures": 3, "cool_down": "500ms"},
        "health": {"path": "/ready", "interval": "500ms", "timeout": "1s"},
        "log": {"level": "error"},
    });
    crate::support::child::merge(&mut settings, &more);
    let proxy = Proxy::start(settings).await;
    recovers(&proxy).await;
    let (pid, data, total) = (proxy.pid(), proxy.data, requests());
    // Idle connections to engines end after four seconds.
    pause(5_000).await;
    let start = Footprint::of(pid);
    let (proxy, stop) = (RefCell::new(proxy), Cell::new(false));
    let (left, settled) = (Cell::new(total), Cell::new(None));
    let began = Instant::now();
    let clients = async {
        let clients = (0..CLIENTS).map(|nth| {
            let (left, settled) = (&left, &settled);
            async move {
                let mut draw = StdRng::seed_from_u64(nth);
                let mut tally = Tally::default();
                while let Some(rest) = left.get().checked_sub(1) {
                    left.set(rest);
                    visit(data, &mut draw, &mut tally).await;
                    if rest == total * 2 / 3 {
                        settled.set(Some(Footprint::of(pid)));
                    }
                }
                tally
            }
        });
        let tallies = join_all(clients).await;
        stop.set(true);
        tallies.into_iter().fold(Tally::default(), Tally::and)
    };
    let (tally, kills, reloads) =
        tokio::join!(clients, kill(&fleet, &stop), reload(&proxy, &fleet, &stop));
    eprintln!(
        "{total} requests in {:.1?}, {kills} restarts, {reloads} reloads: {tally:?}",
        began.elapsed()
    );
    tally.assert_sane();
    let mut proxy = proxy.into_inner();
    assert!(proxy.exited().is_none(), "{}", proxy.log());
    proxy.idle().await;
    fleet.quiet().await;
    recovers(&proxy).await;
    proxy.idle().await;
    let settled = settled.get().expect("a footprint on the way");
    eprintln!(
        "start {start:?}, on the way {settled:?}, end {:?}",
        Footprint::of(pid)
    );
    eventually("descriptors and threads are given back", async || {
        Footprint::of(pid).is_no_more_than(&start)
    })
    .await;
    Footprint::of(pid).assert_no_larger_than(&settled);
    proxy.finish().await;
}
