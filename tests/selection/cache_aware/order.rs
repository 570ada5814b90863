//! Random fleets: the answer is an engine that was offered, whatever the reports; the order of hits
//! is total; and a set order agrees with itself.

use std::cmp::Ordering;
use std::fmt::Write as _;

use rand::Rng;
use sgl_edge::ids::Stage;
use sgl_edge::policies::{AdmissionLimits, CacheAwareParams, Pressure, PressureSource};

use super::fleet::Fleet;
use crate::support::seed::rng;

fn fleet(rng: &mut impl Rng) -> String {
    let mut text = String::new();
    for at in 0..rng.random_range(2..40) {
        let depth = rng.random_range(0..4) * 40;
        let (waiting, tokens) = (rng.random_range(0..6), rng.random_range(0..3) * 1500);
        let report = match rng.random_range(0..10) {
            0 => "stale".to_owned(),
            1 => format!("basic w{waiting}"),
            2..6 => format!("w{waiting} t{tokens} m{}", rng.random_range(0..3) * 300),
            _ => format!("w{waiting} t{tokens}"),
        };
        let separator = if at == 0 { "" } else { ";" };
        let inflight = rng.random_range(0..3);
        write!(text, "{separator}E{at:02} d{depth} i{inflight} {report}").expect("a string");
    }
    text
}

#[test]
fn random_fleets_are_served_and_ordered_by_work() {
    let mut rng = rng();
    for _ in 0..300 {
        let text = fleet(&mut rng);
        let limit = rng.random_range(1..6);
        let params = CacheAwareParams {
            worker_queue_limit: rng.random_bool(0.7).then_some(limit),
            saturation_queue_floor: None,
            ..CacheAwareParams::default()
        };
        let floor = (params.worker_queue_limit.is_some() && rng.random_bool(0.5)).then_some(1);
        let params = CacheAwareParams {
            saturation_queue_floor: floor,
            ..params
        };
        let fleet = Fleet::usual(&text);
        let outcome = fleet.pick(params, AdmissionLimits::default());
        // Formatting checks that the pick belongs to the pool of its fallback.
        let shown = outcome.to_string();
        let pick = outcome.result.expect("no cap refuses anybody");
        assert!(
            fleet
                .engines
                .iter()
                .any(|engine| engine.id() == pick.engine.id()),
            "{shown}"
        );
        let seen = outcome.seen.unwrap();
        let work: Vec<u64> = seen.hits.iter().map(|hit| hit.uncached_tokens).collect();
        assert!(work.is_sorted(), "{text}: {work:?}");
        assert_eq!(
            seen.kept,
            seen.hits.len().min(params.candidates(fleet.engines.len()))
        );
        assert_eq!(seen.evaluated.len() + seen.gated.len(), seen.kept);
    }
}

/// Antisymmetric and transitive over every three members, for every stage.
#[test]
fn the_order_of_a_set_is_total_whatever_is_missing() {
    let mut rng = rng();
    for _ in 0..60 {
        let fleet = Fleet::usual(&fleet(&mut rng));
        let snapshot = fleet
            .services
            .loads
            .capture(fleet.engines.iter().map(|engine| engine.id()));
        let members: Vec<Pressure<'_>> = fleet
            .engines
            .iter()
            .take(8)
            .map(|engine| Pressure::observe(engine, &snapshot))
            .collect();
        for stage in [Stage::Plain, Stage::Prefill, Stage::Decode] {
            let source = PressureSource::of(stage, &members);
            let compare = |a: &Pressure<'_>, b: &Pressure<'_>| source.compare(stage, a, b);
            for a in &members {
                for b in &members {
                    assert_eq!(compare(a, b), compare(b, a).reverse());
                    for c in &members {
                        let chain = [compare(a, b), compare(b, c)];
                        if chain.iter().all(|step| *step != Ordering::Greater) {
                            assert_ne!(compare(a, c), Ordering::Greater);
                        }
                    }
                }
            }
        }
    }
}
