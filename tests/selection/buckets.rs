//! Plain or a complete pair, from one bucket: design §2, policy-semantics §5.

use std::sync::Arc;

use sgl_edge::buckets::{BucketError, BucketGroups, BucketPick, BucketRequest, EngineGroup};
use sgl_edge::ids::{ModelId, Stage};
use sgl_edge::policies::{Limit, PickError, Rejection};
use sgl_edge::workers::{Worker, WorkerRegistry};

use crate::support::engines::{MODEL, engine, plain_engines, registry};
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::picks::{ask_bucket, ids, now, unlimited};

fn group(answer: &Answer, journal: &Journal) -> EngineGroup {
    EngineGroup::new(FakePolicy::new(answer.clone(), journal))
}

fn pair(prefill: &Answer, decode: &Answer, journal: &Journal) -> BucketGroups {
    BucketGroups::Pd {
        prefill: group(prefill, journal),
        decode: group(decode, journal),
    }
}

fn split_fleet() -> (Vec<Arc<Worker>>, WorkerRegistry) {
    let engines = vec![
        engine("d1", Stage::Decode),
        engine("d2", Stage::Decode),
        engine("p1", Stage::Prefill),
        engine("p2", Stage::Prefill),
    ];
    let workers = registry(&engines);
    (engines, workers)
}

fn errors() -> Vec<PickError> {
    let rejection = Rejection {
        engine: "p1".into(),
        limit: Limit::RunningRequests,
    };
    vec![
        PickError::NoCandidates,
        PickError::NoAdmissibleEngine(vec![rejection.clone()]),
        PickError::AdmissionRejected(rejection),
        PickError::InvalidSignal("s"),
        PickError::InvalidConfiguration("c"),
    ]
}

#[test]
fn a_plain_bucket_asks_its_one_group() {
    let journal = Journal::default();
    let bucket = unlimited("b", BucketGroups::Plain(group(&Answer::First, &journal)));
    let pick = ask_bucket(&bucket, &registry(&plain_engines(&["b", "a"]))).unwrap();
    assert!(matches!(pick, BucketPick::Plain(_)));
    assert_eq!(ids(&pick), ["a"]);
    let calls = journal.lock();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].stage, Stage::Plain);
}

#[test]
fn a_pair_is_picked_prefill_first_and_each_group_is_asked_once_for_its_own_stage() {
    let journal = Journal::default();
    let bucket = unlimited("b", pair(&Answer::First, &Answer::First, &journal));
    let (_, workers) = split_fleet();
    let pick = ask_bucket(&bucket, &workers).unwrap();
    assert!(matches!(pick, BucketPick::Pd { .. }));
    assert_eq!(ids(&pick), ["p1", "d1"]);
    let calls = journal.lock();
    let asked: Vec<_> = calls
        .iter()
        .map(|call| (call.stage, call.candidates.join(" ")))
        .collect();
    let expected = [(Stage::Prefill, "p1 p2"), (Stage::Decode, "d1 d2")];
    assert_eq!(asked, expected.map(|(stage, ids)| (stage, ids.to_owned())));
}

#[test]
fn decode_is_not_asked_when_prefill_fails() {
    let (_, workers) = split_fleet();
    for error in errors() {
        let journal = Journal::default();
        let prefill = Answer::Fail(error.clone());
        let bucket = unlimited("b", pair(&prefill, &Answer::First, &journal));
        let stage = Stage::Prefill;
        let failure = ask_bucket(&bucket, &workers).unwrap_err();
        assert_eq!(failure, BucketError { stage, error });
        assert_eq!(journal.lock().len(), 1);
    }
}

#[test]
fn a_decode_failure_keeps_its_stage_and_its_error() {
    let (_, workers) = split_fleet();
    for error in errors() {
        let journal = Journal::default();
        let decode = Answer::Fail(error.clone());
        let bucket = unlimited("b", pair(&Answer::First, &decode, &journal));
        let stage = Stage::Decode;
        let failure = ask_bucket(&bucket, &workers).unwrap_err();
        assert_eq!(failure, BucketError { stage, error });
        assert_eq!(journal.lock().len(), 2);
    }
}

#[test]
fn a_plain_failure_is_told_apart_from_both_halves_of_a_pair() {
    let journal = Journal::default();
    let bucket = unlimited("b", BucketGroups::Plain(group(&Answer::First, &journal)));
    let failure = ask_bucket(&bucket, &split_fleet().1).unwrap_err();
    let (stage, error) = (Stage::Plain, PickError::NoCandidates);
    assert_eq!(failure, BucketError { stage, error });
}

#[test]
fn an_empty_half_is_reported_at_its_stage() {
    let (engines, workers) = split_fleet();
    let journal = Journal::default();
    let bucket = unlimited("b", pair(&Answer::First, &Answer::First, &journal));
    for (role, others) in [
        (Stage::Prefill, Stage::Decode),
        (Stage::Decode, Stage::Prefill),
    ] {
        for engine in &engines {
            engine.set_healthy(engine.role() == others);
        }
        let failure = ask_bucket(&bucket, &workers).unwrap_err();
        let (stage, error) = (role, PickError::NoCandidates);
        assert_eq!(failure, BucketError { stage, error });
    }
}

#[test]
fn a_policy_cannot_cross_the_role_boundary() {
    let (engines, workers) = split_fleet();
    let (decode, prefill) = (&engines[0], &engines[2]);
    let journal = Journal::default();
    let rows = [
        (Answer::Engine(Arc::clone(decode)), Answer::First, "d1"),
        (Answer::First, Answer::Engine(Arc::clone(prefill)), "p1"),
    ];
    for (first, second, foreign) in rows {
        let bucket = unlimited("b", pair(&first, &second, &journal));
        let failure = ask_bucket(&bucket, &workers).unwrap_err();
        let expected = PickError::OutsideCandidates(foreign.into());
        assert_eq!(failure.error, expected);
    }
}

#[test]
fn both_engines_of_a_pair_are_members_of_the_one_bucket() {
    let (_, workers) = split_fleet();
    for (prefill, decode) in [("p1", "d2"), ("p2", "d1")] {
        let journal = Journal::default();
        let member = |id: &str| group(&Answer::First, &journal).with_worker_ids([id.into()]);
        let groups = BucketGroups::Pd {
            prefill: member(prefill),
            decode: member(decode),
        };
        let pick = ask_bucket(&unlimited("b", groups), &workers).unwrap();
        assert_eq!(ids(&pick), [prefill, decode]);
    }
}

#[test]
fn every_fact_reaches_both_policies_unchanged_with_the_buckets_own_id() {
    let (_, workers) = split_fleet();
    let model = ModelId::from(MODEL);
    let full = BucketRequest {
        model: &model,
        input_tokens: 3,
        expected_peak_tokens: Some(9),
        token_ids: Some(&[5, 6, 7]),
        session_key: Some("session"),
        routing_key: Some("route"),
        prefix: &crate::support::picks::NO_PREFIX,
        explain: None,
    };
    let bare = BucketRequest {
        model: &model,
        input_tokens: u64::MAX,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: None,
        routing_key: None,
        prefix: &crate::support::picks::NO_PREFIX,
        explain: None,
    };
    for request in [full, bare] {
        let journal = Journal::default();
        let bucket = unlimited("the id", pair(&Answer::First, &Answer::First, &journal));
        now(bucket.pick_engines(&workers, &request)).unwrap();
        let calls = journal.lock();
        assert_eq!(calls.len(), 2);
        for call in calls.iter() {
            assert_eq!(
                (call.model.as_str(), call.bucket.as_str()),
                (MODEL, "the id")
            );
            assert_eq!(call.input_tokens, request.input_tokens);
            assert_eq!(call.expected_peak_tokens, request.expected_peak_tokens);
            assert_eq!(call.token_ids.as_deref(), request.token_ids);
            assert_eq!(call.session_key.as_deref(), request.session_key);
            assert_eq!(call.routing_key.as_deref(), request.routing_key);
        }
    }
}

#[test]
fn picking_takes_no_guard_and_claims_no_permit() {
    let (engines, workers) = split_fleet();
    let journal = Journal::default();
    let bucket = unlimited("b", pair(&Answer::First, &Answer::First, &journal));
    let _kept: Vec<_> = (0..5).map(|_| ask_bucket(&bucket, &workers)).collect();
    assert!(engines.iter().all(|engine| engine.inflight() == 0));
}
