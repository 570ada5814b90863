//! The prefix index at the sizes of real fleets: storing, looking up quietly and beside a stream of
//! 100,000 events a second, and what a block costs in memory; and the hashing before it.
//!
//! Prompts share 16 blocks and have their own after that, so a lookup meets every engine and then
//! one. Building an index of 50 million blocks takes half a minute and 1.6 GB:
//! `PREFIX_BENCH_BLOCKS=1000000` bounds the size.

#![expect(
    missing_docs,
    reason = "criterion's macros write functions without docs"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use sgl_edge::kv::{BlockFormat, BlockUnit, KvEvent, Medium, Tier, block_hashes};
use sgl_edge::state::prefix::{BlockNames, PrefixIndex};

const SHARED: usize = 16;
const EVENTS_A_SECOND: f64 = 100_000.0;

fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Names of a prompt's blocks: chained, so that one name stands for its prefix.
fn names(prompt: u64, blocks: usize) -> Vec<i64> {
    let mut prior = 0;
    let chain = (0..blocks as u64).map(|block| {
        let own = if block < SHARED as u64 {
            block
        } else {
            mix(prompt + 1000) ^ block
        };
        prior = mix(prior ^ own);
        prior.cast_signed()
    });
    chain.collect()
}

fn url(engine: u64) -> String {
    format!("http://10.0.{}.{}:30000", engine / 256, engine % 256)
}

fn stored(names: &[i64], from: usize) -> KvEvent {
    KvEvent::Stored {
        hashes: names[from..].to_vec(),
        parent: from.checked_sub(1).map(|before| names[before]),
        block_size: 64,
        medium: Medium::Known(Tier::Device),
    }
}

struct Filled {
    index: Arc<PrefixIndex>,
    engines: u64,
    queries: Vec<Vec<i64>>,
}

/// An index of about `blocks` blocks from prompts of `length` blocks.
fn fill(blocks: usize, engines: u64, length: usize) -> Filled {
    let index = Arc::new(PrefixIndex::default());
    let prompts = (blocks / (length - SHARED)) as u64;
    let started = Instant::now();
    for prompt in 0..prompts {
        let names = names(prompt, length);
        index.apply(&url(prompt % engines), 0, 64, &[stored(&names, 0)]);
    }
    let size = index.size();
    println!(
        "{} blocks, {engines} engines, prompts of {length}: stored in {:.0} ns a block, {:.1} bytes a block and owner",
        size.blocks,
        started.elapsed().as_secs_f64() * 1e9 / size.blocks as f64,
        size.bytes as f64 / size.holdings as f64,
    );
    let sample = prompts.min(4096);
    let queries = (0..sample).map(|at| names(at * (prompts / sample), length));
    Filled {
        index,
        engines,
        queries: queries.collect(),
    }
}

/// Stores and removes one block after the shared ones, again and again, at the full rate.
fn stream(filled: &Filled, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (index, engines) = (Arc::clone(&filled.index), filled.engines);
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let started = Instant::now();
        let mut sent = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let due = started.elapsed().as_secs_f64() * EVENTS_A_SECOND;
            while (sent as f64) < due {
                let prompt = (1 << 40) | (sent / 2);
                let names = names(prompt, SHARED + 1);
                let event = match sent % 2 {
                    0 => stored(&names, SHARED),
                    _ => KvEvent::Removed {
                        hashes: names[SHARED..].to_vec(),
                        medium: Medium::Known(Tier::Device),
                    },
                };
                index.apply(&url(prompt % engines), 0, 64, &[event]);
                sent += 1;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    })
}

fn lookups(c: &mut Criterion) {
    let most = std::env::var("PREFIX_BENCH_BLOCKS").ok();
    let most = most
        .and_then(|text| text.parse().ok())
        .unwrap_or(50_000_000);
    let mut group = c.benchmark_group("prefix lookup");
    for blocks in [1_000_000, 10_000_000, 50_000_000] {
        for engines in [4, 64, 512] {
            for length in [64, 256] {
                if blocks > most {
                    continue;
                }
                let filled = fill(blocks, engines, length);
                for busy in [false, true] {
                    let stop = Arc::new(AtomicBool::new(false));
                    let writer = busy.then(|| stream(&filled, &stop));
                    let label = if busy { "under events" } else { "quiet" };
                    let id = BenchmarkId::new(
                        format!("{length} blocks, {engines} engines, {label}"),
                        blocks,
                    );
                    let mut turn = 1;
                    group.bench_function(id, |b| {
                        b.iter(|| {
                            turn = mix(turn);
                            let at = turn % filled.queries.len() as u64;
                            let at = usize::try_from(at).unwrap_or(0);
                            black_box(filled.index.lookup(&filled.queries[at]).by_engine())
                        });
                    });
                    stop.store(true, Ordering::Relaxed);
                    if let Some(writer) = writer {
                        writer.join().expect("the event stream");
                    }
                }
            }
        }
    }
    group.finish();
}

fn hashing(c: &mut Criterion) {
    // For the first call, which hashes a long prompt on another thread.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let mut group = c.benchmark_group("block hashes");
    for tokens in [4096_u32, 100_000] {
        let ids: Vec<u32> = (0..tokens).map(|at| at * 7 % 65_000).collect();
        for size in [1, 16, 64] {
            let format = BlockFormat::new(size, BlockUnit::Unigram).expect("a size above 0");
            let id = BenchmarkId::new(format!("blocks of {size}"), tokens);
            group.bench_function(id, |b| {
                b.iter(|| block_hashes(black_box(&ids), format, None))
            });
            let names = BlockNames::default();
            let id = BenchmarkId::new(format!("named before, blocks of {size}"), tokens);
            group.bench_function(id, |b| {
                b.iter(|| runtime.block_on(names.of(black_box(&ids), format, None)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, hashing, lookups);
criterion_main!(benches);
