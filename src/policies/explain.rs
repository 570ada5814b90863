//! What a pick saw, written down while it was made.
//!
//! A request that is only explained carries an [`Explanation`]; groups and policies record into it
//! what they compared and every admission check, on the very path that picks. With an explanation
//! present nothing may change: no cursor moves, no binding is made or refreshed, no counter counts.
//! Shapes: `explain.md` §2. Nothing here decides anything.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;

use crate::ids::{Stage, WorkerId};
use crate::policies::{Admission, Limit, Pick, PickError, PolicyKind, Reason};
use crate::workers::Worker;

/// What a policy looked at; one shape per policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Compared {
    /// `round_robin`.
    RoundRobin {
        /// Position before this pick.
        cursor: usize,
    },
    /// `random`: nothing to show.
    Random {},
    /// `power_of_two`.
    PowerOfTwo {
        /// Engines in the order drawn.
        sampled: Vec<WorkerId>,
        /// What their comparison used.
        source: LoadSource,
    },
    /// `load_based`.
    LoadBased {
        /// Where the scores come from.
        source: LoadSource,
        /// Score and in-flight of every admitted candidate.
        keys: BTreeMap<WorkerId, [u64; 2]>,
    },
    /// `session_aware`, `sticky`.
    Binding {
        /// The binding found among the candidates.
        binding: Option<WorkerId>,
        /// The fallback, when it was asked.
        fallback: Option<Fallback>,
    },
    /// `cache_aware`.
    CacheAware(CacheCompared),
}

/// Where the numbers of a comparison come from. Source: policy-semantics §8, §11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadSource {
    /// The engines' own reports.
    Reports,
    /// Requests this router holds on them.
    Inflight,
}

/// What a nested policy compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fallback {
    /// Its configured type.
    pub policy: &'static str,
    /// What it looked at; `None` when it was not reached.
    pub compared: Option<Box<Compared>>,
}

/// The comparison of `cache_aware`. Source: policy-semantics §16.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheCompared {
    /// How the prefix lookup ended.
    pub index: IndexAnswer,
    /// Blocks of this prompt, a last partial one included.
    pub query_blocks: u32,
    /// All hits in their order.
    pub hits: Vec<CacheHit>,
    /// How many of them survive the candidate bound.
    pub kept: usize,
    /// Those of the kept that were hard-checked.
    pub evaluated: Vec<WorkerId>,
    /// Those of the kept that the queue gate held back.
    pub gated: Vec<WorkerId>,
    /// Whether the whole group is at its queue limit.
    pub saturated: bool,
    /// The fallback, on a miss.
    pub fallback: Option<CacheFallback>,
}

/// How a prefix lookup ended. Source: policy-semantics §17.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexAnswer {
    /// It answered, with or without owners.
    Answered,
    /// No ids, or no block size yet: nothing was asked.
    NoSignal,
    /// Timeout, unreachable, overloaded or too large.
    Unavailable,
    /// It refused the query.
    Rejected,
}

/// One engine that holds a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheHit {
    /// The engine.
    pub engine: WorkerId,
    /// Blocks it holds from the start of the prompt.
    pub blocks: u32,
    /// The tokens those stand for.
    pub matched_tokens: u64,
    /// The tokens left to compute.
    pub uncached_tokens: u64,
}

/// The fallback of `cache_aware`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheFallback {
    /// Engines it could choose from.
    pub pool: Vec<WorkerId>,
    /// Engines in the order drawn.
    pub sampled: Vec<WorkerId>,
}

/// Why a member of the model and role was not offered to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotCandidate {
    /// The group's `worker_ids` leave it out.
    NotAMember,
    /// Active health checks took it out.
    Unhealthy,
    /// Its breaker admits nothing now.
    BreakerOpen,
}

/// One admission check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The engine.
    pub engine: WorkerId,
    /// The cap that refused it; `None` when it was allowed.
    pub limit: Option<Limit>,
}

/// One pick of one group.
#[derive(Debug, Clone)]
pub struct GroupTrace {
    /// The group's role.
    pub stage: Stage,
    /// Its policy.
    pub policy: PolicyKind,
    /// The model's engines of that role, by id, with the reason against each.
    pub engines: Vec<(WorkerId, Option<NotCandidate>)>,
    /// What the policy looked at; `None` when it was not called or ended before.
    pub compared: Option<Compared>,
    /// Every check in the order made.
    pub admission: Vec<Check>,
    /// How it ended.
    pub outcome: Result<(WorkerId, Reason), PickError>,
}

/// The record of one bucket attempt.
#[derive(Debug, Default)]
pub struct Explanation {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    compared: Option<Compared>,
    admission: Vec<Check>,
    groups: Vec<GroupTrace>,
}

impl Explanation {
    /// Records what the policy that picks now looked at. The last call before the pick ends wins.
    pub fn compared(&self, compared: Compared) {
        self.state.lock().compared = Some(compared);
    }

    /// Records one admission check of the policy that picks now.
    pub fn checked(&self, engine: &Worker, answer: Admission) {
        self.state.lock().admission.push(Check {
            engine: engine.id().clone(),
            limit: match answer {
                Admission::Allow => None,
                Admission::Reject(limit) => Some(limit),
            },
        });
    }

    /// Takes what was compared since the last call: how a policy reads its nested fallback.
    #[must_use]
    pub fn take_compared(&self) -> Option<Compared> {
        self.state.lock().compared.take()
    }

    /// Ends the record of one group's pick.
    pub(crate) fn group(
        &self,
        stage: Stage,
        policy: PolicyKind,
        engines: Vec<(WorkerId, Option<NotCandidate>)>,
        result: &Result<Pick, PickError>,
    ) {
        let mut state = self.state.lock();
        let trace = GroupTrace {
            stage,
            policy,
            engines,
            compared: state.compared.take(),
            admission: std::mem::take(&mut state.admission),
            outcome: match result {
                Ok(pick) => Ok((pick.engine.id().clone(), pick.reason)),
                Err(error) => Err(error.clone()),
            },
        };
        state.groups.push(trace);
    }

    /// The picks of the attempt in the order made.
    #[must_use]
    pub fn into_groups(self) -> Vec<GroupTrace> {
        self.state.into_inner().groups
    }
}
