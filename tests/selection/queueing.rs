//! What policies do to queue time, on a fleet of unequal engines. The full table is in
//! `benches/queueing.rs`; this holds its order.

use sgl_edge::policies::{PolicyParams, PowerOfTwoParams};

use crate::support::simulation::{Chooser, QueueTime, Scenario, simulate};

async fn run(load: f64, chooser: Chooser) -> QueueTime {
    let scenario = Scenario {
        engines: 24,
        requests: 6000,
        load,
        chooser,
    };
    simulate(scenario).await
}

#[tokio::test(start_paused = true)]
async fn load_based_is_close_to_perfect_knowledge_and_random_is_far_from_it() {
    let two = PolicyParams::PowerOfTwo(PowerOfTwoParams::default());
    for load in [0.6, 0.8] {
        let random = run(load, Chooser::Policy(PolicyParams::Random)).await;
        let pair = run(load, Chooser::Policy(two)).await;
        let least = run(load, Chooser::Policy(PolicyParams::LeastLoad)).await;
        let best = run(load, Chooser::Shortest).await;
        let row =
            format!("{load}: random {random:?}, two {pair:?}, least {least:?}, best {best:?}");
        assert!(least.p99 <= best.p99 * 1.25 + 0.1, "{row}");
        assert!(pair.p99 < random.p99 * 0.7, "{row}");
        assert!(least.p99 < pair.p99, "{row}");
        assert!(least.p50 <= pair.p50 && pair.p50 <= random.p50, "{row}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_reports_load_based_works_on_what_this_router_holds() {
    let blind = run(0.8, Chooser::Blind(PolicyParams::LeastLoad)).await;
    let random = run(0.8, Chooser::Blind(PolicyParams::Random)).await;
    assert!(blind.p99 < random.p99 * 0.5, "{blind:?} {random:?}");
}
