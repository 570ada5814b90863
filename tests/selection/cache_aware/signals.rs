//! Lookups that answer, do not answer, or refuse; admission calls; counters; stages.

use std::sync::Arc;

use sgl_edge::ids::Stage;
use sgl_edge::policies::explain::IndexAnswer;
use sgl_edge::policies::{AdmissionLimits, CacheAwareParams, CacheAwarePolicy, PickError, Reason};
use sgl_edge::state::prefix::{LookupRejected, PrefixAnswer, Unavailable};

use super::fleet::{FixedSource, Fleet};
use crate::support::fakes::FakeAdmission;

fn usual(fleet: &Fleet) -> super::fleet::Outcome {
    fleet.pick(CacheAwareParams::default(), AdmissionLimits::default())
}

#[test]
fn without_signal_or_index_load_decides_among_all() {
    let mut answers: Vec<_> = Unavailable::ALL
        .iter()
        .map(|why| (PrefixAnswer::Unavailable(*why), IndexAnswer::Unavailable))
        .collect();
    answers.push((PrefixAnswer::NoSignal, IndexAnswer::NoSignal));
    for (answer, index) in answers {
        let mut fleet = Fleet::usual("A d128; B; C");
        fleet.answer = Ok(answer);
        let outcome = usual(&fleet);
        assert_eq!(outcome.to_string(), "miss of A B C");
        assert_eq!(outcome.seen.unwrap().index, index);
    }
}

#[test]
fn a_rejected_query_stops_routing() {
    let mut fleet = Fleet::usual("A d128; B");
    fleet.answer = Err(LookupRejected("bad".to_owned()));
    let outcome = usual(&fleet);
    assert!(matches!(outcome.result, Err(PickError::InvalidSignal(_))));
    assert_eq!(outcome.seen.unwrap().index, IndexAnswer::Rejected);
}

#[test]
fn no_candidates_and_the_wrong_stage_come_before_any_lookup() {
    let fleet = Fleet::usual("A d128");
    let source = FixedSource::new(fleet.answer.clone());
    let services = fleet.services.with_prefix_source(source.clone());
    let admission = Arc::new(AdmissionLimits::default());
    let policy = CacheAwarePolicy::new(CacheAwareParams::default(), admission, &services);
    let decode = fleet.ask(&policy, None, Stage::Decode);
    assert!(matches!(decode, Err(PickError::InvalidConfiguration(_))));
    let mut empty = fleet;
    empty.engines.clear();
    assert_eq!(
        empty.ask(&policy, None, Stage::Plain).unwrap_err(),
        PickError::NoCandidates
    );
    assert!(source.asked.lock().is_empty());
    let prefill = Fleet::usual("A d128").ask(&policy, None, Stage::Prefill);
    assert_eq!(prefill.unwrap().reason, Reason::CacheCandidate);
}

#[test]
fn urls_are_compared_byte_for_byte() {
    let mut fleet = Fleet::usual("A d128; B");
    let holders = [
        "http://10.0.0.1:30000/",
        "HTTP://10.0.0.1:30000",
        "10.0.0.1:30000",
    ];
    let holders = holders.map(|url| (url.into(), 128));
    let matches = sgl_edge::state::prefix::PrefixMatches::new(128, None, holders);
    fleet.answer = Ok(PrefixAnswer::Matches(matches));
    assert_eq!(usual(&fleet).to_string(), "miss of A B");
}

/// Once per evaluated hit, and once for the fallback's winner; twice, because each fleet is asked
/// explained and for real.
#[test]
fn admission_is_asked_once_per_evaluated_hit_or_once_for_the_fallback() {
    let gated = CacheAwareParams {
        worker_queue_limit: Some(4),
        ..CacheAwareParams::default()
    };
    let rows = [
        ("A d128; B d120; C d5; D w9 d100", vec!["A", "B", "A", "B"]),
        ("A; B w9 d100", vec!["A", "A"]),
    ];
    for (text, expected) in rows {
        let admission = FakeAdmission::open();
        Fleet::usual(text).pick_with(gated, admission.clone());
        assert_eq!(admission.asked(), expected, "{text}");
    }
}

#[test]
fn the_pin_asks_the_gated_only_after_the_evaluated() {
    let params = CacheAwareParams {
        worker_queue_limit: Some(4),
        saturation_queue_floor: Some(1),
        ..CacheAwareParams::default()
    };
    let admission = FakeAdmission::refusing(&["N"]);
    let fleet = Fleet::usual("N d120 w3; O d128 w5");
    let outcome = fleet.pick_with(params, admission.clone());
    assert_eq!(outcome.to_string(), "O saturation_pin");
    assert_eq!(admission.asked(), ["N", "O", "N", "O"]);
}

#[test]
fn a_checkers_error_stops_the_pick() {
    let admission = FakeAdmission::new(|_| Err(PickError::InvalidSignal("broken")));
    let outcome = Fleet::usual("A d128").pick_with(CacheAwareParams::default(), admission);
    assert_eq!(
        outcome.result.unwrap_err(),
        PickError::InvalidSignal("broken")
    );
}

#[test]
fn a_miss_says_how_deep_a_prefix_it_gave_up() {
    let gated = CacheAwareParams {
        worker_queue_limit: Some(4),
        ..CacheAwareParams::default()
    };
    for (text, diverted_blocks) in [("O d120 w5; P d50 w6; R", 120), ("R; S", 0)] {
        let pick = Fleet::usual(text).pick(gated, AdmissionLimits::default());
        let reason = pick.result.unwrap().reason;
        assert_eq!(
            reason,
            Reason::NoCacheCandidate { diverted_blocks },
            "{text}"
        );
    }
}

#[test]
fn the_fallback_samples_as_many_as_it_is_told() {
    for (choices, sampled) in [(1, 1), (2, 2), (3, 3), (9, 5)] {
        let params = CacheAwareParams {
            min_load_choices: sgl_edge::policies::PowerOfTwoParams::try_new(choices).unwrap(),
            ..CacheAwareParams::default()
        };
        let outcome =
            Fleet::usual("A i4; B i3; C i2; D i1; E i0").pick(params, AdmissionLimits::default());
        let fallback = outcome.seen.unwrap().fallback.unwrap();
        assert_eq!(fallback.sampled.len(), sampled, "k {choices}");
        if choices >= 5 {
            assert_eq!(
                outcome.result.unwrap().engine.id().as_str(),
                "E",
                "the exact minimum"
            );
        }
    }
}

/// Explained picks count nothing; each real one counts what it did.
#[test]
fn what_a_pick_did_is_counted_once() {
    let fleet = Fleet::usual("P1 d112 t9000; P2 d96 t2000; P3 d90 i2");
    let limits = AdmissionLimits {
        max_inflight_requests: Some(2),
        ..AdmissionLimits::default()
    };
    fleet.pick(CacheAwareParams::default(), limits);
    let families: Vec<_> = fleet
        .services
        .cache_counters
        .collectors()
        .iter()
        .flat_map(|collector| collector.collect())
        .collect();
    let value = |name: &str, label: Option<&str>| -> f64 {
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap();
        let metric = family.get_metric().iter().find(|metric| {
            label.is_none_or(|label| metric.get_label().iter().any(|pair| pair.value() == label))
        });
        metric.unwrap().get_counter().get_value()
    };
    let expected = [
        ("cache_admission_evaluated_total", None, 3.0),
        ("cache_admission_rejected_total", None, 1.0),
        ("cache_pressure_guard_compared_total", None, 1.0),
        ("cache_pressure_guard_override_total", None, 1.0),
        ("cache_lookups_total", Some("match"), 1.0),
        ("cache_lookups_total", Some("miss"), 0.0),
        (
            "cache_monitor_decisions_total",
            Some("native_queue_tokens"),
            1.0,
        ),
    ];
    for (name, label, count) in expected {
        let got = value(name, label);
        assert!((got - count).abs() < 0.5, "{name} {label:?}: {got}");
    }
}
