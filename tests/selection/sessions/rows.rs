//! The eleven rows of policy-semantics §14, and the races between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sgl_edge::ids::Stage;
use sgl_edge::policies::{Admission, Limit, PickError};

use super::{BOTH, Case, Found, first, raced, rejected};
use crate::support::engines::{engine, hold, plain_engines};
use crate::support::fakes::{Answer, FakeAdmission, FakePolicy, Journal};

#[test]
fn row_1_without_a_key_the_fallback_picks_and_nothing_is_bound() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        for key in [None, Some("")] {
            let case = Case::new(kind, first(), FakeAdmission::open());
            case.assert(case.ask(&engines, key), "a", Found::Keyless);
            assert!(case.store.is_empty());
        }
    }
}

#[test]
fn row_2_without_a_key_a_refused_pick_is_an_error_and_nothing_is_bound() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        for key in [None, Some("")] {
            let case = Case::new(kind, first(), FakeAdmission::refusing(&["a"]));
            assert_eq!(case.ask(&engines, key).unwrap_err(), rejected("a"));
            assert!(case.store.is_empty());
        }
    }
}

#[test]
fn row_3_a_new_key_is_assigned_and_bound() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::open());
        case.assert(case.ask(&engines, Some("k")), "a", Found::Assigned);
        assert_eq!(case.binding("k").as_deref(), Some("a"));
    }
}

#[test]
fn row_4_a_new_key_whose_pick_is_refused_is_not_bound() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::refusing(&["a"]));
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("a"));
        assert!(case.store.is_empty());
    }
}

#[test]
fn row_5_a_binding_wins_whatever_its_pressure_and_the_fallback_is_not_asked() {
    let engines = plain_engines(&["a", "b"]);
    let _held = hold(&engines[1], 100);
    for kind in BOTH {
        let journal = Journal::default();
        let fallback = FakePolicy::new(Answer::First, &journal);
        let case = Case::new(kind, fallback, FakeAdmission::open());
        case.seed("k", "b");
        case.assert(case.ask(&engines, Some("k")), "b", Found::Bound);
        assert!(journal.lock().is_empty());
        assert_eq!(case.admission.asked(), ["b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn row_5_a_used_binding_is_refreshed() {
    let engines = plain_engines(&["a", "b"]);
    let idle = Duration::from_secs(600);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::open());
        case.seed("k", "b");
        tokio::time::advance(idle).await;
        case.assert(case.ask(&engines, Some("k")), "b", Found::Bound);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(case.store.sweep_expired(idle), 0);
    }
}

#[test]
fn row_6_a_refused_binding_is_an_error_is_kept_and_no_other_engine_is_tried() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::refusing(&["b"]));
        case.seed("k", "b");
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("b"));
        assert_eq!(case.admission.asked(), ["b"]);
        assert_eq!(case.binding("k").as_deref(), Some("b"));
    }
}

#[test]
fn row_7_a_binding_outside_the_candidates_is_replaced_by_an_admitted_pick() {
    let engines = plain_engines(&["a"]);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::open());
        case.seed("k", "b");
        case.assert(case.ask(&engines, Some("k")), "a", Found::Remapped);
        assert_eq!(case.binding("k").as_deref(), Some("a"));
    }
}

#[test]
fn row_8_a_binding_outside_the_candidates_stays_when_the_pick_is_refused() {
    let engines = plain_engines(&["a"]);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::refusing(&["a"]));
        case.seed("k", "b");
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("a"));
        assert_eq!(case.binding("k").as_deref(), Some("b"));
    }
}

#[test]
fn row_9_the_winner_of_a_race_is_admitted_after_the_pick_and_returned() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = raced(kind, "b", FakeAdmission::open());
        case.assert(case.ask(&engines, Some("k")), "b", Found::Bound);
        assert_eq!(case.admission.asked(), ["a", "b"]);
        assert_eq!(case.binding("k").as_deref(), Some("b"));
    }
}

#[test]
fn row_10_a_refused_winner_of_a_race_is_an_error_and_stays_bound() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = raced(kind, "b", FakeAdmission::refusing(&["b"]));
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("b"));
        assert_eq!(case.admission.asked(), ["a", "b"]);
        assert_eq!(case.binding("k").as_deref(), Some("b"));
    }
}

#[test]
fn a_race_won_by_the_same_engine_is_checked_once() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let case = raced(kind, "a", FakeAdmission::open());
        case.assert(case.ask(&engines, Some("k")), "a", Found::Bound);
        assert_eq!(case.admission.asked(), ["a"]);
    }
}

#[test]
fn row_11_an_error_of_the_checker_is_passed_on_and_binds_nothing() {
    let engines = plain_engines(&["a", "b"]);
    let error = PickError::InvalidSignal("unusable");
    for kind in BOTH {
        for bound in [None, Some("gone")] {
            let answer = error.clone();
            let admission = FakeAdmission::new(move |_| Err(answer.clone()));
            let case = Case::new(kind, first(), admission);
            if let Some(engine) = bound {
                case.seed("k", engine);
            }
            assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), error);
            assert_eq!(case.binding("k").as_deref(), bound);
        }
    }
}

#[test]
fn without_candidates_nothing_is_looked_up() {
    for kind in BOTH {
        let journal = Journal::default();
        let fallback = FakePolicy::new(Answer::First, &journal);
        let case = Case::new(kind, fallback, FakeAdmission::open());
        for key in [None, Some("k")] {
            assert_eq!(case.ask(&[], key).unwrap_err(), PickError::NoCandidates);
        }
        assert!(journal.lock().is_empty() && case.admission.asked().is_empty());
    }
}

#[test]
fn an_error_of_the_fallback_is_passed_on_and_a_foreign_pick_is_never_bound() {
    let engines = plain_engines(&["a", "b"]);
    let foreign = engine("a", Stage::Plain);
    for kind in BOTH {
        let fails = FakePolicy::new(Answer::Fail(PickError::NoCandidates), &Journal::default());
        let case = Case::new(kind, fails, FakeAdmission::open());
        assert_eq!(
            case.ask(&engines, Some("k")).unwrap_err(),
            PickError::NoCandidates
        );
        let stranger = Answer::Engine(Arc::clone(&foreign));
        let stranger = FakePolicy::new(stranger, &Journal::default());
        let case = Case::new(kind, stranger, FakeAdmission::open());
        let error = case.ask(&engines, Some("k")).unwrap_err();
        assert_eq!(error, PickError::OutsideCandidates("a".into()));
        assert!(case.store.is_empty());
    }
}

#[test]
fn a_cap_that_clears_gives_the_bound_engine_back() {
    // Source: field-lessons L39.
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let capped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&capped);
        let admission = FakeAdmission::new(move |engine| {
            let full = flag.load(Ordering::Relaxed);
            Ok(if full && engine.id().as_str() == "a" {
                Admission::Reject(Limit::InflightRequests)
            } else {
                Admission::Allow
            })
        });
        let case = Case::new(kind, first(), admission);
        case.assert(case.ask(&engines, Some("k")), "a", Found::Assigned);
        capped.store(true, Ordering::Relaxed);
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("a"));
        capped.store(false, Ordering::Relaxed);
        case.assert(case.ask(&engines, Some("k")), "a", Found::Bound);
    }
}
