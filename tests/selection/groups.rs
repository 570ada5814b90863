//! Who is a candidate, and whose answer is believed: design §2, policy-semantics §5.

use std::sync::Arc;
use std::time::Duration;

use sgl_edge::buckets::EngineGroup;
use sgl_edge::ids::Stage;
use sgl_edge::policies::Limit;
use sgl_edge::policies::{PickError, Rejection};
use sgl_edge::workers::{BreakerParams, Outcome, Worker, WorkerRegistry};
use tokio::time::Instant;

use crate::support::engines::{
    MODEL, engine, engine_of, hold, open_breaker, plain_engines, registry,
};
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::picks::ask_group;

fn group(answer: Answer) -> (EngineGroup, Journal) {
    let journal = Journal::default();
    let policy = FakePolicy::new(answer, &journal);
    (EngineGroup::new(policy), journal)
}

/// What a group with these members offers its policy; empty if the policy is not called.
fn offered_to(
    members: Option<&[&str]>,
    workers: &WorkerRegistry,
    model: &str,
    stage: Stage,
) -> Vec<String> {
    let (mut group, journal) = group(Answer::First);
    if let Some(members) = members {
        group = group.with_worker_ids(members.iter().map(|id| (*id).into()));
    }
    let result = ask_group(&group, workers, model, stage);
    let offered = journal.lock().pop().map(|call| call.candidates);
    assert_eq!(result.is_ok(), offered.is_some());
    if let Err(error) = result {
        assert_eq!(error, PickError::NoCandidates);
    }
    offered.unwrap_or_default()
}

fn offered(workers: &WorkerRegistry) -> Vec<String> {
    offered_to(None, workers, MODEL, Stage::Plain)
}

#[test]
fn only_engines_of_the_requested_model_are_offered() {
    let workers = registry(&[
        engine_of("a", "m", Stage::Plain),
        engine_of("b", "other", Stage::Plain),
        engine_of("c", "M", Stage::Plain),
    ]);
    assert_eq!(offered_to(None, &workers, "m", Stage::Plain), ["a"]);
    assert_eq!(offered_to(None, &workers, "other", Stage::Plain), ["b"]);
    assert_eq!(offered_to(None, &workers, "none", Stage::Plain), [""; 0]);
}

#[test]
fn a_group_takes_only_engines_whose_role_is_its_stage() {
    let workers = registry(&[
        engine_of("plain", "whole", Stage::Plain),
        engine_of("prefill", "split", Stage::Prefill),
        engine_of("decode", "split", Stage::Decode),
    ]);
    for stage in Stage::ALL {
        for model in ["whole", "split"] {
            let serves = (stage == Stage::Plain) == (model == "whole");
            let expected = if serves { vec![stage.as_str()] } else { vec![] };
            assert_eq!(
                offered_to(None, &workers, model, stage),
                expected,
                "{stage} {model}"
            );
        }
    }
}

#[test]
fn a_named_member_of_another_role_is_not_a_candidate() {
    let workers = registry(&[engine("p", Stage::Prefill), engine("d", Stage::Decode)]);
    let both: Option<&[&str]> = Some(&["p", "d"]);
    assert_eq!(offered_to(both, &workers, MODEL, Stage::Prefill), ["p"]);
    assert_eq!(offered_to(both, &workers, MODEL, Stage::Decode), ["d"]);
    assert_eq!(offered_to(both, &workers, MODEL, Stage::Plain), [""; 0]);
}

#[test]
fn membership_absent_is_everyone_and_an_explicit_empty_set_is_no_one() {
    let workers = registry(&plain_engines(&["a", "b", "c"]));
    let rows: [(Option<&[&str]>, &[&str]); 6] = [
        (None, &["a", "b", "c"]),
        (Some(&[]), &[]),
        (Some(&["c", "a"]), &["a", "c"]),
        (Some(&["b", "unknown"]), &["b"]),
        (Some(&["unknown"]), &[]),
        (Some(&["A", "a ", "aa"]), &[]),
    ];
    for (members, expected) in rows {
        let found = offered_to(members, &workers, MODEL, Stage::Plain);
        assert_eq!(found, expected, "{members:?}");
    }
}

#[test]
fn candidates_are_sorted_bytewise_by_id_whatever_the_order_of_registration() {
    for ids in [["w2", "w10", "w1", "W3"], ["w1", "W3", "w2", "w10"]] {
        let workers = registry(&plain_engines(&ids));
        assert_eq!(offered(&workers), ["W3", "w1", "w10", "w2"]);
    }
}

#[test]
fn an_unhealthy_engine_is_not_offered_until_it_is_healthy_again() {
    let engines = plain_engines(&["a", "b", "c"]);
    let workers = registry(&engines);
    engines[1].set_healthy(false);
    assert_eq!(offered(&workers), ["a", "c"]);
    engines[1].set_healthy(true);
    assert_eq!(offered(&workers), ["a", "b", "c"]);
    for engine in &engines {
        engine.set_healthy(false);
    }
    assert_eq!(offered(&workers), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_with_an_open_breaker_is_not_offered_until_its_cool_down_is_over() {
    let engines = plain_engines(&["a", "b"]);
    let workers = registry(&engines);
    open_breaker(&engines[0]);
    assert_eq!(offered(&workers), ["b"]);
    let cool_down = BreakerParams::default().cool_down;
    tokio::time::advance(cool_down - Duration::from_millis(1)).await;
    assert_eq!(offered(&workers), ["b"]);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(offered(&workers), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn filtering_claims_no_probe_and_a_probing_engine_is_not_offered() {
    let engines = plain_engines(&["a", "b"]);
    let workers = registry(&engines);
    open_breaker(&engines[0]);
    tokio::time::advance(BreakerParams::default().cool_down).await;
    for _ in 0..50 {
        assert_eq!(offered(&workers), ["a", "b"], "looking takes nothing");
    }
    let now = Instant::now();
    let mut probe = engines[0].breaker().claim(now).expect("still free");
    assert_eq!(offered(&workers), ["b"]);
    probe.settle(Outcome::Success, now);
    assert_eq!(offered(&workers), ["a", "b"]);
}

#[test]
fn an_empty_group_does_not_call_its_policy() {
    let engines = plain_engines(&["a"]);
    let workers = registry(&engines);
    let (group, journal) = group(Answer::First);
    engines[0].set_healthy(false);
    let result = ask_group(&group, &workers, MODEL, Stage::Plain);
    assert_eq!(result.unwrap_err(), PickError::NoCandidates);
    assert!(journal.lock().is_empty());
    assert!(!group.has_candidate(&workers, &MODEL.into(), Stage::Plain));
    engines[0].set_healthy(true);
    assert!(group.has_candidate(&workers, &MODEL.into(), Stage::Plain));
    assert!(journal.lock().is_empty(), "and neither does looking at it");
}

#[test]
fn load_never_hides_an_engine_from_a_policy() {
    let engines = plain_engines(&["a", "b"]);
    let _held = hold(&engines[0], 10_000);
    assert_eq!(offered(&registry(&engines)), ["a", "b"]);
}

/// What a group answers when its policy returns `engine`.
fn answer_with(engine: &Arc<Worker>, members: Option<&[&str]>) -> Result<Arc<Worker>, PickError> {
    let (mut group, _) = group(Answer::Engine(Arc::clone(engine)));
    if let Some(members) = members {
        group = group.with_worker_ids(members.iter().map(|id| (*id).into()));
    }
    let ill = self::engine("ill", Stage::Plain);
    ill.set_healthy(false);
    let mut engines = plain_engines(&["a", "b"]);
    engines.push(ill);
    if engine.id().as_str() == "mine" {
        engines.push(Arc::clone(engine));
    }
    let workers = registry(&engines);
    ask_group(&group, &workers, MODEL, Stage::Plain).map(|pick| pick.engine)
}

#[test]
fn the_very_handle_that_was_offered_is_returned() {
    let mine = engine("mine", Stage::Plain);
    let picked = answer_with(&mine, None).unwrap();
    assert!(Arc::ptr_eq(&picked, &mine));
}

#[test]
fn a_new_allocation_with_the_id_of_a_candidate_is_foreign() {
    let double = engine("a", Stage::Plain);
    let error = answer_with(&double, None).unwrap_err();
    assert_eq!(error, PickError::OutsideCandidates("a".into()));
}

#[test]
fn an_engine_outside_the_candidates_is_foreign_whatever_the_reason() {
    let rows = [
        engine("unregistered", Stage::Plain),
        engine("ill", Stage::Plain),
        engine("b", Stage::Prefill),
        engine_of("b", "other", Stage::Plain),
    ];
    for engine in rows {
        let expected = PickError::OutsideCandidates(engine.id().clone());
        assert_eq!(answer_with(&engine, None).unwrap_err(), expected);
    }
    let mine = engine("mine", Stage::Plain);
    let error = answer_with(&mine, Some(&["a", "b"])).unwrap_err();
    assert_eq!(error, PickError::OutsideCandidates("mine".into()));
}

#[test]
fn a_registered_engine_that_was_filtered_out_is_foreign() {
    let engines = plain_engines(&["a", "b"]);
    let workers = registry(&engines);
    let (group, journal) = group(Answer::Engine(Arc::clone(&engines[1])));
    assert!(ask_group(&group, &workers, MODEL, Stage::Plain).is_ok());
    engines[1].set_healthy(false);
    let error = ask_group(&group, &workers, MODEL, Stage::Plain).unwrap_err();
    assert_eq!(error, PickError::OutsideCandidates("b".into()));
    assert_eq!(journal.lock().len(), 2, "it is not asked a second time");
}

#[test]
fn a_policys_own_error_passes_unchanged_and_it_is_asked_once() {
    let workers = registry(&plain_engines(&["a", "b"]));
    let rejection = Rejection {
        engine: "a".into(),
        limit: Limit::KvTokens,
    };
    let errors = [
        PickError::NoCandidates,
        PickError::NoAdmissibleEngine(vec![]),
        PickError::NoAdmissibleEngine(vec![rejection.clone()]),
        PickError::AdmissionRejected(rejection),
        PickError::InvalidSignal("x"),
        PickError::InvalidConfiguration("y"),
    ];
    for error in errors {
        let (group, journal) = group(Answer::Fail(error.clone()));
        let found = ask_group(&group, &workers, MODEL, Stage::Plain).unwrap_err();
        assert_eq!(found, error);
        assert_eq!(journal.lock().len(), 1);
    }
}
