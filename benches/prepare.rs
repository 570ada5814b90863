//! Body preparation by size: the routing pass over the JSON, the scan for its end, and the bootstrap
//! splice. Tokenizing has a file of its own.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sgl_edge::ids::Stage;
use sgl_edge::server::{bootstrap, chat_body, json_end::JsonEnd};
use sgl_edge::workers::{EngineUrl, Worker, WorkerSpec};

const TEXT: &str = "All human beings are born free and equal in dignity and rights. They are \
endowed with reason and conscience and should act towards one another in a spirit of brotherhood. ";

fn body(bytes: usize) -> Bytes {
    let head = r#"{"model":"m","max_tokens":100,"messages":[{"role":"user","content":""#;
    let tail = r#""}],"stream":true}"#;
    let text = TEXT.repeat(bytes / TEXT.len() + 1);
    let room = bytes.saturating_sub(head.len() + tail.len());
    format!("{head}{}{tail}", &text[..room]).into()
}

fn prepare(c: &mut Criterion) {
    let spec = WorkerSpec {
        id: "p".into(),
        url: EngineUrl::parse("http://10.0.0.1:30000").expect("a valid url"),
        model: "m".into(),
        role: Stage::Prefill,
        bootstrap_port: Some(8998),
    };
    let prefill = Worker::new(spec, None);
    let mut group = c.benchmark_group("prepare");
    for size in [300, 8 << 10, 64 << 10, 1 << 20] {
        let body = body(size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(
            BenchmarkId::new("routing_fields", size),
            &body,
            |b, body| {
                b.iter(|| chat_body::parse(black_box(body)).expect("a valid body"));
            },
        );
        group.bench_with_input(BenchmarkId::new("json_end", size), &body, |b, body| {
            b.iter(|| JsonEnd::default().closes_in(black_box(body)));
        });
        group.bench_with_input(BenchmarkId::new("bootstrap", size), &body, |b, body| {
            b.iter(|| bootstrap::with_bootstrap(black_box(body), &prefill, 7));
        });
    }
    group.finish();
}

criterion_group!(benches, prepare);
criterion_main!(benches);
