//! What a thousand publishers cost: 1000 engines, 20 load reports a second each, over sockets.
//!
//! Prints the share of one core that the feed threads use (the publishers run in the same process
//! on other threads), how many reports it took in, and the time of a pick while it does. Needs a
//! few thousand open files (`ulimit -n 8192`).

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use sgl_edge::feeds::{FeedStats, FeedThread, Member};
use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::{
    AdmissionLimits, PickRequest, Policy, PolicyParams, PolicyServices, PowerOfTwoParams, build,
};
use sgl_edge::workers::{EngineUrl, Publishers, TcpEndpoint, Worker, WorkerSpec};
use zeromq::{Endpoint, PubSocket, Socket, SocketSend, ZmqMessage};

const ENGINES: usize = 1000;
const PER_SECOND: u32 = 20;
const MEASURED: Duration = Duration::from_secs(10);

/// A native report: running 2, waiting 3, 4096 tokens in use.
const REPORT: &[u8] = b"\x9b\xa8LoadStat\x02\x03\xcd\x10\x00\xce\x00\x01\x86\xa0\x00\xcd\x01\xf4\xcd\x17\x70\x40\xcd\x30\x39\xce\x00\x01\x09\x32";

/// CPU time of the threads whose names begin so, seconds.
fn cpu(name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let nanos = tasks.flatten().filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        comm.starts_with(name)
            .then(|| stat.split(' ').next()?.parse::<f64>().ok())?
    });
    nanos.sum::<f64>() / 1e9
}

/// Publishes from every socket in turn, spread over each period, for ever.
async fn publish(mut sockets: Vec<PubSocket>) {
    let gap = Duration::from_secs(1) / PER_SECOND / u32::try_from(sockets.len()).expect("few");
    let start = Instant::now();
    let mut sent = 0_u32;
    loop {
        let due = u32::try_from(start.elapsed().as_nanos() / gap.as_nanos()).expect("short run");
        while sent < due {
            let place = sent as usize % sockets.len();
            let sequence = u64::from(sent).to_be_bytes();
            let frames = vec![
                Bytes::from_static(b"load"),
                Bytes::copy_from_slice(&sequence),
                Bytes::from_static(REPORT),
            ];
            let message = ZmqMessage::try_from(frames).expect("frames");
            sockets[place].send(message).await.expect("sent");
            sent += 1;
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

fn engine(number: usize, load: TcpEndpoint) -> Member {
    let spec = WorkerSpec {
        id: format!("e{number:04}").into(),
        url: EngineUrl::parse(&format!("http://127.0.0.1:{}", number + 1)).expect("a url"),
        model: "m".into(),
        role: Stage::Plain,
        bootstrap_port: None,
    };
    let publishers = Publishers {
        events: load.clone(),
        replay: None,
        topic: String::new(),
        block_size: None,
        ranks: 1,
        load: Some(load),
        load_topic: "load".to_owned(),
    };
    Member {
        engine: Arc::new(Worker::new(spec, None)),
        publishers: Some(Arc::new(publishers)),
    }
}

/// Median time of one pick, nanoseconds.
fn pick(policy: &dyn Policy, engines: &[Arc<Worker>]) -> u128 {
    let (model, bucket) = (ModelId::from("m"), BucketId::from("b"));
    let request = PickRequest {
        model: &model,
        stage: Stage::Plain,
        bucket: &bucket,
        input_tokens: 1000,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: None,
        routing_key: None,
        prefix: &sgl_edge::state::prefix::PrefixMemo::none(),
        explain: None,
    };
    let mut times: Vec<u128> = (0..2001)
        .map(|_| {
            let start = Instant::now();
            let picked = policy.pick(engines, &request).now_or_never();
            let time = start.elapsed().as_nanos();
            picked.expect("no waiting").expect("a pick");
            time
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let publishers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("publishers")
        .enable_all()
        .build()
        .expect("a runtime");
    // A socket starts tasks of its own.
    let entered = publishers.enter();
    let (sockets, fleet): (Vec<_>, Vec<_>) = (0..ENGINES)
        .map(|number| {
            let mut socket = PubSocket::new();
            let bound = publishers.block_on(async { socket.bind("tcp://127.0.0.1:0").await });
            let Ok(Endpoint::Tcp(_, port)) = bound else {
                panic!("{bound:?}: try ulimit -n 8192");
            };
            (socket, engine(number, TcpEndpoint::new("127.0.0.1", port)))
        })
        .unzip();
    drop(entered);
    let services = PolicyServices::new(Arc::default());
    let workers: Vec<Arc<Worker>> = fleet.iter().map(|member| member.engine.clone()).collect();
    let policies = [
        PolicyParams::PowerOfTwo(PowerOfTwoParams::default()),
        PolicyParams::LeastLoad,
    ]
    .map(|params| build(&params, AdmissionLimits::default(), &"m".into(), &services));
    let times = || {
        policies
            .each_ref()
            .map(|policy| pick(policy.as_ref(), &workers))
    };
    let stats = Arc::new(FeedStats::default());
    let _feeds = FeedThread::start(
        services.loads.clone(),
        stats.clone(),
        Arc::default(),
        move || fleet.clone(),
    )
    .expect("a thread");
    std::thread::sleep(Duration::from_secs(2));
    let silent = times();
    let mut publishing = tokio::task::JoinSet::new();
    publishing.spawn_on(publish(sockets), publishers.handle());
    std::thread::sleep(Duration::from_secs(3));
    let (before, start) = (cpu("feeds"), Instant::now());
    let taken = stats.reports()[0].1;
    let busy = times();
    std::thread::sleep(MEASURED.saturating_sub(start.elapsed()));
    let (seconds, reports) = (start.elapsed().as_secs_f64(), stats.reports()[0].1 - taken);
    let used = cpu("feeds") - before;
    // The reports count for seconds yet; nothing arrives any more.
    drop(publishing);
    std::thread::sleep(Duration::from_secs(1));
    let after = times();
    println!("| reports/s | feed thread, % of a core | µs per report |");
    println!("| --- | --- | --- |");
    println!(
        "| {:.0} | {:.1} | {:.2} |",
        reports as f64 / seconds,
        100.0 * used / seconds,
        1e6 * used / reports as f64
    );
    println!("| pick among 1000, ns | power_of_two | load_based |");
    println!("| --- | --- | --- |");
    println!("| nothing published | {} | {} |", silent[0], silent[1]);
    println!("| while publishing | {} | {} |", busy[0], busy[1]);
    println!("| just after | {} | {} |", after[0], after[1]);
}
