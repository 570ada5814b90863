//! The handler's loop over every sequence of up to three bucket results: policy-semantics §6.
//!
//! Hand-made buckets with scripted policies, because no file can express a foreign pick.

use std::sync::Arc;

use sgl_edge::buckets::{Bucket, BucketGroups, EngineGroup};
use sgl_edge::ids::Stage;
use sgl_edge::policies::{Disposition, Limit, PickError, Rejection};
use sgl_edge::server::ApiError;
use sgl_edge::server::metrics::Metrics;
use sgl_edge::server::select::{Selection, select};
use sgl_edge::workers::{Worker, WorkerRegistry};

use crate::support::engines::{engine, registry};
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::picks::{ids, now, unlimited};
use crate::support::routing::{prepared, value};

/// What one bucket says, at which of its stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Selected,
    /// The group has no candidates.
    Empty(Stage),
    /// The policy found nothing among its candidates.
    Missed(Stage),
    Rejected(Stage),
    NoneAdmissible(Stage),
    /// As above, with an empty list of reasons.
    NoneAdmissibleUnexplained(Stage),
    BadSignal(Stage),
    BadConfiguration(Stage),
    Foreign(Stage),
}

use Said::{
    BadConfiguration, BadSignal, Empty, Foreign, Missed, NoneAdmissible, NoneAdmissibleUnexplained,
    Rejected, Selected,
};

const EVERYTHING: [Said; 16] = [
    Selected,
    Empty(Stage::Plain),
    Empty(Stage::Prefill),
    Empty(Stage::Decode),
    Missed(Stage::Prefill),
    Missed(Stage::Decode),
    Rejected(Stage::Prefill),
    Rejected(Stage::Decode),
    NoneAdmissible(Stage::Prefill),
    NoneAdmissible(Stage::Decode),
    NoneAdmissibleUnexplained(Stage::Decode),
    BadSignal(Stage::Prefill),
    BadSignal(Stage::Decode),
    BadConfiguration(Stage::Decode),
    Foreign(Stage::Prefill),
    Foreign(Stage::Decode),
];

fn rejection() -> Rejection {
    Rejection {
        engine: "p".into(),
        limit: Limit::KvTokens,
    }
}

impl Said {
    /// The answers of the two policies that make a bucket say this.
    fn answers(self) -> (Answer, Answer) {
        let (stage, error) = match self {
            Selected | Empty(_) => return (Answer::First, Answer::First),
            Foreign(stage) => {
                let double = Answer::Engine(engine("p", stage));
                return at(stage, double);
            }
            Missed(stage) => (stage, PickError::NoCandidates),
            Rejected(stage) => (stage, PickError::AdmissionRejected(rejection())),
            NoneAdmissible(stage) => {
                let list = vec![rejection(), rejection()];
                (stage, PickError::NoAdmissibleEngine(list))
            }
            NoneAdmissibleUnexplained(stage) => (stage, PickError::NoAdmissibleEngine(vec![])),
            BadSignal(stage) => (stage, PickError::InvalidSignal("s")),
            BadConfiguration(stage) => (stage, PickError::InvalidConfiguration("c")),
        };
        at(stage, Answer::Fail(error))
    }

    fn bucket(self, id: &str, journal: &Journal) -> Bucket {
        let (prefill, decode) = self.answers();
        let group = |stage, answer| {
            let group = EngineGroup::new(FakePolicy::new(answer, journal));
            match self == Empty(stage) {
                true => group.with_worker_ids([]),
                false => group,
            }
        };
        let groups = match self {
            Empty(Stage::Plain) => BucketGroups::Plain(group(Stage::Plain, Answer::First)),
            _ => BucketGroups::Pd {
                prefill: group(Stage::Prefill, prefill),
                decode: group(Stage::Decode, decode),
            },
        };
        unlimited(id, groups)
    }
}

fn at(stage: Stage, answer: Answer) -> (Answer, Answer) {
    match stage {
        Stage::Prefill => (answer, Answer::First),
        _ => (Answer::First, answer),
    }
}

fn fleet() -> (Vec<Arc<Worker>>, WorkerRegistry) {
    let engines = vec![engine("p", Stage::Prefill), engine("d", Stage::Decode)];
    let workers = registry(&engines);
    (engines, workers)
}

/// The outcome of the whole loop and the buckets whose policies were asked, in order.
struct Run {
    result: Result<Selection, ApiError>,
    asked: Vec<String>,
}

fn run(sequence: &[Said], metrics: &Metrics) -> Run {
    let (engines, workers) = fleet();
    let journal = Journal::default();
    let buckets = sequence.iter().zip(["b0", "b1", "b2"]);
    let buckets = buckets.map(|(said, id)| said.bucket(id, &journal));
    let prepared = prepared(buckets.collect(), 1, None);
    let result = now(select(&prepared, &workers, metrics));
    assert!(engines.iter().all(|engine| engine.inflight() == 0));
    let mut asked: Vec<_> = journal.lock().drain(..).map(|call| call.bucket).collect();
    asked.dedup();
    Run { result, asked }
}

/// The short table of policy-semantics §6: index of the deciding bucket, and the answer.
fn model(sequence: &[Said]) -> (usize, Result<(), ApiError>) {
    let mut rejected = false;
    let mut missing = None;
    for (index, said) in sequence.iter().enumerate() {
        match said {
            Selected => return (index, Ok(())),
            BadSignal(_) | BadConfiguration(_) | Foreign(_) => {
                return (index, Err(ApiError::Internal));
            }
            Rejected(_) | NoneAdmissible(_) | NoneAdmissibleUnexplained(_) => rejected = true,
            Empty(stage) | Missed(stage) => missing = Some(*stage),
        }
    }
    let last = sequence.len() - 1;
    match missing {
        Some(stage) if !rejected => (last, Err(ApiError::NoWorkers(stage))),
        _ => (last, Err(ApiError::PolicySelectionFailed)),
    }
}

fn sequences() -> Vec<Vec<Said>> {
    let mut all: Vec<Vec<Said>> = Vec::new();
    let mut longest: Vec<Vec<Said>> = vec![vec![]];
    for _ in 0..3 {
        longest = longest
            .iter()
            .flat_map(|head| EVERYTHING.map(|said| [head.as_slice(), &[said]].concat()))
            .collect();
        all.extend(longest.iter().cloned());
    }
    all
}

#[test]
fn every_sequence_of_up_to_three_results_ends_as_the_table_says() {
    let metrics = Metrics::default();
    for sequence in sequences() {
        let (deciding, expected) = model(&sequence);
        let Run { result, asked } = run(&sequence, &metrics);
        let found = result.as_ref().map(|_| ()).map_err(Clone::clone);
        assert_eq!(found, expected, "{sequence:?}");
        if let Ok(selection) = &result {
            assert_eq!(selection.bucket.as_str(), format!("b{deciding}"));
            assert_eq!(selection.buckets_tried as usize, deciding + 1);
            assert_eq!(ids(&selection.pick), ["p", "d"], "{sequence:?}");
        }
        // Exactly the buckets up to the deciding one are asked; an empty first group asks nobody.
        let silent = [Empty(Stage::Plain), Empty(Stage::Prefill)];
        let tried = sequence.iter().zip(["b0", "b1", "b2"]).take(deciding + 1);
        let expected: Vec<_> = tried
            .filter(|(said, _)| !silent.contains(said))
            .map(|(_, id)| id)
            .collect();
        assert_eq!(asked, expected, "{sequence:?}");
    }
}

#[test]
fn every_outcome_has_its_status_and_code() {
    let metrics = Metrics::default();
    let rows = [
        (Rejected(Stage::Decode), 503, "policy_selection_failed"),
        (
            NoneAdmissible(Stage::Decode),
            503,
            "policy_selection_failed",
        ),
        (
            NoneAdmissibleUnexplained(Stage::Decode),
            503,
            "policy_selection_failed",
        ),
        (Empty(Stage::Plain), 503, "no_healthy_workers"),
        (Empty(Stage::Prefill), 503, "no_prefill_workers_available"),
        (Empty(Stage::Decode), 503, "no_decode_workers_available"),
        (BadSignal(Stage::Decode), 500, "internal_error"),
        (BadConfiguration(Stage::Decode), 500, "internal_error"),
        (Foreign(Stage::Prefill), 500, "internal_error"),
    ];
    for (said, status, code) in rows {
        let error = run(&[said], &metrics).result.expect_err("refused");
        assert_eq!((error.status(), error.code()), (status, code), "{said:?}");
        let text = error.message();
        let fixed = ["service unavailable", "internal error"];
        assert!(fixed.contains(&text.as_ref()), "{said:?} says {text}");
    }
}

#[test]
fn every_pick_error_advances_or_stops_as_designed() {
    let advance = [
        PickError::NoCandidates,
        PickError::NoAdmissibleEngine(vec![]),
        PickError::NoAdmissibleEngine(vec![rejection()]),
        PickError::AdmissionRejected(rejection()),
    ];
    let stop = [
        PickError::InvalidSignal("s"),
        PickError::InvalidConfiguration("c"),
        PickError::OutsideCandidates("e".into()),
        PickError::NoMatchingBucket,
    ];
    for error in advance {
        assert_eq!(error.disposition(), Disposition::Advance, "{error}");
    }
    for error in stop {
        assert_eq!(error.disposition(), Disposition::Stop, "{error}");
    }
}

#[test]
fn no_bucket_that_fits_is_400_and_a_peak_below_the_input_is_500() {
    let (_, workers) = fleet();
    let metrics = Metrics::default();
    let journal = Journal::default();
    let none = prepared(vec![], 1, None);
    let error = now(select(&none, &workers, &metrics)).expect_err("nothing fits");
    assert_eq!((error.status(), error.code()), (400, "bad_request"));
    assert!(error.message().contains("no bucket supports"));
    let contradiction = prepared(vec![Selected.bucket("b", &journal)], 5, Some(4));
    let error = now(select(&contradiction, &workers, &metrics)).expect_err("contradiction");
    assert_eq!(error, ApiError::Internal);
    assert!(journal.lock().is_empty(), "and no policy is asked");
}

#[test]
fn each_attempt_and_each_rejection_is_counted_once_and_only_a_complete_pick_is_a_decision() {
    let metrics = Metrics::default();
    let sequence = [
        NoneAdmissible(Stage::Decode),
        Empty(Stage::Decode),
        Selected,
    ];
    assert!(run(&sequence, &metrics).result.is_ok());
    let attempt = |bucket: &str, outcome: &str| {
        let labels = format!(r#"{{bucket="{bucket}",model="m",outcome="{outcome}"}}"#);
        value(&metrics, &format!("bucket_attempts_total{labels}"))
    };
    assert_eq!(attempt("b0", "rejected"), 1);
    assert_eq!(attempt("b1", "no_candidates"), 1);
    assert_eq!(attempt("b2", "selected"), 1);
    let labels = r#"{bucket="b0",limit="max_kv_tokens",model="m",stage="decode"}"#;
    let rejections = format!("admission_rejections_total{labels}");
    assert_eq!(value(&metrics, &rejections), 2, "two reasons, one each");
    let decisions = r#"policy_decisions_total{policy="round_robin",reason="round_robin"}"#;
    // Three prefill picks were made, two of them thrown away with their buckets.
    assert_eq!(value(&metrics, decisions), 1);
    assert!(run(&[Foreign(Stage::Decode)], &metrics).result.is_err());
    assert_eq!(attempt("b0", "error"), 1);
    assert_eq!(value(&metrics, decisions), 1);
}
