//! Prompts to ids: the plain Hugging Face crate against what the router does, in one run.
//!
//! `cold` texts were never seen before: every iteration gets another one (words permuted by its
//! number), `decomposed` ones have letters and marks apart, which a normalizer has to join. `turn` is the
//! prepare step (parse, render, encode) of a conversation's N-th turn after its turns before, and the
//! plain crate's encoding of such a prompt; conversations are made of the messages of
//! `tests/fixtures/tokenizer/cases.jsonl`. `worst` are bodies of the largest size that is encoded on an
//! event loop.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use serde_json::{Value, json};
use sgl_edge::tokenizer::Tokenizer;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn folder() -> PathBuf {
    let named = std::env::var_os("SGL_EDGE_TOKENIZERS");
    named.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tokenizers"),
        PathBuf::from,
    )
}

/// The tokenizers at hand: the shipped one, and those that `fetch.sh` has fetched.
fn tokenizers() -> Vec<(String, PathBuf)> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo");
    let fetched = ["llama3_1", "deepseek_v3", "llama2", "gemma3"]
        .map(|name| (name.to_owned(), folder().join(name)));
    let fetched = fetched.into_iter().filter(|(_, path)| path.is_dir());
    std::iter::once(("qwen3".to_owned(), demo))
        .chain(fetched)
        .collect()
}

/// As it is seconds after its start.
fn load(path: &Path) -> Tokenizer {
    let tokenizer = Tokenizer::load(path).expect("loads");
    tokenizer.settle();
    tokenizer
}

fn plain(path: &Path) -> tokenizers::Tokenizer {
    let mut plain = tokenizers::Tokenizer::from_file(path.join("tokenizer.json")).expect("loads");
    plain.with_padding(None);
    plain.with_truncation(None).expect("unset");
    plain
}

/// The texts of real conversations, in order, without those that a normalizer changes.
fn messages() -> Vec<String> {
    let changed = |c: char| matches!(u32::from(c), 0x300..0x370 | 0x93c | 0x958..0x960);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/cases.jsonl");
    let lines = std::fs::read_to_string(file).expect("readable");
    let requests = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let texts = requests.flat_map(|case| {
        let messages = case["request"]["messages"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        messages
            .into_iter()
            .filter_map(|message| message["content"].as_str().map(str::to_owned))
    });
    texts
        .filter(|text| (200..20_000).contains(&text.len()) && !text.contains(changed))
        .collect()
}

/// `bytes` bytes of real text, another one for every `number`.
fn text(messages: &[String], bytes: usize, number: usize) -> String {
    let mut words: Vec<&str> = messages
        .iter()
        .flat_map(|message| message.split_inclusive(' '))
        .collect();
    let by = (number * 7_919) % words.len();
    words.rotate_left(by);
    let stride = 1 + number % 3;
    let mut text = String::with_capacity(bytes + 64);
    for word in words.iter().cycle().step_by(stride) {
        if text.len() >= bytes {
            break;
        }
        text.push_str(word);
    }
    let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

fn chat(content: &str) -> Vec<u8> {
    json!({"model": "m", "messages": [{"role": "user", "content": content}]})
        .to_string()
        .into_bytes()
}

const SIZES: [usize; 5] = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];

fn cold(c: &mut Criterion) {
    let messages = messages();
    for (name, path) in tokenizers() {
        let (plain, tokenizer) = (plain(&path), load(&path));
        let mut group = brief(c, format!("cold/{name}"));
        for size in SIZES {
            let mut number = 0;
            let mut next = || {
                number += 1;
                text(&messages, size, number)
            };
            group.throughput(Throughput::Bytes(size as u64));
            beside(&mut group, size, &plain, &tokenizer, &mut next);
            if tokenizer.template().is_some() {
                group.bench_function(BenchmarkId::new("prepare_chat", size), |b| {
                    let next = || chat(&next());
                    let work = |body: Vec<u8>| tokenizer.encode_chat(&body);
                    b.iter_batched(next, work, BatchSize::PerIteration);
                });
            }
        }
        group.finish();
        let mut group = brief(c, format!("decomposed/{name}"));
        let decomposed: Vec<String> = messages
            .iter()
            .map(|text| text.replace(['a', 'e'], "e\u{301}"))
            .collect();
        let mut number = 0;
        let mut next = || {
            number += 1;
            text(&decomposed, 64 << 10, number)
        };
        group.throughput(Throughput::Bytes(64 << 10));
        beside(&mut group, 64 << 10, &plain, &tokenizer, &mut next);
        group.finish();
    }
}

/// A group of few samples: inputs are made one by one, and that takes longer than the work.
fn brief(c: &mut Criterion, name: String) -> BenchmarkGroup<'_, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1));
    group
}

/// Texts of `size` bytes through the plain crate and through the router.
fn beside(
    group: &mut BenchmarkGroup<'_, WallTime>,
    size: usize,
    plain: &tokenizers::Tokenizer,
    tokenizer: &Tokenizer,
    next: &mut dyn FnMut() -> String,
) {
    group.bench_function(BenchmarkId::new("plain_crate", size), |b| {
        let work = |text: String| plain.encode_fast(text.as_str(), false);
        b.iter_batched(&mut *next, work, BatchSize::PerIteration);
    });
    group.bench_function(BenchmarkId::new("encode_text", size), |b| {
        let work = |text: String| tokenizer.encode_text(&text, false);
        b.iter_batched(&mut *next, work, BatchSize::PerIteration);
    });
}

/// Bodies of the turns 1, 3, 5, … 39 of one conversation of about 60,000 tokens.
fn conversation(messages: &[String], number: usize) -> Vec<Vec<u8>> {
    let mut turns: Vec<Value> = Vec::new();
    let mut bodies = Vec::new();
    for turn in 0..39 {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        let content = format!(
            "{number} {turn} {}",
            text(messages, 6_600, number * 64 + turn)
        );
        turns.push(json!({"role": role, "content": content}));
        if role == "user" {
            bodies.push(
                json!({"model": "m", "messages": turns})
                    .to_string()
                    .into_bytes(),
            );
        }
    }
    bodies
}

fn turns(c: &mut Criterion) {
    let messages = messages();
    for (name, path) in tokenizers() {
        let (plain, tokenizer) = (plain(&path), load(&path));
        let Some(template) = tokenizer.template() else {
            continue;
        };
        let mut group = brief(c, format!("turn/{name}"));
        let mut number = 0;
        let mut next = || {
            number += 1;
            conversation(&messages, number)
        };
        group.bench_function("plain_crate/20", |b| {
            let next = || template.render(&next()[19]).expect("rendered").text;
            let work = |text: String| plain.encode_fast(text.as_str(), false);
            b.iter_batched(next, work, BatchSize::PerIteration);
        });
        group.bench_function("plain_crate_without_memory/20", |b| {
            // A copy has no words in its cache.
            let next = || {
                let text = template.render(&next()[19]).expect("rendered").text;
                (plain.clone(), text)
            };
            let work = |(plain, text): (tokenizers::Tokenizer, String)| {
                let ids = plain.encode_fast(text.as_str(), false);
                (plain, text, ids)
            };
            b.iter_batched(next, work, BatchSize::PerIteration);
        });
        for turn in [2, 5, 10, 20] {
            // Turns before were prepared, this one was not.
            let mut next_turn = || {
                let mut bodies = next();
                bodies.truncate(turn);
                let last = bodies.pop().expect("a turn");
                for body in bodies {
                    tokenizer.encode_chat(&body).expect("ids");
                }
                last
            };
            group.bench_function(BenchmarkId::new("prepare_chat", turn), |b| {
                let work = |body: Vec<u8>| tokenizer.encode_chat(&body);
                b.iter_batched(&mut next_turn, work, BatchSize::PerIteration);
            });
        }
        group.finish();
    }
}

/// What a stranger can put into a body that is short enough for an event loop.
fn worst(c: &mut Criterion) {
    let messages = messages();
    for (name, path) in tokenizers() {
        let tokenizer = load(&path);
        if tokenizer.template().is_none() {
            continue;
        }
        let mut group = c.benchmark_group(format!("worst/{name}"));
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(1));
        let room = (16 << 10) - 80;
        let many = r#"{"role":"user","content":""},"#.repeat(room / 29);
        let nested = "[".repeat(120) + &"]".repeat(120);
        let tokens = "<|im_start|>".repeat(room / 12);
        let bodies = [
            // Line ends and quotes take two bytes in the body.
            ("text", chat(&text(&messages, room * 9 / 10, 3))),
            ("one_letter", chat(&"a".repeat(room))),
            ("marks", chat(&"a\u{301}\u{323}".repeat(room / 5))),
            ("digits", chat(&"7".repeat(room))),
            ("special_tokens", chat(&tokens)),
            ("blanks", chat(&" ".repeat(room))),
            (
                "many_messages",
                format!(
                    r#"{{"model":"m","messages":[{}]}}"#,
                    many.trim_end_matches(',')
                )
                .into_bytes(),
            ),
            (
                "nested_lists",
                format!(
                    r#"{{"model":"m","messages":[{}]}}"#,
                    vec![nested; 15].join(",")
                )
                .into_bytes(),
            ),
        ];
        for (what, body) in bodies {
            group.bench_function(what, |b| {
                b.iter(|| tokenizer.encode_briefly(black_box(&body), |_| false))
            });
        }
        group.finish();
    }
}

criterion_group!(benches, cold, turns, worst);
criterion_main!(benches);
