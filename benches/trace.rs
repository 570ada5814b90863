//! Hit rate and time to first token per policy on a published conversation trace: simulated
//! engines with prefix caches on a virtual clock.
//!
//! Prints a table; nothing in it depends on the machine. Quoted in `benches/README.md`.

#[path = "../tests/support/trace/mod.rs"]
mod trace;

use sgl_edge::policies::{CacheAwareParams, PolicyParams, PowerOfTwoParams};
use trace::{Chooser, Scenario, replay};

/// KV tokens of an engine.
const CAPACITIES: [u64; 3] = [250_000, 1_000_000, 4_000_000];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let policy = |params| Chooser::Policy(params);
    let two = PolicyParams::PowerOfTwo(PowerOfTwoParams::default());
    let aware = PolicyParams::CacheAware(CacheAwareParams::default());
    let rows = [
        ("`random`", policy(PolicyParams::Random)),
        ("`round_robin`", policy(PolicyParams::RoundRobin)),
        ("`power_of_two`", policy(two)),
        ("`load_based`", policy(PolicyParams::LeastLoad)),
        ("`cache_aware`", policy(aware)),
        ("best possible", Chooser::Perfect),
    ];
    let head = CAPACITIES.map(|tokens| format!("{} k: hits, TTFT p50 / p99, s", tokens / 1000));
    println!("| policy | {} |", head.join(" | "));
    println!("| --- | --- | --- | --- |");
    for (name, chooser) in rows {
        let cells = CAPACITIES.map(|capacity| {
            let scenario = Scenario {
                requests: usize::MAX,
                engines: 8,
                capacity,
                chooser,
            };
            let outcome = runtime.block_on(replay(scenario));
            let hits = 100.0 * outcome.hit_rate;
            format!("{hits:.1} %, {:.2} / {:.2}", outcome.p50, outcome.p99)
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
}
