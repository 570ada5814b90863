//! `session_aware` and `sticky`: policy-semantics §14 and §15. Both follow one protocol, so every
//! row is asked of both, with the reasons of each.

mod explained;
mod from_files;
mod rows;

use std::sync::Arc;

use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::{
    Affinity, Limit, Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, Reason,
    Rejection, SessionAwarePolicy, StickyPolicy, at_once,
};
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::state::{AffinityScope, AffinityStore};
use sgl_edge::workers::Worker;

use crate::support::engines::MODEL;
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
        static NO_LOOKUPS: PrefixMemo<'static> = PrefixMemo::none();
        PickRequest {
            model: &self.model,
            stage: Stage::Plain,
            bucket: &self.bucket,
            input_tokens: 1,
            expected_peak_tokens: None,
            token_ids: None,
            session_key,
            routing_key,
            prefix: &NO_LOOKUPS,
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
        self.store.seed(&self.scope(key), &engine.into());
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
    ) -> PickFuture<'a> {
        let scope = AffinityScope {
            model: request.model,
            stage: request.stage,
            bucket: request.bucket,
            key: "k",
        };
        self.store.seed(&scope, &self.winner.into());
        let engine = Arc::clone(&engines[0]);
        let reason = Reason::RoundRobin;
        at_once(Ok(Pick { engine, reason }))
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
