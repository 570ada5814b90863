//! A new configuration under load: nothing is lost, a bad file changes nothing, state survives.

mod state;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::support::body::{chat, small, stream};
use crate::support::child::Proxy;
use crate::support::client::{Client, End};
use crate::support::fleet::{and, engine, plain};
use crate::support::{eventually, pause};

async fn generation(proxy: &Proxy) -> f64 {
    proxy.gauges().await.sum("config_generation")
}

async fn reloads(proxy: &Proxy, outcome: &str) -> f64 {
    let gauges = proxy.gauges().await;
    gauges.sum_of("config_reloads_total", &[("outcome", outcome)])
}

/// Sends SIGHUP and waits for the next generation.
async fn hang_up(proxy: &Proxy) {
    let before = generation(proxy).await;
    proxy.signal("HUP");
    eventually("the next generation", async || {
        generation(proxy).await > before
    })
    .await;
}

/// Chats on eight connections until told to stop; every one must be answered whole.
async fn load(data: SocketAddr, stop: &AtomicBool, answered: &AtomicU64) {
    let workers = (0..8).map(|i| async move {
        let mut client = Client::connect(data).await;
        let body = if i % 2 == 0 {
            chat("a b c")
        } else {
            stream("a b c")
        };
        let body = body.to_string().into_bytes();
        while !stop.load(Ordering::Relaxed) {
            let answer = client.chat(&body).await;
            let ending = (answer.status, answer.end);
            assert_eq!(ending, (200, End::Clean), "{}", answer.text());
            assert!(!answer.says_close());
            answered.fetch_add(1, Ordering::Relaxed);
            pause(3).await;
        }
    });
    futures_util::future::join_all(workers).await;
}

/// Waits until this many more requests have been answered.
async fn progress(answered: &AtomicU64, more: u64) {
    let goal = answered.load(Ordering::Relaxed) + more;
    eventually("the load goes on", async || {
        answered.load(Ordering::Relaxed) >= goal
    })
    .await;
}

const BAD: &str = "models: [{id: m, engines: {static: []}}]\nunknown: 1\n";

#[tokio::test]
async fn good_and_bad_files_under_load_lose_nothing() {
    let engines = [engine("E1").await, engine("E2").await, engine("E3").await];
    let [e1, e2, e3] = &engines;
    let mut proxy = Proxy::start(and(plain(&[e1, e2]), json!({"log": {"level": "warn"}}))).await;
    assert_eq!(generation(&proxy).await, 1.0);
    let (stop, answered, data) = (AtomicBool::new(false), AtomicU64::new(0), proxy.data);
    let good = [
        plain(&[e2, e3]),
        plain(&[e3]),
        plain(&[e1, e2, e3]),
        plain(&[e1, e2]),
    ];
    let changes = async {
        for (round, settings) in (2..).zip(good) {
            progress(&answered, 40).await;
            proxy.write_config(&settings);
            hang_up(&proxy).await;
            assert_eq!(generation(&proxy).await, f64::from(round));
            progress(&answered, 40).await;
            let before = reloads(&proxy, "rejected").await;
            proxy.write_text(BAD);
            proxy.signal("HUP");
            eventually("the refusal", async || {
                reloads(&proxy, "rejected").await == before + 1.0
            })
            .await;
            assert_eq!(generation(&proxy).await, f64::from(round), "unchanged");
        }
        progress(&answered, 40).await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(load(data, &stop, &answered), changes);
    let total = answered.load(Ordering::Relaxed);
    let taken: u64 = engines.iter().map(|engine| engine.stats().requests).sum();
    assert_eq!(taken, total, "one request, one engine");
    assert_eq!(reloads(&proxy, "success").await, 4.0);
    proxy.idle().await;
    let gauges = proxy.gauges().await;
    let ok = [("route", "/v1/chat/completions"), ("status_code", "200")];
    let counted = gauges.sum_of("responses_total", &ok);
    assert_eq!(counted, total as f64, "counters survive");
    proxy.finish().await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_every_problem_is_listed() {
    let engine = engine("E1").await;
    // A report would have another age each time.
    let mut settings = plain(&[&engine]);
    settings["models"][0]["load_poll_interval"] = Value::Null;
    let proxy = Proxy::start(settings).await;
    let whole = std::fs::read_to_string(proxy.directory.join("edge.yaml")).expect("the file");
    let before = proxy.state().await;
    let cut_in_a_key = whole.find("models").expect("models") + 3;
    let bad = [
        ("", 1),
        (BAD, 2),
        ("models: [", 1),
        (&whole[..cut_in_a_key], 1),
        ("\0\0\0", 1),
        (
            "listen: nonsense\nthreads: -1\nlimits: {max_body: 0}\nmodels: []\n",
            4,
        ),
    ];
    let rounds = bad.len();
    for (text, problems) in bad {
        proxy.write_text(text);
        let answer = proxy.admin("POST", "/admin/reload").await;
        assert_eq!(answer.status, 422, "{text:?}: {}", answer.text());
        let value = answer.json();
        let listed = value["problems"].as_array().expect("a list");
        assert!(listed.len() >= problems, "{text:?}: {listed:?}");
        let named = |problem: &Value| {
            let problem = problem.as_str().unwrap_or_default();
            problem.contains("edge.yaml") && !problem.contains('\n')
        };
        assert!(listed.iter().all(named), "{listed:?}");
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    std::fs::remove_file(proxy.directory.join("edge.yaml")).expect("the file");
    assert_eq!(proxy.admin("POST", "/admin/reload").await.status, 422);
    assert_eq!(reloads(&proxy, "rejected").await, rounds as f64 + 1.0);
    assert_eq!(reloads(&proxy, "success").await, 0.0);
    assert_eq!(proxy.state().await["config"], before["config"]);
    assert_eq!(proxy.state().await["models"], before["models"]);

    proxy.write_text(&whole);
    let answer = proxy.admin("POST", "/admin/reload").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["generation"], 2);
    assert_eq!(generation(&proxy).await, 2.0);
    assert_eq!(proxy.admin("GET", "/admin/reload").await.status, 405);
    proxy.finish().await;
}

#[tokio::test]
async fn what_needs_a_restart_is_said_and_the_rest_is_active() {
    let (first, second) = (engine("E1").await, engine("E2").await);
    let mut proxy = Proxy::start(plain(&[&first])).await;
    proxy.write_config(&and(plain(&[&second]), json!({"threads": 3})));
    let answer = proxy.admin("POST", "/admin/reload").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["needs_restart"], json!(["threads"]));
    proxy.chat_bytes(&small()).await.assert_engine(200);
    assert_eq!((first.stats().requests, second.stats().requests), (0, 1));
    proxy.finish().await;
}

#[tokio::test]
async fn a_hangup_during_the_start_is_neither_fatal_nor_forgotten() {
    let engine = engine("E1").await;
    let settings = plain(&[&engine]);
    for wait in [0, 5, 20, 60, 150] {
        let mut proxy = Proxy::launch(&settings);
        let status = format!("/proc/{}/status", proxy.pid());
        // Before its first line nobody can take a signal; from then on the program must.
        eventually("it takes the signal", async || {
            std::fs::read_to_string(&status).is_ok_and(|status| catches_hangup(&status))
        })
        .await;
        pause(wait).await;
        proxy.signal("HUP");
        assert!(proxy.serves().await, "after {wait} ms: {}", proxy.log());
        eventually("it reloads", async || {
            reloads(&proxy, "success").await >= 1.0
        })
        .await;
        proxy.chat_bytes(&small()).await.assert_engine(200);
        proxy.finish().await;
    }
}

/// Whether the mask of caught signals holds the first signal.
fn catches_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
