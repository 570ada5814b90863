//! The caps: design §4, policy-semantics §9.

use sgl_edge::ids::Stage;
use sgl_edge::policies::{Admission, AdmissionLimits, EngineAdmission, EngineMetrics, Limit};
use sgl_edge::state::FRESHNESS;
use std::time::Duration;

use crate::support::engines::{engine, hold, plain_engines};
use crate::support::loads::{admission_load, basic, capture, decode_load, table};

/// The caps in the order in which they must be checked.
const CAPS: [Limit; 5] = [
    Limit::RunningRequests,
    Limit::WaitingRequests,
    Limit::KvTokens,
    Limit::PendingPrefillTokens,
    Limit::InflightRequests,
];

/// Limits with this one cap, as an operator writes it: the name is the label.
fn only(limit: Limit, cap: u64) -> AdmissionLimits {
    serde_json::from_str(&format!("{{\"{limit}\": {cap}}}")).expect("a known name")
}

fn with(mut metrics: EngineMetrics, limit: Limit, value: u64) -> EngineMetrics {
    match limit {
        Limit::RunningRequests => metrics.running_requests = Some(value),
        Limit::WaitingRequests => metrics.waiting_requests = Some(value),
        Limit::KvTokens => metrics.kv_tokens = Some(value),
        Limit::PendingPrefillTokens => metrics.pending_prefill_tokens = Some(value),
        Limit::InflightRequests => metrics.inflight_requests = value,
    }
    metrics
}

fn check(limits: &AdmissionLimits, metrics: &EngineMetrics) -> Admission {
    let engine = engine("e", Stage::Plain);
    limits.check(&engine, metrics).expect("caps never fail")
}

#[test]
fn each_cap_admits_below_itself_and_rejects_at_and_above_it() {
    for limit in CAPS {
        for cap in [1, 2, 80, u64::MAX] {
            let at = |value| {
                check(
                    &only(limit, cap),
                    &with(EngineMetrics::default(), limit, value),
                )
            };
            assert_eq!(at(0), Admission::Allow, "{limit} {cap}");
            assert_eq!(at(cap - 1), Admission::Allow, "{limit} {cap}");
            assert_eq!(at(cap), Admission::Reject(limit), "{limit} {cap}");
            let above = cap.saturating_add(1);
            assert_eq!(at(above), Admission::Reject(limit), "{limit} {cap}");
        }
    }
}

#[test]
fn an_unknown_metric_fails_open_and_inflight_is_never_unknown() {
    let everything_else = CAPS
        .iter()
        .fold(EngineMetrics::default(), |metrics, limit| {
            with(metrics, *limit, u64::MAX)
        });
    for limit in CAPS {
        let mut metrics = everything_else;
        match limit {
            Limit::RunningRequests => metrics.running_requests = None,
            Limit::WaitingRequests => metrics.waiting_requests = None,
            Limit::KvTokens => metrics.kv_tokens = None,
            Limit::PendingPrefillTokens => metrics.pending_prefill_tokens = None,
            Limit::InflightRequests => metrics.inflight_requests = 0,
        }
        assert_eq!(
            check(&only(limit, 1), &metrics),
            Admission::Allow,
            "{limit}"
        );
    }
}

#[test]
fn a_cap_looks_at_its_own_metric_only() {
    for limit in CAPS {
        let full = CAPS.iter().filter(|other| **other != limit);
        let metrics = full.fold(EngineMetrics::default(), |metrics, other| {
            with(metrics, *other, u64::MAX)
        });
        let metrics = with(metrics, limit, 4);
        assert_eq!(check(&only(limit, 5), &metrics), Admission::Allow);
    }
}

#[test]
fn the_first_reached_cap_in_order_is_the_reason_for_every_combination() {
    let limits: AdmissionLimits = AdmissionLimits {
        max_running_requests: Some(3),
        max_waiting_requests: Some(3),
        max_kv_tokens: Some(3),
        max_pending_prefill_tokens: Some(3),
        max_inflight_requests: Some(3),
    };
    for reached in 0..32_u32 {
        let mut metrics = EngineMetrics::default();
        for (bit, limit) in CAPS.into_iter().enumerate() {
            let full = reached & (1 << bit) != 0;
            metrics = with(metrics, limit, if full { 3 } else { 2 });
        }
        let expected = match reached.trailing_zeros() {
            32 => Admission::Allow,
            first => Admission::Reject(CAPS[first as usize]),
        };
        assert_eq!(check(&limits, &metrics), expected, "{reached:05b}");
    }
}

#[test]
fn the_worked_answers() {
    let metrics = EngineMetrics {
        running_requests: Some(3),
        waiting_requests: Some(1),
        kv_tokens: Some(80),
        pending_prefill_tokens: Some(90),
        inflight_requests: 2,
    };
    let silent = EngineMetrics {
        inflight_requests: 2,
        ..EngineMetrics::default()
    };
    let kv = Limit::KvTokens;
    let inflight = Limit::InflightRequests;
    let both = AdmissionLimits {
        max_running_requests: Some(3),
        max_kv_tokens: Some(80),
        ..AdmissionLimits::default()
    };
    let rows = [
        (only(kv, 81), metrics, Admission::Allow),
        (only(kv, 80), metrics, Admission::Reject(kv)),
        (only(inflight, 3), metrics, Admission::Allow),
        (only(inflight, 2), metrics, Admission::Reject(inflight)),
        (only(kv, 80), silent, Admission::Allow),
        (only(inflight, 2), silent, Admission::Reject(inflight)),
        (both, metrics, Admission::Reject(Limit::RunningRequests)),
    ];
    for (limits, metrics, expected) in rows {
        assert_eq!(check(&limits, &metrics), expected, "{limits:?}");
    }
}

#[test]
fn the_default_admits_everything() {
    let full = CAPS
        .iter()
        .fold(EngineMetrics::default(), |metrics, limit| {
            with(metrics, *limit, u64::MAX)
        });
    let limits = AdmissionLimits::default();
    assert_eq!(check(&limits, &full), Admission::Allow);
    assert!(limits.admits_everything());
    for limit in CAPS {
        assert!(!only(limit, u64::MAX).admits_everything(), "{limit}");
    }
}

#[test]
fn an_unknown_field_is_refused() {
    for text in [
        r#"{"max_runing_requests": 1}"#,
        r#"{"max_running_requests": 1, "max_usage": 2}"#,
        r#"{"max_kv_usage": 0.5}"#,
    ] {
        assert!(
            serde_json::from_str::<AdmissionLimits>(text).is_err(),
            "{text}"
        );
    }
    let nothing: AdmissionLimits = serde_json::from_str("{}").expect("all are optional");
    assert_eq!(nothing, AdmissionLimits::default());
}

#[test]
fn a_cap_of_zero_is_named_as_a_problem_and_rejects_even_an_idle_engine() {
    for limit in CAPS {
        let zero = only(limit, 0);
        let idle = with(EngineMetrics::default(), limit, 0);
        assert_eq!(check(&zero, &idle), Admission::Reject(limit));
        let problems = zero.problems();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].parameter, limit.as_str());
        assert!(only(limit, 1).problems().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_native_report_gives_every_metric_and_kv_counts_queued_tokens_too() {
    let engines = plain_engines(&["e"]);
    let mut load = admission_load(3, 1, 80, 90);
    load.used_tokens = 7;
    let loads = table([(&engines[0], load)]);
    let _held = hold(&engines[0], 2);
    let expected = EngineMetrics {
        running_requests: Some(3),
        waiting_requests: Some(1),
        kv_tokens: Some(80),
        pending_prefill_tokens: Some(90),
        inflight_requests: 2,
    };
    assert_eq!(
        EngineMetrics::observe(&engines[0], &capture(&loads, &engines)),
        expected
    );
}

#[tokio::test(start_paused = true)]
async fn a_basic_report_gives_its_gauges_and_leaves_the_rest_unknown() {
    let engines = plain_engines(&["e"]);
    let loads = table([(&engines[0], basic(3, 1))]);
    let expected = EngineMetrics {
        running_requests: Some(3),
        waiting_requests: Some(1),
        ..EngineMetrics::default()
    };
    assert_eq!(
        EngineMetrics::observe(&engines[0], &capture(&loads, &engines)),
        expected
    );
}

#[tokio::test(start_paused = true)]
async fn a_report_counts_up_to_exactly_five_seconds_and_is_unknown_after_never_zero() {
    let engines = plain_engines(&["e", "silent"]);
    let loads = table([(&engines[0], admission_load(3, 1, 80, 90))]);
    let _held = hold(&engines[0], 2);
    tokio::time::advance(FRESHNESS).await;
    let fresh = EngineMetrics::observe(&engines[0], &capture(&loads, &engines));
    assert_eq!(fresh.kv_tokens, Some(80));
    tokio::time::advance(Duration::from_millis(1)).await;
    let stale = EngineMetrics::observe(&engines[0], &capture(&loads, &engines));
    let only_inflight = EngineMetrics {
        inflight_requests: 2,
        ..EngineMetrics::default()
    };
    assert_eq!(stale, only_inflight);
    let silent = EngineMetrics::observe(&engines[1], &capture(&loads, &engines));
    assert_eq!(silent, EngineMetrics::default());
}

#[tokio::test(start_paused = true)]
async fn inflight_is_read_live_while_the_report_is_the_captured_one() {
    let engines = plain_engines(&["e"]);
    let loads = table([(&engines[0], basic(1, 1))]);
    let snapshot = capture(&loads, &engines);
    loads.publish(engines[0].id(), basic(9, 9));
    let held = hold(&engines[0], 3);
    let seen = EngineMetrics::observe(&engines[0], &snapshot);
    assert_eq!(
        (seen.running_requests, seen.inflight_requests),
        (Some(1), 3)
    );
    drop(held);
    let seen = EngineMetrics::observe(&engines[0], &snapshot);
    assert_eq!(
        (seen.running_requests, seen.inflight_requests),
        (Some(1), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn caps_are_absolute_and_never_taken_from_the_capacity_an_engine_reports() {
    let engines = plain_engines(&["e"]);
    // Full by its own word: all tokens used, more running than it says it can.
    let mut load = decode_load(500, 500, 1000, 1000);
    load.native.as_mut().unwrap().total_tokens = 5000;
    let loads = table([(&engines[0], load)]);
    let metrics = EngineMetrics::observe(&engines[0], &capture(&loads, &engines));
    assert_eq!(
        check(&AdmissionLimits::default(), &metrics),
        Admission::Allow
    );
}
