//! `load_based`: policy-semantics §11, placement of admission §9.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sgl_edge::ids::Stage;
use sgl_edge::policies::explain::{Compared, Explanation, LoadSource};
use sgl_edge::policies::{
    AdmissionLimits, LeastLoadPolicy, Limit, PickError, PickRequest, Policy, PolicyParams,
    PolicyServices, Reason, StickyFallback, StickyParams, build,
};
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::state::{EngineLoad, EngineLoadTable, FRESHNESS};
use sgl_edge::workers::{InflightGuard, Worker};
use tokio::time::Instant;

use crate::support::engines::{MODEL, hold, plain_engines};
use crate::support::loads::{admission_load, basic, decode_load, prefill_load, table};
use crate::support::picks::{ask, chosen, now};

const MILLI: Duration = Duration::from_millis(1);

fn policy(loads: &Arc<EngineLoadTable>) -> LeastLoadPolicy {
    capped(loads, AdmissionLimits::default())
}

fn capped(loads: &Arc<EngineLoadTable>, limits: AdmissionLimits) -> LeastLoadPolicy {
    LeastLoadPolicy::new(Arc::clone(loads), Arc::new(limits))
}

fn picks(policy: &LeastLoadPolicy, engines: &[Arc<Worker>], count: usize) -> String {
    (0..count).map(|_| chosen(policy, engines)).collect()
}

/// `old` requests dispatched a millisecond before now, `new` ones now.
fn held(engine: &Worker, old: u64, new: u64) -> Vec<InflightGuard> {
    let now = Instant::now();
    let before = (0..old).map(|_| engine.acquire_at(1, now - MILLI));
    let since = (0..new).map(|_| engine.acquire_at(1, now));
    before.chain(since).collect()
}

/// The three engines of the worked table: keys (6, 4), (6, 2), (7, 1).
fn worked() -> (
    Vec<Arc<Worker>>,
    Arc<EngineLoadTable>,
    Vec<Vec<InflightGuard>>,
) {
    let engines = plain_engines(&["a", "b", "c"]);
    let loads = table([
        (&engines[0], basic(3, 2)),
        (&engines[1], basic(2, 4)),
        (&engines[2], basic(7, 0)),
    ]);
    let guards = vec![
        held(&engines[0], 3, 1),
        held(&engines[1], 2, 0),
        held(&engines[2], 1, 0),
    ];
    (engines, loads, guards)
}

#[tokio::test(start_paused = true)]
async fn the_worked_table() {
    let (engines, loads, _guards) = worked();
    let pick = ask(&policy(&loads), &engines, Stage::Plain).unwrap();
    assert_eq!(pick.engine.id().as_str(), "b");
    assert_eq!(
        (pick.reason, pick.reason.as_str()),
        (Reason::LeastLoad, "least_load")
    );
}

#[tokio::test(start_paused = true)]
async fn one_stale_report_makes_inflight_the_key_of_all_at_the_freshness_limit() {
    let (engines, loads, _guards) = worked();
    tokio::time::advance(FRESHNESS).await;
    assert_eq!(chosen(&policy(&loads), &engines), "b");
    for engine in [&engines[0], &engines[2]] {
        loads.publish(engine.id(), basic(100, 100));
    }
    // Still fresh at exactly the limit, then stale: keys 4, 2, 1.
    assert_eq!(chosen(&policy(&loads), &engines), "b");
    tokio::time::advance(MILLI).await;
    assert_eq!(chosen(&policy(&loads), &engines), "c");
}

#[tokio::test(start_paused = true)]
async fn a_slot_counts_from_the_moment_of_the_report_on() {
    let captured = Instant::now();
    for (offset, counted) in [(-5, false), (-1, false), (0, true), (1, true), (5000, true)] {
        let engines = plain_engines(&["a", "b"]);
        let loads = table([(&engines[0], basic(0, 0)), (&engines[1], basic(0, 0))]);
        let at = match u32::try_from(offset) {
            Ok(later) => captured + MILLI * later,
            Err(_) => captured - MILLI * (-offset as u32),
        };
        let _slot = engines[0].acquire_at(1, at);
        let _other = engines[1].acquire_at(1, captured - MILLI);
        let _another = engines[1].acquire_at(1, captured - MILLI);
        // a: (1 or 0, 1), b: (0, 2).
        let expected = if counted { "b" } else { "a" };
        assert_eq!(chosen(&policy(&loads), &engines), expected, "{offset} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_report_or_an_ended_request_takes_a_slot_out_of_the_count() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[0], basic(0, 0)), (&engines[1], basic(1, 0))]);
    let first = held(&engines[0], 0, 2);
    assert_eq!(chosen(&policy(&loads), &engines), "b");
    tokio::time::advance(MILLI).await;
    loads.publish(engines[0].id(), basic(0, 0));
    assert_eq!(chosen(&policy(&loads), &engines), "a");
    let second = held(&engines[0], 0, 2);
    assert_eq!(chosen(&policy(&loads), &engines), "b");
    drop(second);
    assert_eq!(chosen(&policy(&loads), &engines), "a");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn long_streams_that_the_engine_already_reports_are_not_counted_twice() {
    let engines = plain_engines(&["a", "b"]);
    let _streams = held(&engines[0], 40, 0);
    let loads = table([(&engines[0], basic(40, 0)), (&engines[1], basic(60, 0))]);
    assert_eq!(chosen(&policy(&loads), &engines), "a");
}

#[tokio::test(start_paused = true)]
async fn waiting_and_running_count_alike_and_the_stage_does_not_matter() {
    let engines = plain_engines(&["a", "b"]);
    for (left, right, expected) in [
        (basic(5, 0), basic(0, 4), "b"),
        (basic(0, 4), basic(5, 0), "a"),
        (prefill_load(0, 2, 2), prefill_load(99_999, 1, 1), "b"),
        (decode_load(1, 1, 90, 100), decode_load(0, 3, 0, 100), "a"),
        (basic(u64::MAX, 1), basic(3, u64::MAX - 9), "b"),
    ] {
        let loads = table([(&engines[0], left), (&engines[1], right)]);
        for stage in Stage::ALL {
            let pick = ask(&policy(&loads), &engines, stage).unwrap();
            assert_eq!(pick.engine.id().as_str(), expected);
        }
    }
}

#[test]
fn equal_engines_take_turns_with_a_cursor_per_policy_object() {
    let engines = plain_engines(&["a", "b", "c"]);
    let loads: Arc<EngineLoadTable> = Arc::default();
    let (one, two) = (policy(&loads), policy(&loads));
    assert_eq!(picks(&one, &engines, 4), "abca");
    assert_eq!(picks(&two, &engines, 2), "ab");
    let _held = hold(&engines[1], 1);
    // Cursor 4 of the tied [a, c].
    assert_eq!(picks(&one, &engines, 3), "aca");
}

#[tokio::test(start_paused = true)]
async fn inflight_decides_between_equal_scores() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[0], basic(3, 3)), (&engines[1], basic(3, 3))]);
    let _held = held(&engines[0], 1, 0);
    assert_eq!(picks(&policy(&loads), &engines, 3), "bbb");
}

#[tokio::test(start_paused = true)]
async fn engines_are_admitted_first_and_an_unreported_refused_one_downgrades_nobody() {
    let engines = plain_engines(&["a", "b", "c"]);
    let loads = table([
        (&engines[0], admission_load(9, 0, 0, 0)),
        (&engines[1], admission_load(2, 0, 0, 0)),
    ]);
    // c has no report, and is over its cap; b holds more of ours than a, and reports less.
    let _held = (held(&engines[1], 3, 0), held(&engines[2], 8, 0));
    let limits = AdmissionLimits {
        max_inflight_requests: Some(8),
        ..AdmissionLimits::default()
    };
    assert_eq!(chosen(&capped(&loads, limits), &engines), "b");
}

#[tokio::test(start_paused = true)]
async fn none_admitted_is_refused_with_every_reason_and_none_given_is_no_candidate() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[0], basic(5, 0)), (&engines[1], basic(0, 7))]);
    let limits = AdmissionLimits {
        max_running_requests: Some(5),
        max_waiting_requests: Some(7),
        ..AdmissionLimits::default()
    };
    let policy = capped(&loads, limits);
    let Err(PickError::NoAdmissibleEngine(reasons)) = ask(&policy, &engines, Stage::Plain) else {
        panic!("both are full");
    };
    let reasons: Vec<_> = reasons
        .iter()
        .map(|r| (r.engine.as_str(), r.limit))
        .collect();
    let expected = [("a", Limit::RunningRequests), ("b", Limit::WaitingRequests)];
    assert_eq!(reasons, expected);
    let nobody = ask(&policy, &[], Stage::Plain);
    assert!(matches!(nobody, Err(PickError::NoCandidates)));
}

/// Field-lessons L24: no herd inside one report interval.
#[tokio::test(start_paused = true)]
async fn sixty_four_requests_between_two_reports_split_evenly() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([(&engines[0], basic(0, 0)), (&engines[1], basic(0, 1))]);
    let policy = policy(&loads);
    let mut guards = Vec::new();
    let mut split = BTreeMap::from([("a", 0), ("b", 0)]);
    for _ in 0..64 {
        let pick = ask(&policy, &engines, Stage::Plain).unwrap();
        let id = if Arc::ptr_eq(&pick.engine, &engines[0]) {
            "a"
        } else {
            "b"
        };
        *split.get_mut(id).unwrap() += 1;
        guards.push(pick.engine.acquire(1));
    }
    assert!((30..=34).contains(&split["a"]), "{split:?}");
}

/// Field-lessons L25: an engine that went silent does not look idle for ever.
#[tokio::test(start_paused = true)]
async fn a_silent_engine_stops_looking_idle_at_the_limit() {
    let engines = plain_engines(&["silent", "talking"]);
    let loads = table([(&engines[0], basic(0, 0))]);
    let _held = held(&engines[0], 30, 0);
    let report = |load: EngineLoad| loads.publish(engines[1].id(), load);
    report(basic(0, 5));
    assert_eq!(chosen(&policy(&loads), &engines), "silent");
    tokio::time::advance(FRESHNESS + MILLI).await;
    report(basic(0, 5));
    assert_eq!(chosen(&policy(&loads), &engines), "talking");
    let limits = AdmissionLimits {
        max_waiting_requests: Some(5),
        max_inflight_requests: Some(30),
        ..AdmissionLimits::default()
    };
    // The in-flight cap still holds for the silent one, the reported cap for the other.
    let refused = ask(&capped(&loads, limits), &engines, Stage::Plain);
    assert!(matches!(refused, Err(PickError::NoAdmissibleEngine(list)) if list.len() == 2));
}

#[test]
fn it_is_built_by_name_and_as_a_fallback_of_sticky() {
    let services = PolicyServices::new(Arc::default());
    let sticky = PolicyParams::Sticky(StickyParams {
        fallback: StickyFallback::LeastLoad,
    });
    let engines = plain_engines(&["a", "b"]);
    let _held = hold(&engines[0], 1);
    for params in [PolicyParams::LeastLoad, sticky] {
        let built = build(
            &params,
            AdmissionLimits::default(),
            &MODEL.into(),
            &services,
        );
        assert_eq!(built.kind(), params.kind());
        assert_eq!(chosen(built.as_ref(), &engines), "b");
    }
}

#[tokio::test(start_paused = true)]
async fn an_explanation_shows_source_and_keys_and_moves_no_cursor() {
    let (engines, loads, _guards) = worked();
    let explain = |policy: &LeastLoadPolicy| {
        let (model, bucket, explanation) = (MODEL.into(), "b".into(), Explanation::default());
        let request = PickRequest {
            model: &model,
            stage: Stage::Plain,
            bucket: &bucket,
            input_tokens: 1,
            expected_peak_tokens: None,
            token_ids: None,
            session_key: None,
            routing_key: None,
            prefix: &PrefixMemo::none(),
            explain: Some(&explanation),
        };
        let pick = now(policy.pick(&engines, &request)).unwrap();
        (pick.engine.id().to_string(), explanation.take_compared())
    };
    let keys = |rows: [(&str, [u64; 2]); 3]| rows.map(|(id, key)| (id.into(), key)).into();
    let reported = Compared::LoadBased {
        source: LoadSource::Reports,
        keys: keys([("a", [6, 4]), ("b", [6, 2]), ("c", [7, 1])]),
    };
    assert_eq!(explain(&policy(&loads)), ("b".to_owned(), Some(reported)));
    let silent = policy(&Arc::default());
    let held = Compared::LoadBased {
        source: LoadSource::Inflight,
        keys: keys([("a", [4, 4]), ("b", [2, 2]), ("c", [1, 1])]),
    };
    assert_eq!(explain(&silent), ("c".to_owned(), Some(held)));
    let tied = plain_engines(&["x", "y"]);
    let turning = policy(&Arc::default());
    let first = |count| picks(&turning, &tied, count);
    assert_eq!(first(1), "x");
    explain(&turning);
    explain(&turning);
    assert_eq!(first(2), "yx");
}
