//! One pick per policy at 4 to 1024 engines, through the bucket: candidate filtering, the policy,
//! admission and the identity check, as a request pays for them.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use sgl_edge::buckets::{Bucket, BucketGroups, BucketRequest, EngineGroup, TokenLimits};
use sgl_edge::ids::{ModelId, Stage};
use sgl_edge::policies::{self, AdmissionLimits, PolicyParams, PolicyServices, PowerOfTwoParams};
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::workers::{BreakerParams, EngineUrl, WorkerRegistry, WorkerSpec};

static NO_PREFIX: PrefixMemo<'static> = PrefixMemo::none();

fn registry(engines: usize) -> WorkerRegistry {
    let specs = (0..engines).map(|n| WorkerSpec {
        id: format!("e{n:04}").into(),
        url: EngineUrl::parse(&format!("http://10.0.{}.{}:30000", n / 256, n % 256))
            .expect("a valid url"),
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

criterion_group!(benches, pick);
criterion_main!(benches);
