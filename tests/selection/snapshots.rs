//! One observation per pick: selection and admission see the same one. Design §4, §6.

use std::sync::Arc;
use std::time::Duration;

use sgl_edge::ids::Stage;
use sgl_edge::policies::{
    Admission, AdmissionLimits, Limit, PickError, PowerOfTwoParams, PowerOfTwoPolicy,
    RoundRobinPolicy, SeededDraw,
};
use sgl_edge::state::{EngineLoadTable, FRESHNESS};
use sgl_edge::workers::Worker;

use crate::support::engines::plain_engines;
use crate::support::fakes::{FakeAdmission, ScriptedDraw};
use crate::support::loads::{admission_load, capture, prefill_load, table};
use crate::support::picks::{ask, chosen};

fn kv_cap(cap: u64) -> Arc<AdmissionLimits> {
    Arc::new(AdmissionLimits {
        max_kv_tokens: Some(cap),
        ..AdmissionLimits::default()
    })
}

fn power_of_two(
    loads: &Arc<EngineLoadTable>,
    admission: Arc<dyn sgl_edge::policies::EngineAdmission>,
) -> PowerOfTwoPolicy {
    PowerOfTwoPolicy::new(
        PowerOfTwoParams::default(),
        Arc::clone(loads),
        admission,
        Arc::new(SeededDraw::new(3)),
    )
}

/// Publishes for every engine a report that is far over every cap.
fn flood(loads: &EngineLoadTable, engines: &[Arc<Worker>]) {
    for engine in engines {
        loads.publish(engine.id(), admission_load(999, 999, 999, 999));
    }
}

#[tokio::test(start_paused = true)]
async fn power_of_two_checks_the_observation_of_its_selection_even_if_reports_change_meanwhile() {
    let (calm, busy) = (|| admission_load(1, 1, 1, 1), || admission_load(9, 9, 9, 9));
    for first in [0, 1] {
        let engines = plain_engines(&["a", "b"]);
        let loads = table([(&engines[0], calm()), (&engines[1], busy())]);
        let admission = FakeAdmission::open();
        let (publisher, pair) = (Arc::clone(&loads), engines.clone());
        // The two change places while engines are drawn: whenever they are looked at, the calm one
        // wins, so the check sees a calm one unless it looks a second time.
        let draw = ScriptedDraw::acting([first, 0], move || {
            publisher.publish(pair[0].id(), busy());
            publisher.publish(pair[1].id(), calm());
        });
        let policy = PowerOfTwoPolicy::new(
            PowerOfTwoParams::default(),
            Arc::clone(&loads),
            admission.clone(),
            draw,
        );
        ask(&policy, &engines, Stage::Plain).unwrap();
        let seen: Vec<_> = admission.seen().iter().map(|m| m.kv_tokens).collect();
        assert_eq!(seen, [Some(1)]);
        let now = capture(&loads, &engines).get(engines[0].id()).cloned();
        assert_eq!(now.unwrap().running_requests, 9, "the table did change");
    }
}

#[tokio::test(start_paused = true)]
async fn a_filter_sees_one_snapshot_even_if_the_check_itself_takes_reports_in() {
    let engines = plain_engines(&["a", "b", "c"]);
    let calm = engines
        .iter()
        .map(|engine| (engine, admission_load(1, 1, 1, 1)));
    let loads = table(calm);
    let (publisher, everyone) = (Arc::clone(&loads), engines.clone());
    let admission = FakeAdmission::new(move |_| {
        flood(&publisher, &everyone);
        Ok(Admission::Allow)
    });
    let policy = RoundRobinPolicy::new(Arc::clone(&loads), admission.clone());
    ask(&policy, &engines, Stage::Plain).unwrap();
    let kv: Vec<_> = admission.seen().iter().map(|seen| seen.kv_tokens).collect();
    assert_eq!(kv, [Some(1); 3]);
    ask(&policy, &engines, Stage::Plain).unwrap();
    let kv: Vec<_> = admission.seen()[3..]
        .iter()
        .map(|seen| seen.kv_tokens)
        .collect();
    assert_eq!(kv, [Some(999); 3], "a new pick reads the present state");
}

#[tokio::test(start_paused = true)]
async fn a_single_candidate_has_its_load_read_for_admission() {
    let engines = plain_engines(&["a"]);
    let loads = table([(&engines[0], admission_load(0, 0, 80, 0))]);
    assert_eq!(chosen(&power_of_two(&loads, kv_cap(81)), &engines), "a");
    let full = power_of_two(&loads, kv_cap(80));
    let error = ask(&full, &engines, Stage::Plain).unwrap_err();
    let PickError::AdmissionRejected(rejection) = error else {
        panic!("{error:?}");
    };
    assert_eq!(rejection.limit, Limit::KvTokens);
}

#[tokio::test(start_paused = true)]
async fn the_winners_own_report_is_checked_and_not_its_rivals() {
    let engines = plain_engines(&["a", "b"]);
    // b is under less pressure by waiting tokens, but holds more KV tokens.
    let mut light = admission_load(0, 0, 500, 1);
    light.used_tokens = 500;
    let loads = table([
        (&engines[0], admission_load(0, 0, 10, 900)),
        (&engines[1], light),
    ]);
    let policy = power_of_two(&loads, kv_cap(100));
    for _ in 0..20 {
        let error = ask(&policy, &engines, Stage::Plain).unwrap_err();
        let PickError::AdmissionRejected(rejection) = error else {
            panic!("{error:?}");
        };
        assert_eq!(rejection.engine.as_str(), "b");
    }
    assert_eq!(chosen(&power_of_two(&loads, kv_cap(501)), &engines), "b");
}

#[tokio::test(start_paused = true)]
async fn every_pick_reads_the_present_state() {
    let engines = plain_engines(&["a", "b"]);
    let loads = table([]);
    let policy = power_of_two(&loads, Arc::new(AdmissionLimits::default()));
    for winner in ["a", "b", "a"] {
        for engine in &engines {
            let tokens = if engine.id().as_str() == winner { 1 } else { 9 };
            loads.publish(engine.id(), prefill_load(tokens, 0, 0));
        }
        for _ in 0..10 {
            assert_eq!(chosen(&policy, &engines), winner);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_report_neither_rejects_nor_decides() {
    let engines = plain_engines(&["a"]);
    let loads = table([(&engines[0], admission_load(0, 0, 999, 0))]);
    let policy = power_of_two(&loads, kv_cap(80));
    tokio::time::advance(FRESHNESS).await;
    assert!(ask(&policy, &engines, Stage::Plain).is_err(), "still fresh");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(chosen(&policy, &engines), "a");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_engine_starts_without_a_report() {
    let engines = plain_engines(&["a"]);
    let loads = table([(&engines[0], admission_load(0, 0, 999, 0))]);
    let policy = power_of_two(&loads, kv_cap(80));
    assert!(ask(&policy, &engines, Stage::Plain).is_err());
    loads.forget(engines[0].id());
    assert_eq!(chosen(&policy, &engines), "a");
}
