//! Body preparation by size: the routing pass over the JSON, the scan for its end, tokenizing with
//! the shipped tokenizer, and the bootstrap splice.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;
use std::path::Path;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sgl_edge::ids::Stage;
use sgl_edge::server::{bootstrap, chat_body, json_end::JsonEnd};
use sgl_edge::tokenizer::Tokenizer;
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

fn tokenize(c: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo");
    let tokenizer = Tokenizer::load(&path).expect("the shipped tokenizer");
    let mut group = c.benchmark_group("tokenize");
    group.sample_size(10);
    for size in [300, 8 << 10, 64 << 10] {
        let body = body(size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::new("encode_chat", size), &body, |b, body| {
            b.iter(|| tokenizer.encode_chat(black_box(body)).expect("a chat"));
        });
    }
    group.finish();
}

criterion_group!(benches, prepare, tokenize);
criterion_main!(benches);
