//! Memory of one tokenizer over an hour of a chat service, as fast as it goes.
//!
//! `SGL_EDGE_TRACE` names a trace in Mooncake's form (a line is `{"timestamp": ms, "input_length": tokens,
//! "hash_ids": [..]}`, equal leading ids share a prefix); it is repeated with other texts until an hour
//! is full. Without it an hour of the same shape is made up. Each id stands for a message of about 512
//! tokens. Every tenth request, or as many of a hundred as `SGL_EDGE_NOISE` says, is noise: words that
//! nobody has used before, which is what fills the encoder's own tables. Work is spread over as many threads as a machine of 16 cores would have.
//!
//! Prints every ten minutes of the trace: what is remembered, and by how much the process has grown.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use serde_json::{Value, json};
use sgl_edge::tokenizer::Tokenizer;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HOUR_MS: u64 = 3_600_000;
const THREADS: usize = 16;

struct Request {
    at_ms: u64,
    blocks: Vec<u64>,
}

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn hour() -> Vec<Request> {
    let Some(path) = std::env::var_os("SGL_EDGE_TRACE") else {
        return made_up();
    };
    let text = std::fs::read_to_string(path).expect("a readable trace");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let number = |value: &Value| value.as_u64().expect("a number");
    let span = number(&lines[lines.len() - 1]["timestamp"]) + 1;
    let ids = |line: &Value, round: u64| {
        let ids = line["hash_ids"].as_array().expect("a list").iter();
        // Id 0 is a system prompt that everyone shares.
        ids.map(|id| number(id) * (1 + (round << 32))).collect()
    };
    let rounds = 0..HOUR_MS.div_ceil(span);
    let requests = rounds.flat_map(|round| {
        lines.iter().map(move |line| Request {
            at_ms: round * span + number(&line["timestamp"]),
            blocks: ids(line, round),
        })
    });
    requests.filter(|request| request.at_ms < HOUR_MS).collect()
}

/// 200 turns a minute, of conversations that grow by one to six blocks a turn and end with 50 or more.
fn made_up() -> Vec<Request> {
    let mut talks: Vec<Vec<u64>> = vec![vec![0]; 300];
    let mut fresh = 1;
    let requests = (0..12_000_u64).map(|number| {
        let draw = mix(number);
        let talk = &mut talks[(draw % 300) as usize];
        if talk.len() > 50 + (draw >> 32) as usize % 100 {
            talk.truncate(1);
        }
        for _ in 0..=(draw >> 40) % 6 {
            talk.push(fresh);
            fresh += 1;
        }
        Request {
            at_ms: number * 300,
            blocks: talk.clone(),
        }
    });
    requests.collect()
}

/// About 512 tokens of text, the same for the same id.
fn message(id: u64, words: &[&str]) -> String {
    let mut text = format!("{id} ");
    for place in 0..400 {
        text.push_str(words[(mix(id ^ place << 40) % words.len() as u64) as usize]);
    }
    text
}

/// Words of ten letters that have never been used.
fn noise(number: u64) -> String {
    let mut text = String::new();
    for place in 0..4_000 {
        let mut draw = mix(number << 20 | place);
        for _ in 0..10 {
            text.push(char::from(b'a' + (draw % 26) as u8));
            draw /= 26;
        }
        text.push(' ');
    }
    text
}

fn body(request: &Request, words: &[&str]) -> Vec<u8> {
    let messages = request.blocks.iter().enumerate().map(|(place, id)| {
        let role = if place % 2 == 0 { "user" } else { "assistant" };
        json!({"role": role, "content": message(*id, words)})
    });
    json!({"messages": messages.collect::<Vec<_>>()})
        .to_string()
        .into_bytes()
}

/// Resident memory of this process, MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a field");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    kib >> 10
}

fn main() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo");
    let path = std::env::var_os("SGL_EDGE_TOKENIZER").map_or(path, Into::into);
    let tokenizer = Tokenizer::load(&path).expect("loads");
    tokenizer.settle();
    let noise_share =
        std::env::var("SGL_EDGE_NOISE").map_or(10, |share| share.parse().expect("0 to 100"));
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/cases.jsonl");
    let cases = std::fs::read_to_string(cases).expect("readable");
    let words: Vec<&str> = cases
        .split_inclusive(' ')
        .filter(|word| word.len() < 12)
        .take(20_000)
        .collect();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(THREADS)
        .build()
        .expect("threads");
    let (requests, started, before) = (hour(), Instant::now(), resident_mib());
    let mut minutes: HashMap<u64, Vec<(usize, &Request)>> = HashMap::new();
    for (number, request) in requests.iter().enumerate() {
        minutes
            .entry(request.at_ms / 60_000)
            .or_default()
            .push((number, request));
    }
    println!(
        "{:?}, {} requests, {THREADS} threads; loaded: {before} MiB",
        tokenizer.backend(),
        requests.len()
    );
    println!("minute  tokens, M  remembered, MiB  hit bytes, %  process grown, MiB");
    let (mut tokens, mut largest) = (0, 0);
    for minute in 0..60 {
        let due = minutes.remove(&minute).unwrap_or_default();
        let encode = |(number, request): &(usize, &Request)| {
            if *number as u64 * noise_share % 100 < noise_share {
                let ids = tokenizer.encode_text(&noise(*number as u64), false);
                return ids.expect("ids").len();
            }
            tokenizer
                .encode_chat(&body(request, &words))
                .expect("ids")
                .ids
                .len()
        };
        tokens += pool.install(|| due.par_iter().map(encode).sum::<usize>());
        let stats = tokenizer.cache_stats();
        largest = largest.max(stats.held_bytes);
        if minute % 10 == 9 {
            let looked = (stats.hit_bytes + stats.miss_bytes).max(1);
            let grown = resident_mib().saturating_sub(before);
            println!(
                "{:6}  {:9}  {:15}  {:12}  {grown:18}",
                minute + 1,
                tokens / 1_000_000,
                stats.held_bytes >> 20,
                stats.hit_bytes * 100 / looked
            );
        }
    }
    println!(
        "most remembered: {:.1} MiB; {:.0} s",
        largest as f64 / (1 << 20) as f64,
        started.elapsed().as_secs_f64()
    );
}
