//! Queue time per policy at 60, 80 and 95 % load: 300 engines of unequal speed on a virtual clock.
//!
//! Prints a table; the numbers are simulated seconds (a request of mean size takes one second on
//! an engine of speed 1), so the machine does not matter. Quoted in `benches/README.md`.

#[path = "../tests/support/simulation.rs"]
mod simulation;

use sgl_edge::policies::{PolicyParams, PowerOfTwoParams};
use simulation::{Chooser, Scenario, simulate};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let two = PolicyParams::PowerOfTwo(PowerOfTwoParams::default());
    let rows = [
        ("random", Chooser::Policy(PolicyParams::Random)),
        ("round_robin", Chooser::Policy(PolicyParams::RoundRobin)),
        ("power_of_two, in-flight only", Chooser::Blind(two)),
        ("power_of_two", Chooser::Policy(two)),
        (
            "load_based, in-flight only",
            Chooser::Blind(PolicyParams::LeastLoad),
        ),
        ("load_based", Chooser::Policy(PolicyParams::LeastLoad)),
        ("shortest queue, perfect knowledge", Chooser::Shortest),
    ];
    println!("| policy | 60 % p50 / p99 | 80 % p50 / p99 | 95 % p50 / p99 |");
    println!("| --- | --- | --- | --- |");
    for (name, chooser) in rows {
        let cells = [0.6, 0.8, 0.95].map(|load| {
            let scenario = Scenario {
                engines: 300,
                requests: 60_000,
                load,
                chooser,
            };
            let time = runtime.block_on(simulate(scenario));
            format!("{:.2} / {:.2}", time.p50, time.p99)
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
}
