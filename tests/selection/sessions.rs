//! `session_aware` and `sticky`: policy-semantics §14 and §15. Both follow one protocol, so every
//! row is asked of both, with the reasons of each.

use std::sync::{Arc, Barrier};

use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::explain::{Compared, Explanation};
use sgl_edge::policies::{
    Admission, AdmissionLimits, Affinity, BoxFuture, Limit, Pick, PickError, PickRequest, Policy,
    PolicyKind, PolicyParams, PolicyServices, PowerOfTwoPolicy, Reason, Rejection,
    SessionAwarePolicy, StickyFallback, StickyParams, StickyPolicy, build,
};
use sgl_edge::state::{AffinityKind, AffinityScope, AffinityStore};
use sgl_edge::workers::Worker;

use crate::support::engines::{MODEL, engine, hold, plain_engines};
use crate::support::fakes::{Answer, FakeAdmission, FakePolicy, Journal};
use crate::support::picks::now;

/// The two policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Session,
    Sticky,
}

const BOTH: [Kind; 2] = [Kind::Session, Kind::Sticky];

/// What a row of the table answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Keyless,
    Bound,
    Assigned,
    Remapped,
}

impl Kind {
    fn reason(self, found: Found) -> Reason {
        match (self, found) {
            (Self::Session, Found::Keyless) => Reason::NoSession,
            (Self::Session, Found::Bound) => Reason::SessionPrimary,
            (Self::Session, Found::Assigned | Found::Remapped) => Reason::Assigned,
            (Self::Sticky, Found::Keyless) => Reason::NoRoutingKey,
            (Self::Sticky, Found::Bound) => Reason::StickyHit,
            (Self::Sticky, Found::Assigned) => Reason::StickyAssigned,
            (Self::Sticky, Found::Remapped) => Reason::StickyRemap,
        }
    }

    fn policy(self, affinity: Affinity) -> Box<dyn Policy> {
        match self {
            Self::Session => Box::new(SessionAwarePolicy::new(affinity)),
            Self::Sticky => Box::new(StickyPolicy::new(affinity)),
        }
    }
}

/// One policy over a store, with a fallback and a checker that can be watched.
struct Case {
    kind: Kind,
    policy: Box<dyn Policy>,
    store: Arc<AffinityStore>,
    admission: Arc<FakeAdmission>,
    model: ModelId,
    bucket: BucketId,
}

impl Case {
    fn new(kind: Kind, fallback: Arc<dyn Policy>, admission: Arc<FakeAdmission>) -> Self {
        let store: Arc<AffinityStore> = Arc::default();
        Self::over(kind, store, fallback, admission)
    }

    fn over(
        kind: Kind,
        store: Arc<AffinityStore>,
        fallback: Arc<dyn Policy>,
        admission: Arc<FakeAdmission>,
    ) -> Self {
        let policy = kind.policy(Affinity {
            store: Arc::clone(&store),
            fallback,
            loads: Arc::default(),
            admission: admission.clone(),
        });
        Self {
            kind,
            policy,
            store,
            admission,
            model: MODEL.into(),
            bucket: "b".into(),
        }
    }

    fn request<'a>(&'a self, key: Option<&'a str>) -> PickRequest<'a> {
        let (session_key, routing_key) = match self.kind {
            Kind::Session => (key, Some("of the other kind")),
            Kind::Sticky => (Some("of the other kind"), key),
        };
        PickRequest {
            model: &self.model,
            stage: Stage::Plain,
            bucket: &self.bucket,
            input_tokens: 1,
            expected_peak_tokens: None,
            token_ids: None,
            session_key,
            routing_key,
            explain: None,
        }
    }

    fn ask(&self, engines: &[Arc<Worker>], key: Option<&str>) -> Result<Pick, PickError> {
        now(self.policy.pick(engines, &self.request(key)))
    }

    fn scope<'a>(&'a self, key: &'a str) -> AffinityScope<'a> {
        AffinityScope {
            model: &self.model,
            stage: Stage::Plain,
            bucket: &self.bucket,
            key,
        }
    }

    fn seed(&self, key: &str, engine: &str) {
        self.store
            .bind(&self.scope(key), &engine.into(), |_| None::<()>);
    }

    fn binding(&self, key: &str) -> Option<String> {
        self.store.peek(&self.scope(key)).map(|id| id.to_string())
    }

    fn assert(&self, result: Result<Pick, PickError>, engine: &str, found: Found) {
        let pick = result.unwrap_or_else(|error| panic!("{:?}: {error}", self.kind));
        let wanted = (engine, self.kind.reason(found));
        assert_eq!(
            (pick.engine.id().as_str(), pick.reason),
            wanted,
            "{:?}",
            self.kind
        );
    }
}

fn first() -> Arc<dyn Policy> {
    FakePolicy::new(Answer::First, &Journal::default())
}

fn rejected(engine: &str) -> PickError {
    PickError::AdmissionRejected(Rejection {
        engine: engine.into(),
        limit: Limit::InflightRequests,
    })
}

/// A fallback that loses the race: somebody else binds the key while it chooses.
#[derive(Debug)]
struct Loser {
    store: Arc<AffinityStore>,
    winner: &'static str,
}

impl Policy for Loser {
    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> BoxFuture<'a, Result<Pick, PickError>> {
        let scope = AffinityScope {
            model: request.model,
            stage: request.stage,
            bucket: request.bucket,
            key: "k",
        };
        self.store.bind(&scope, &self.winner.into(), |_| None::<()>);
        let engine = Arc::clone(&engines[0]);
        let reason = Reason::RoundRobin;
        Box::pin(std::future::ready(Ok(Pick { engine, reason })))
    }
}

fn raced(kind: Kind, winner: &'static str, admission: Arc<FakeAdmission>) -> Case {
    let store: Arc<AffinityStore> = Arc::default();
    let loser = Arc::new(Loser {
        store: Arc::clone(&store),
        winner,
    });
    Case::over(kind, store, loser, admission)
}

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
    use std::time::Duration;
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

/// A policy as a file builds it.
fn built(
    params: &PolicyParams,
    limits: AdmissionLimits,
    services: &PolicyServices,
) -> Arc<dyn Policy> {
    build(params, limits, &MODEL.into(), services)
}

fn sessions() -> (Arc<dyn Policy>, PolicyServices) {
    let services = PolicyServices::new(Arc::default());
    let policy = built(
        &PolicyParams::SessionAware,
        AdmissionLimits::default(),
        &services,
    );
    (policy, services)
}

fn ask_at(
    policy: &dyn Policy,
    engines: &[Arc<Worker>],
    (model, stage, bucket): (&str, Stage, &str),
    key: &str,
) -> Result<(String, Reason), PickError> {
    let (model, bucket) = (model.into(), bucket.into());
    let request = PickRequest {
        model: &model,
        stage,
        bucket: &bucket,
        input_tokens: 1,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: Some(key),
        routing_key: Some(key),
        explain: None,
    };
    let pick = now(policy.pick(engines, &request))?;
    Ok((pick.engine.id().to_string(), pick.reason))
}

fn ask(policy: &dyn Policy, engines: &[Arc<Worker>], key: &str) -> (String, Reason) {
    ask_at(policy, engines, (MODEL, Stage::Plain, "b"), key).expect("a pick")
}

#[test]
fn the_worked_session_of_the_reference() {
    let engines = plain_engines(&["a", "b"]);
    let _b = hold(&engines[1], 9);
    let services = PolicyServices::new(Arc::default());
    let capped = AdmissionLimits {
        max_inflight_requests: Some(100),
        ..AdmissionLimits::default()
    };
    let policy = built(&PolicyParams::SessionAware, capped, &services);
    let policy = policy.as_ref();
    assert_eq!(ask(policy, &engines, "k"), ("a".into(), Reason::Assigned));
    let _a = hold(&engines[0], 99);
    assert_eq!(
        ask(policy, &engines, "k"),
        ("a".into(), Reason::SessionPrimary)
    );
    let one_more = hold(&engines[0], 1);
    let refused = ask_at(policy, &engines, (MODEL, Stage::Plain, "b"), "k");
    assert_eq!(refused.unwrap_err(), rejected("a"));
    drop(one_more);
    assert_eq!(
        ask(policy, &engines, "k"),
        ("a".into(), Reason::SessionPrimary)
    );
    assert_eq!(
        ask(policy, &engines[1..], "k"),
        ("b".into(), Reason::Assigned)
    );
    assert_eq!(
        ask(policy, &engines, "k"),
        ("b".into(), Reason::SessionPrimary)
    );
}

#[test]
fn two_hundred_first_requests_with_one_key_end_on_one_engine() {
    let engines = plain_engines(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    let sticky = StickyParams {
        fallback: StickyFallback::Random,
    };
    for params in [PolicyParams::SessionAware, PolicyParams::Sticky(sticky)] {
        let services = PolicyServices::new(Arc::default());
        let policy = built(&params, AdmissionLimits::default(), &services);
        let barrier = Barrier::new(200);
        let picks: Vec<(String, Reason)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..200)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        ask(policy.as_ref(), &engines, "k")
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let fresh = [Reason::Assigned, Reason::StickyAssigned];
        let assigned = picks.iter().filter(|(_, reason)| fresh.contains(reason));
        assert_eq!(assigned.count(), 1, "{params:?}");
        let (engine, _) = ask(policy.as_ref(), &engines, "k");
        assert!(picks.iter().all(|(other, _)| *other == engine), "{picks:?}");
    }
}

#[test]
fn models_buckets_and_stages_never_share_a_binding() {
    let engines = plain_engines(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    let (policy, services) = sessions();
    let mut scopes = Vec::new();
    for model in ["x", "y", "z", "w"] {
        for stage in Stage::ALL {
            for bucket in ["short", "long"] {
                scopes.push((model, stage, bucket));
            }
        }
    }
    let first: Vec<_> = scopes
        .iter()
        .map(|scope| ask_at(policy.as_ref(), &engines, *scope, "k").unwrap())
        .collect();
    assert!(first.iter().all(|(_, reason)| *reason == Reason::Assigned));
    // One key, four models in rotation: stable bindings, no remaps. Source: field-lessons L28.
    for _ in 0..10 {
        for (scope, (engine, _)) in scopes.iter().zip(&first) {
            let again = ask_at(policy.as_ref(), &engines, *scope, "k").unwrap();
            assert_eq!(again, (engine.clone(), Reason::SessionPrimary), "{scope:?}");
        }
    }
    let store = services.affinity.of(AffinityKind::Session, &MODEL.into());
    assert_eq!(store.len(), scopes.len());
}

#[test]
fn groups_of_one_bucket_share_the_store_of_the_process_and_kinds_do_not() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    let services = PolicyServices::new(Arc::default());
    let open = AdmissionLimits::default();
    let before = built(&PolicyParams::SessionAware, open, &services);
    let (engine, _) = ask(before.as_ref(), &engines, "k");
    // As a reload builds it: another object, the same bindings.
    let after = built(&PolicyParams::SessionAware, open, &services);
    assert_eq!(
        ask(after.as_ref(), &engines, "k"),
        (engine, Reason::SessionPrimary)
    );
    let sticky = built(
        &PolicyParams::Sticky(StickyParams::default()),
        open,
        &services,
    );
    assert_eq!(
        ask(sticky.as_ref(), &engines, "k").1,
        Reason::StickyAssigned
    );
}

#[test]
fn an_engine_added_never_moves_a_key_and_one_that_returns_has_its_keys_again() {
    let engines = plain_engines(&["a", "b", "c"]);
    let services = PolicyServices::new(Arc::default());
    let params = PolicyParams::Sticky(StickyParams::default());
    let policy = built(&params, AdmissionLimits::default(), &services);
    let policy = policy.as_ref();
    let keys: Vec<String> = (0..20).map(|key| key.to_string()).collect();
    let placed: Vec<_> = keys
        .iter()
        .map(|key| ask(policy, &engines[..2], key))
        .collect();
    for (key, (engine, _)) in keys.iter().zip(&placed) {
        assert_eq!(
            ask(policy, &engines, key),
            (engine.clone(), Reason::StickyHit)
        );
    }
    // Another handle with the same id is the same engine to a binding.
    let again = [engine("a", Stage::Plain), engine("b", Stage::Plain)];
    for (key, (engine, _)) in keys.iter().zip(&placed) {
        assert_eq!(
            ask(policy, &again, key),
            (engine.clone(), Reason::StickyHit)
        );
    }
}

#[test]
fn every_fallback_places_keys_its_own_way_and_round_robin_is_the_default() {
    assert_eq!(StickyParams::default().fallback, StickyFallback::RoundRobin);
    let engines = plain_engines(&["a", "b", "c"]);
    let _held = (hold(&engines[0], 5), hold(&engines[1], 5));
    let rows = [
        (StickyFallback::RoundRobin, PolicyKind::RoundRobin),
        (StickyFallback::Random, PolicyKind::Random),
        (StickyFallback::PowerOfTwo, PolicyKind::PowerOfTwo),
    ];
    for (fallback, kind) in rows {
        assert_eq!(StickyFallback::of(kind), Some(fallback));
        assert_eq!(fallback.params().kind(), kind);
        let services = PolicyServices::new(Arc::default());
        let params = PolicyParams::Sticky(StickyParams { fallback });
        let policy = built(&params, AdmissionLimits::default(), &services);
        let keys: Vec<String> = (0..60).map(|key| key.to_string()).collect();
        let picks: Vec<_> = keys
            .iter()
            .map(|key| ask(policy.as_ref(), &engines, key).0)
            .collect();
        let count = |id: &str| picks.iter().filter(|pick| *pick == id).count();
        match fallback {
            StickyFallback::RoundRobin => assert_eq!(picks[..4], ["a", "b", "c", "a"]),
            // The idle engine wins every pair that it is drawn into, two of three.
            StickyFallback::PowerOfTwo => assert!(count("c") > 25, "{picks:?}"),
            StickyFallback::Random => assert!(["a", "b", "c"].iter().all(|id| count(id) > 3)),
        }
    }
    for kind in [
        PolicyKind::SessionAware,
        PolicyKind::Sticky,
        PolicyKind::CacheAware,
    ] {
        assert_eq!(StickyFallback::of(kind), None, "{kind}");
    }
}

#[test]
fn the_fallback_has_no_caps_and_the_owner_checks_its_pick() {
    let engines = plain_engines(&["a", "b"]);
    let _held = (hold(&engines[0], 2), hold(&engines[1], 3));
    let services = PolicyServices::new(Arc::default());
    let limits = AdmissionLimits {
        max_inflight_requests: Some(2),
        ..AdmissionLimits::default()
    };
    // A capped rotation would say NoAdmissibleEngine; the owner names the one pick it refused.
    for (params, refused) in [
        (PolicyParams::SessionAware, "a"),
        (PolicyParams::Sticky(StickyParams::default()), "a"),
    ] {
        let policy = built(&params, limits, &services);
        let error = ask_at(policy.as_ref(), &engines, (MODEL, Stage::Plain, "b"), "k");
        assert_eq!(error.unwrap_err(), rejected(refused), "{params:?}");
    }
}

#[test]
fn explaining_says_what_a_pick_would_do_and_changes_nothing() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        for (bound, engine, found, asked) in [
            (None, "a", Found::Assigned, true),
            (Some("gone"), "a", Found::Remapped, true),
            (Some("b"), "b", Found::Bound, false),
        ] {
            let fallback = PowerOfTwoPolicy::new(
                Default::default(),
                Arc::default(),
                FakeAdmission::open(),
                crate::support::fakes::ScriptedDraw::new([0, 0]),
            );
            let case = Case::new(kind, Arc::new(fallback), FakeAdmission::open());
            if let Some(engine) = bound {
                case.seed("k", engine);
            }
            let explanation = Explanation::default();
            let request = PickRequest {
                explain: Some(&explanation),
                ..case.request(Some("k"))
            };
            case.assert(now(case.policy.pick(&engines, &request)), engine, found);
            assert_eq!(case.binding("k").as_deref(), bound, "unchanged");
            let Some(Compared::Binding { binding, fallback }) = explanation.take_compared() else {
                panic!("{explanation:?}")
            };
            let live = bound.filter(|id| *id == "b");
            assert_eq!(binding.map(|id| id.to_string()).as_deref(), live);
            assert_eq!(fallback.is_some(), asked);
            let sampled = fallback.and_then(|fallback| fallback.compared);
            assert_eq!(sampled.is_some(), asked);
            assert_eq!(
                case.admission.asked(),
                [engine],
                "the caps of this group alone"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn explaining_is_no_use_of_a_binding() {
    use std::time::Duration;
    let engines = plain_engines(&["a", "b"]);
    let idle = Duration::from_secs(600);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::open());
        case.seed("k", "b");
        tokio::time::advance(idle).await;
        let explanation = Explanation::default();
        let request = PickRequest {
            explain: Some(&explanation),
            ..case.request(Some("k"))
        };
        case.assert(now(case.policy.pick(&engines, &request)), "b", Found::Bound);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(case.store.sweep_expired(idle), 1);
    }
}

#[test]
fn a_cap_that_clears_gives_the_bound_engine_back() {
    // Source: field-lessons L39.
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        let capped = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = Arc::clone(&capped);
        let admission = FakeAdmission::new(move |engine| {
            let full = flag.load(std::sync::atomic::Ordering::Relaxed);
            Ok(if full && engine.id().as_str() == "a" {
                Admission::Reject(Limit::InflightRequests)
            } else {
                Admission::Allow
            })
        });
        let case = Case::new(kind, first(), admission);
        case.assert(case.ask(&engines, Some("k")), "a", Found::Assigned);
        capped.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(case.ask(&engines, Some("k")).unwrap_err(), rejected("a"));
        capped.store(false, std::sync::atomic::Ordering::Relaxed);
        case.assert(case.ask(&engines, Some("k")), "a", Found::Bound);
    }
}
