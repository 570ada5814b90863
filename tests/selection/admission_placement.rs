//! Whom each policy has checked, how often, and what a refusal becomes: policy-semantics §9.

use std::sync::Arc;

use sgl_edge::ids::Stage;
use sgl_edge::policies::{
    Admission, AdmissionLimits, EngineAdmission, Limit, PickError, Policy, PolicyKind,
    PowerOfTwoParams, PowerOfTwoPolicy, RandomPolicy, Reason, Rejection, RoundRobinPolicy,
    SeededDraw,
};
use sgl_edge::state::EngineLoadTable;

use crate::support::engines::{engine, hold, hold_staircase, plain_engines};
use crate::support::fakes::FakeAdmission;
use crate::support::loads::{admission_load, table};
use crate::support::picks::ask;

const INFLIGHT: Limit = Limit::InflightRequests;

fn policy(
    kind: PolicyKind,
    loads: &Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
) -> Box<dyn Policy> {
    let loads = Arc::clone(loads);
    let draw = Arc::new(SeededDraw::new(11));
    match kind {
        PolicyKind::RoundRobin => Box::new(RoundRobinPolicy::new(loads, admission)),
        PolicyKind::Random => Box::new(RandomPolicy::new(loads, admission, draw)),
        PolicyKind::PowerOfTwo => Box::new(PowerOfTwoPolicy::new(
            PowerOfTwoParams::default(),
            loads,
            admission,
            draw,
        )),
        other => panic!("{other} is not built"),
    }
}

const KINDS: [PolicyKind; 3] = [
    PolicyKind::RoundRobin,
    PolicyKind::Random,
    PolicyKind::PowerOfTwo,
];

/// Those that filter all candidates before they choose.
const FILTERING: [PolicyKind; 2] = [PolicyKind::RoundRobin, PolicyKind::Random];

fn rejection(id: &str, limit: Limit) -> Rejection {
    let engine = id.into();
    Rejection { engine, limit }
}

#[test]
fn no_candidates_is_an_error_that_asks_nobody() {
    for kind in KINDS {
        let admission = FakeAdmission::open();
        let policy = policy(kind, &Arc::default(), admission.clone());
        for stage in Stage::ALL {
            let error = ask(policy.as_ref(), &[], stage).unwrap_err();
            assert_eq!(error, PickError::NoCandidates, "{kind}");
        }
        assert!(admission.asked().is_empty(), "{kind}");
    }
}

#[test]
fn power_of_two_asks_exactly_once_about_the_engine_it_returns() {
    for count in 1..=5 {
        let ids = ["a", "b", "c", "d", "e"];
        let engines = plain_engines(&ids[..count]);
        let admission = FakeAdmission::open();
        let policy = policy(PolicyKind::PowerOfTwo, &Arc::default(), admission.clone());
        for turn in 1..=20 {
            let pick = ask(policy.as_ref(), &engines, Stage::Plain).unwrap();
            let asked = admission.asked();
            assert_eq!(asked.len(), turn, "{count} candidates");
            assert_eq!(asked.last().unwrap(), pick.engine.id().as_str());
        }
    }
}

#[test]
fn a_rejected_winner_is_not_replaced_by_the_other_sample() {
    let engines = plain_engines(&["idle", "busy"]);
    let _held = hold(&engines[1], 1);
    let admission = FakeAdmission::refusing(&["idle"]);
    let policy = policy(PolicyKind::PowerOfTwo, &Arc::default(), admission.clone());
    for _ in 0..20 {
        let error = ask(policy.as_ref(), &engines, Stage::Plain).unwrap_err();
        let expected = PickError::AdmissionRejected(rejection("idle", INFLIGHT));
        assert_eq!(error, expected);
    }
    assert_eq!(admission.asked(), ["idle"; 20]);
}

#[test]
fn a_rejected_single_candidate_is_a_rejection_and_not_a_missing_engine() {
    let engines = plain_engines(&["a"]);
    let admission = FakeAdmission::refusing(&["a"]);
    for kind in KINDS {
        let policy = policy(kind, &Arc::default(), admission.clone());
        let error = ask(policy.as_ref(), &engines, Stage::Plain).unwrap_err();
        let reason = rejection("a", INFLIGHT);
        let expected = match kind {
            PolicyKind::PowerOfTwo => PickError::AdmissionRejected(reason),
            _ => PickError::NoAdmissibleEngine(vec![reason]),
        };
        assert_eq!(error, expected, "{kind}");
    }
}

#[test]
fn round_robin_and_random_ask_once_about_every_candidate_in_order() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    for kind in FILTERING {
        let admission = FakeAdmission::refusing(&["b"]);
        let policy = policy(kind, &Arc::default(), admission.clone());
        ask(policy.as_ref(), &engines, Stage::Plain).unwrap();
        assert_eq!(admission.asked(), ["a", "b", "c", "d"], "{kind}");
    }
}

#[test]
fn round_robin_and_random_choose_among_the_admitted_only() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    for kind in FILTERING {
        let policy = policy(kind, &Arc::default(), FakeAdmission::refusing(&["a", "c"]));
        let mut chosen: Vec<_> = (0..100)
            .map(|_| ask(policy.as_ref(), &engines, Stage::Plain).unwrap())
            .map(|pick| pick.engine.id().to_string())
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen, ["b", "d"], "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn none_admitted_lists_every_reason_in_candidate_order() {
    let engines = plain_engines(&["a", "b", "c"]);
    let loads = table([
        (&engines[0], admission_load(9, 0, 0, 0)),
        (&engines[1], admission_load(0, 0, 99, 0)),
    ]);
    let _held = hold(&engines[2], 5);
    let limits = AdmissionLimits {
        max_running_requests: Some(9),
        max_kv_tokens: Some(99),
        max_inflight_requests: Some(5),
        ..AdmissionLimits::default()
    };
    for kind in FILTERING {
        let policy = policy(kind, &loads, Arc::new(limits));
        let error = ask(policy.as_ref(), &engines, Stage::Plain).unwrap_err();
        let expected = vec![
            rejection("a", Limit::RunningRequests),
            rejection("b", Limit::KvTokens),
            rejection("c", INFLIGHT),
        ];
        assert_eq!(error, PickError::NoAdmissibleEngine(expected), "{kind}");
    }
}

#[test]
fn a_checkers_own_error_stops_and_is_returned_unchanged() {
    let engines = plain_engines(&["a", "b", "c"]);
    let _held = hold_staircase(&engines);
    let errors = [
        PickError::InvalidSignal("s"),
        PickError::InvalidConfiguration("c"),
    ];
    for error in errors {
        for kind in KINDS {
            let given = error.clone();
            let admission = FakeAdmission::new(move |engine| match engine.id().as_str() {
                "c" => Ok(Admission::Allow),
                _ => Err(given.clone()),
            });
            let policy = policy(kind, &Arc::default(), admission.clone());
            let found = ask(policy.as_ref(), &engines, Stage::Plain).unwrap_err();
            assert_eq!(found, error, "{kind}");
            assert_eq!(admission.asked().len(), 1, "{kind} asks nobody after it");
        }
    }
}

#[test]
fn the_size_of_a_request_is_no_part_of_admission() {
    let engines = plain_engines(&["a"]);
    let limits = AdmissionLimits {
        max_kv_tokens: Some(1),
        max_pending_prefill_tokens: Some(1),
        ..AdmissionLimits::default()
    };
    let loads = table([(&engines[0], admission_load(0, 0, 0, 0))]);
    for kind in KINDS {
        let policy = policy(kind, &loads, Arc::new(limits));
        let (model, bucket) = ("m".into(), "b".into());
        let request = sgl_edge::policies::PickRequest {
            model: &model,
            stage: Stage::Plain,
            bucket: &bucket,
            input_tokens: 1_000_000,
            expected_peak_tokens: Some(u64::MAX),
            token_ids: None,
            session_key: None,
            routing_key: None,
            prefix: &crate::support::picks::NO_PREFIX,
            explain: None,
        };
        let pick = crate::support::picks::now(policy.pick(&engines, &request));
        assert!(pick.is_ok(), "{kind}");
    }
}

#[test]
fn checking_reserves_nothing_and_opens_no_breaker() {
    let engine = engine("a", Stage::Plain);
    let engines = [Arc::clone(&engine)];
    let limits = AdmissionLimits {
        max_inflight_requests: Some(1),
        ..AdmissionLimits::default()
    };
    for kind in KINDS {
        let policy = policy(kind, &Arc::default(), Arc::new(limits));
        for _ in 0..10 {
            assert!(ask(policy.as_ref(), &engines, Stage::Plain).is_ok());
        }
        let held = hold(&engine, 1);
        for _ in 0..10 {
            assert!(ask(policy.as_ref(), &engines, Stage::Plain).is_err());
        }
        drop(held);
        assert_eq!(engine.inflight(), 0);
        assert!(engine.available(tokio::time::Instant::now()), "{kind}");
    }
}

#[test]
fn each_policy_gives_its_own_reason_and_kind() {
    let engines = plain_engines(&["a"]);
    let reasons = [Reason::RoundRobin, Reason::Random, Reason::PowerOfTwo];
    for (kind, reason) in KINDS.into_iter().zip(reasons) {
        let policy = policy(kind, &Arc::default(), FakeAdmission::open());
        let pick = ask(policy.as_ref(), &engines, Stage::Plain).unwrap();
        assert_eq!((policy.kind(), pick.reason), (kind, reason));
        assert_eq!(kind.as_str(), reason.as_str(), "one spelling everywhere");
    }
}
