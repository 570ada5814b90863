//! One pick per policy at 4 to 1024 engines, through the bucket: candidate filtering, the policy,
//! admission and the identity check, as a request pays for them; and the growth of the whole bucket
//! loop of a prepared request up to 8,192 engines and 64 buckets, with load reports of every engine.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;
use std::sync::Arc;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue};
use sgl_edge::buckets::{
    Bucket, BucketGroups, BucketPick, BucketRequest, EngineGroup, TokenLimits,
};
use sgl_edge::config;
use sgl_edge::ids::{ModelId, Stage};
use sgl_edge::kv::{BlockFormat, BlockUnit, KvEvent, Medium, Tier, block_hashes};
use sgl_edge::policies::{
    self, AdmissionLimits, PolicyParams, PolicyServices, PowerOfTwoParams, Reason,
};
use sgl_edge::server::metrics::Metrics;
use sgl_edge::server::pool::WorkPool;
use sgl_edge::server::prepare::{Counting, Prepared, prepare};
use sgl_edge::server::routing::Routing;
use sgl_edge::server::select::select;
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::state::{EngineLoad, EngineLoadTable};
use sgl_edge::workers::{BreakerParams, EngineUrl, WorkerRegistry, WorkerSpec};

static NO_PREFIX: PrefixMemo<'static> = PrefixMemo::none();

fn url(engine: usize) -> String {
    format!("http://10.0.{}.{}:30000", engine / 256, engine % 256)
}

fn registry(engines: usize) -> WorkerRegistry {
    let specs = (0..engines).map(|n| WorkerSpec {
        id: format!("e{n:04}").into(),
        url: EngineUrl::parse(&url(n)).expect("a valid url"),
        model: "m".into(),
        role: Stage::Plain,
        bootstrap_port: None,
    });
    WorkerRegistry::try_new(specs.collect(), Some(BreakerParams::default()), None)
        .expect("distinct ids, one role")
}

fn pick(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let caps = AdmissionLimits {
        max_inflight_requests: Some(64),
        ..AdmissionLimits::default()
    };
    let policies = [
        PolicyParams::RoundRobin,
        PolicyParams::Random,
        PolicyParams::PowerOfTwo(PowerOfTwoParams::default()),
        // Bound after the first pick.
        PolicyParams::SessionAware,
    ];
    let model = ModelId::from("m");
    let mut group = c.benchmark_group("pick");
    for engines in [4, 16, 64, 256, 1024] {
        let workers = registry(engines);
        for (label, admission) in [("open", AdmissionLimits::default()), ("caps", caps)] {
            for params in &policies {
                let services = PolicyServices::new(Arc::default());
                let policy = policies::build(params, admission, &model, &services);
                let groups = BucketGroups::Plain(EngineGroup::new(policy));
                let bucket = Bucket::new("b".into(), 0, TokenLimits::default(), groups);
                let request = BucketRequest {
                    model: &model,
                    input_tokens: 1000,
                    expected_peak_tokens: Some(1500),
                    token_ids: None,
                    session_key: Some("0f8fad5b-d9cb-469f-a165-70867728950e"),
                    routing_key: None,
                    prefix: &NO_PREFIX,
                    explain: None,
                };
                let id = BenchmarkId::new(format!("{}/{label}", params.kind()), engines);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let pick = bucket.pick_engines(&workers, black_box(&request));
                        runtime.block_on(pick).expect("engines are there")
                    });
                });
            }
        }
    }
    group.finish();
}

/// Tokens of the prompt of the growth bench.
const PROMPT: u32 = 1024;

/// Engines that hold its beginning.
const HOLDERS: usize = 8;

/// A model in a file: `buckets` buckets with every engine in each, of which only the last holds the
/// prompt.
fn yaml(engines: usize, buckets: usize, policy: &str) -> String {
    let group = format!("groups: {{plain: {{policy: {{type: {policy}}}}}}}");
    let mut text = "models:\n  - id: m\n    buckets:\n".to_owned();
    for small in 1..buckets {
        text += &format!("      - {{id: b{small}, limits: {{max: {small}}}, {group}}}\n");
    }
    text += &format!("      - {{id: last, {group}}}\n    engines:\n      static:\n");
    for engine in 0..engines {
        let url = url(engine);
        text += &format!("        - {{id: e{engine:04}, url: \"{url}\", role: plain}}\n");
    }
    text
}

/// Reports of every engine, which never age.
fn loads(engines: usize) -> Arc<EngineLoadTable> {
    let now = tokio::time::Instant::now();
    let table = EngineLoadTable::frozen(now);
    for engine in 0..engines {
        let load = EngineLoad {
            running_requests: engine as u64 % 7,
            waiting_requests: engine as u64 % 3,
            used_tokens: 1000,
            max_total_tokens: 1_000_000,
            native: None,
            captured_at: now,
        };
        table.publish(&format!("e{engine:04}").into(), load);
    }
    Arc::new(table)
}

/// Makes some engines hold the whole prompt.
fn hold(services: &PolicyServices, ids: &[u32]) {
    let format = BlockFormat::new(64, BlockUnit::Unigram).expect("a size above 0");
    let prefixes = services.prefixes.of(&"m".into());
    for engine in 0..HOLDERS {
        let event = KvEvent::Stored {
            hashes: block_hashes(ids, format, None),
            parent: None,
            block_size: 64,
            medium: Medium::Known(Tier::Device),
        };
        prefixes.announce(&url(engine), format);
        prefixes.apply(&url(engine), 0, &[event]);
    }
}

/// A request of [`PROMPT`] tokens with a session.
async fn request(routing: &Routing, pool: &WorkPool, metrics: &Arc<Metrics>) -> Prepared {
    let ids: Vec<String> = (0..PROMPT).map(|id| id.to_string()).collect();
    let body = format!(r#"{{"model":"m","input_ids":[{}]}}"#, ids.join(","));
    let session = HeaderValue::from_static("0f8fad5b-d9cb-469f-a165-70867728950e");
    let headers = HeaderMap::from_iter([(http::HeaderName::from_static("x-session-id"), session)]);
    let counting = Counting::AsNeeded;
    let prepared = prepare(routing, pool, metrics, &headers, body.into(), counting).await;
    prepared.expect("a valid request")
}

fn growth(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (pool, metrics) = (WorkPool::new(1), Arc::<Metrics>::default());
    let ids: Vec<u32> = (0..PROMPT).collect();
    let mut group = c.benchmark_group("bucket loop");
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for engines in [64, 1024, 8192] {
        let loads = loads(engines);
        for buckets in [1, 8, 64] {
            for policy in ["power_of_two", "session_aware", "load_based", "cache_aware"] {
                let config = config::parse(&yaml(engines, buckets, policy), "bench.yaml");
                let config = Arc::new(config.expect("a valid configuration"));
                let services = PolicyServices::new(Arc::clone(&loads));
                hold(&services, &ids);
                let routing = Routing::build(config, &services, None).expect("it can be built");
                let prepared = runtime.block_on(request(&routing, &pool, &metrics));
                let pick = || {
                    let selection = select(black_box(&prepared), &routing.workers, &metrics);
                    runtime.block_on(selection).expect("engines are there")
                };
                // Binds the session; what follows takes the usual way of the policy.
                pick();
                let (BucketPick::Plain(seen) | BucketPick::Pd { prefill: seen, .. }) = pick().pick;
                let usual = match policy {
                    "power_of_two" => Reason::PowerOfTwo,
                    "session_aware" => Reason::SessionPrimary,
                    "load_based" => Reason::LeastLoad,
                    _ => Reason::CacheCandidate,
                };
                assert_eq!(seen.reason, usual, "{policy}");
                let id = BenchmarkId::new(format!("{policy}/{buckets} buckets"), engines);
                group.bench_function(id, |b| b.iter(pick));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, pick, growth);
criterion_main!(benches);
