//! Load reports over real sockets: mock engines publish their real work, the feed thread takes it
//! in, policies pick by it. Nothing is asserted about time; where a limit is exact, the ages around
//! a pick prove it.

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part of the shared support")]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sgl_edge::feeds::{FeedStats, FeedThread, Member};
use sgl_edge::ids::Stage;
use sgl_edge::mock::{self, Engine, EngineConfig, Faults};
use sgl_edge::policies::{AdmissionLimits, LeastLoadPolicy};
use sgl_edge::state::{EngineLoad, EngineLoadTable, FRESHNESS};
use sgl_edge::workers::{EngineUrl, Facts, Worker, WorkerSpec};
use support::picks::chosen;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Engines, the feed thread that follows them, and what they fill.
struct Rig {
    engines: Vec<(Engine, Arc<Worker>)>,
    table: Arc<EngineLoadTable>,
    stats: Arc<FeedStats>,
    _feeds: FeedThread,
}

async fn engine(name: &str, ranks: u16) -> (Engine, Arc<Worker>) {
    let config = EngineConfig {
        name: name.to_owned(),
        kv_port: Some(0),
        load_port: Some(0),
        kv_ranks: ranks,
        ttft: Duration::from_secs(3600),
        max_running_requests: 2,
        ..EngineConfig::default()
    };
    let engine = mock::start(config).await.expect("an engine");
    let spec = WorkerSpec {
        id: name.into(),
        url: EngineUrl::parse(&engine.url()).expect("a url"),
        model: "m".into(),
        role: Stage::Plain,
        bootstrap_port: None,
    };
    let worker = Arc::new(Worker::new(spec, None));
    let body = get(engine.addr(), "/server_info").await;
    let facts = Facts::parse(&body, worker.url().host()).expect("server info");
    worker.introspection().resolved(facts, Instant::now());
    (engine, worker)
}

/// The body of `GET path`.
async fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    answer.split_off(end.expect("a head") + 4)
}

/// A chat request that the engine works on until the stream is dropped.
async fn work(engine: &Engine) -> TcpStream {
    let body = r#"{"model":"demo","messages":[{"role":"user","content":"one two three"}]}"#;
    let mut stream = TcpStream::connect(engine.addr())
        .await
        .expect("a connection");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

impl Rig {
    async fn new(ranks: &[u16]) -> Self {
        let mut engines = Vec::new();
        for (number, ranks) in ranks.iter().enumerate() {
            engines.push(engine(&format!("e{number}"), *ranks).await);
        }
        let workers: Vec<Arc<Worker>> = engines.iter().map(|(_, worker)| worker.clone()).collect();
        let fleet = move || {
            let member = |engine: &Arc<Worker>| Member {
                publishers: engine.introspection().facts().publishers.clone(),
                engine: Arc::clone(engine),
            };
            workers.iter().map(member).collect()
        };
        let (table, stats) = (
            Arc::<EngineLoadTable>::default(),
            Arc::<FeedStats>::default(),
        );
        let feeds = FeedThread::start(table.clone(), stats.clone(), Arc::default(), fleet);
        Self {
            engines,
            table,
            stats,
            _feeds: feeds.expect("a thread"),
        }
    }

    fn workers(&self) -> Vec<Arc<Worker>> {
        self.engines
            .iter()
            .map(|(_, worker)| worker.clone())
            .collect()
    }

    fn load(&self, place: usize) -> Option<EngineLoad> {
        let id = self.engines[place].1.id();
        self.table.capture([id]).get(id).cloned()
    }

    fn set(&self, place: usize, fault: impl FnOnce(&mut Faults)) {
        self.engines[place].0.faults().update(fault);
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            assert!(Instant::now() < patience, "never came: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn count(&self, label: &str) -> u64 {
        let all = self.stats.reports();
        all.iter()
            .find(|(found, _)| *found == label)
            .expect("a label")
            .1
    }
}

#[tokio::test]
async fn the_work_of_every_rank_is_summed_and_ends_with_the_requests() {
    let rig = Rig::new(&[2]).await;
    rig.until("the first report", |rig| rig.load(0).is_some())
        .await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(work(&rig.engines[0].0).await);
    }
    let numbers = |rig: &Rig| {
        rig.load(0)
            .map(|load| (load.running_requests, load.waiting_requests))
    };
    rig.until("two run, three wait", |rig| numbers(rig) == Some((2, 3)))
        .await;
    let load = rig.load(0).expect("a load");
    let native = load.native.expect("a native report");
    assert_eq!(native.max_running_requests, 2, "two slots in all");
    assert!(native.waiting_uncached_tokens > 0 && native.total_tokens > load.used_tokens);
    drop(held);
    rig.until("idle again", |rig| numbers(rig) == Some((0, 0)))
        .await;
}

#[tokio::test]
async fn picks_follow_the_reports_of_engines_that_others_have_loaded() {
    let rig = Rig::new(&[1, 1]).await;
    let _work = (work(&rig.engines[0].0).await, work(&rig.engines[0].0).await);
    rig.until("both reports", |rig| {
        let running = |place| rig.load(place).map(|load| load.running_requests);
        (running(0), running(1)) == (Some(2), Some(0))
    })
    .await;
    let admission = Arc::new(AdmissionLimits::default());
    let policy = LeastLoadPolicy::new(rig.table.clone(), admission);
    for _ in 0..4 {
        assert_eq!(chosen(&policy, &rig.workers()), "e1");
    }
}

/// Until its last report is 5 s old, an engine is compared by it; from then on by what is held here.
#[tokio::test]
async fn a_publisher_that_stops_changes_selection_exactly_at_the_freshness_limit() {
    let rig = Rig::new(&[2, 1]).await;
    rig.until("both reports", |rig| {
        rig.load(0).is_some() && rig.load(1).is_some()
    })
    .await;
    let (workers, limits) = (rig.workers(), Arc::new(AdmissionLimits::default()));
    let policy = LeastLoadPolicy::new(rig.table.clone(), limits);
    // By reports, e0 holds nothing and e1 two; by guards, e0 holds one and e1 none.
    let _guard = workers[0].acquire_at(1, Instant::now() - Duration::from_secs(3600));
    let _work = (work(&rig.engines[1].0).await, work(&rig.engines[1].0).await);
    rig.until("work on e1", |rig| {
        rig.load(1).is_some_and(|load| load.running_requests == 2)
    })
    .await;
    assert_eq!(chosen(&policy, &workers), "e0");
    rig.set(0, |faults| faults.load_silent_rank = Some(1));
    let age = || {
        let load = rig.table.last(workers[0].id()).0.expect("a report");
        load.captured_at.elapsed()
    };
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let before = age();
        let pick = chosen(&policy, &workers);
        let after = age();
        if pick == "e1" {
            assert!(after > FRESHNESS, "given up at {after:?}");
            break;
        }
        assert!(before <= FRESHNESS, "still believed at {before:?}");
        assert!(Instant::now() < patience, "never given up");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    rig.set(0, |faults| faults.load_silent_rank = None);
    rig.until("e0 believed again", |_| chosen(&policy, &workers) == "e0")
        .await;
}

#[tokio::test]
async fn half_reports_are_dropped_and_counted_and_basic_ones_are_basic() {
    let rig = Rig::new(&[1]).await;
    let native = |rig: &Rig| rig.load(0).map(|load| load.native.is_some());
    rig.until("a native report", |rig| native(rig) == Some(true))
        .await;
    rig.set(0, |faults| faults.load_truncated = true);
    rig.until("malformed reports", |rig| rig.count("malformed") > 0)
        .await;
    assert_eq!(native(&rig), Some(true), "the last good one still counts");
    rig.set(0, |faults| {
        faults.load_truncated = false;
        faults.load_basic = true;
    });
    rig.until("a basic report", |rig| native(rig) == Some(false))
        .await;
}

#[tokio::test]
async fn an_engine_that_is_killed_and_comes_back_is_heard_again() {
    let mut rig = Rig::new(&[1]).await;
    rig.until("the first report", |rig| rig.load(0).is_some())
        .await;
    let (engine, worker) = rig.engines.remove(0);
    let (address, published) = (engine.addr(), (engine.kv_port(), engine.load_port()));
    engine.shutdown().await;
    let heard = || rig.table.last(worker.id()).1.expect("heard before");
    let (before, lost) = (heard(), rig.stats.connections_lost());
    rig.until("a lost connection", |rig| {
        rig.stats.connections_lost() > lost
    })
    .await;
    let config = EngineConfig {
        listen: address,
        kv_port: published.0,
        load_port: published.1,
        ..EngineConfig::default()
    };
    let _again = mock::start(config).await.expect("the same ports");
    rig.until("a new report", |_| heard() > before).await;
}
