//! The protocol of `session_aware` and `sticky`: reuse an admitted binding, else place anew.
//!
//! A binding is made or replaced only after admission. A bound engine that admission refuses is an
//! error of this bucket and stays bound: no other engine is tried, whatever the pressure. A binding
//! outside the candidates cannot win. When two first requests race, the store's answer wins and is
//! admitted too; the store binds in one step, so there is no loop. The fallback picks without caps,
//! from observations of its own. Source: design §6 "Affinity state", policy-semantics §13, §14.

use std::sync::Arc;

use crate::ids::WorkerId;
use crate::policies::admission::{self, EngineAdmission};
use crate::policies::explain::{Compared, Explanation, Fallback};
use crate::policies::{PickError, PickRequest, Policy};
use crate::state::{AffinityScope, AffinityStore, Binding, EngineLoadTable};
use crate::workers::Worker;

/// What a policy that reuses bindings is made of.
#[derive(Debug)]
pub struct Affinity {
    /// Bindings of one kind and model.
    pub store: Arc<AffinityStore>,
    /// Places new and moved keys, and requests without a key. Has no caps.
    pub fallback: Arc<dyn Policy>,
    /// Read for admission only.
    pub loads: Arc<EngineLoadTable>,
    /// The caps of the group.
    pub admission: Arc<dyn EngineAdmission>,
}

/// How an engine was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// There is no key; nothing is bound.
    Keyless,
    /// By a binding, which may be a moment old.
    Bound,
    /// By the fallback; the key had no binding.
    Assigned,
    /// By the fallback; the key's binding pointed outside the candidates.
    Remapped,
}

impl Affinity {
    /// The engine for `key` among `engines`. Source: the eleven rows of policy-semantics §14.
    pub(super) async fn place(
        &self,
        engines: &[Arc<Worker>],
        request: &PickRequest<'_>,
        key: Option<&str>,
    ) -> Result<(Arc<Worker>, Placed), PickError> {
        if engines.is_empty() {
            return Err(PickError::NoCandidates);
        }
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            let engine = self.ask_fallback(engines, request).await?;
            self.admit(&engine, request.explain)?;
            return Ok((engine, Placed::Keyless));
        };
        let scope = AffinityScope {
            model: request.model,
            stage: request.stage,
            bucket: request.bucket,
            key,
        };
        let find = |id: &WorkerId| candidate(engines, id).cloned();
        let bound = match request.explain {
            None => self.store.bound(&scope, find),
            Some(_) => self.store.peek(&scope).as_ref().and_then(find),
        };
        if let Some(engine) = bound {
            note(request.explain, Some(engine.id()), None);
            self.admit(&engine, request.explain)?;
            return Ok((engine, Placed::Bound));
        }
        let engine = self.ask_fallback(engines, request).await?;
        self.admit(&engine, request.explain)?;
        let binding = match request.explain {
            None => self.store.bind(&scope, engine.id(), find),
            Some(_) if self.store.peek(&scope).is_some() => Binding::Replaced,
            Some(_) => Binding::Created,
        };
        match binding {
            Binding::Created => Ok((engine, Placed::Assigned)),
            Binding::Replaced => Ok((engine, Placed::Remapped)),
            Binding::Kept(winner) => {
                if !Arc::ptr_eq(&winner, &engine) {
                    self.admit(&winner, request.explain)?;
                }
                Ok((winner, Placed::Bound))
            }
        }
    }

    /// The fallback's pick, if it is one of `engines`: a foreign one must not be bound.
    async fn ask_fallback(
        &self,
        engines: &[Arc<Worker>],
        request: &PickRequest<'_>,
    ) -> Result<Arc<Worker>, PickError> {
        // A record of its own: what it checks are not the caps of this group.
        let inner = request.explain.map(|_| Explanation::default());
        let nested = PickRequest {
            explain: inner.as_ref(),
            ..*request
        };
        let picked = self.fallback.pick(engines, &nested).await;
        if let Some(inner) = inner {
            let fallback = Fallback {
                policy: self.fallback.kind().as_str(),
                compared: inner.take_compared().map(Box::new),
            };
            note(request.explain, None, Some(fallback));
        }
        let engine = picked?.engine;
        match candidate(engines, engine.id()) {
            Some(candidate) if Arc::ptr_eq(candidate, &engine) => Ok(engine),
            Some(_) | None => Err(PickError::OutsideCandidates(engine.id().clone())),
        }
    }

    fn admit(&self, engine: &Worker, explain: Option<&Explanation>) -> Result<(), PickError> {
        if explain.is_none() && self.admission.admits_everything() {
            return Ok(());
        }
        let snapshot = self.loads.capture([engine.id()]);
        admission::require(self.admission.as_ref(), engine, &snapshot, explain)
    }
}

fn note(explain: Option<&Explanation>, binding: Option<&WorkerId>, fallback: Option<Fallback>) {
    if let Some(explain) = explain {
        explain.compared(Compared::Binding {
            binding: binding.cloned(),
            fallback,
        });
    }
}

/// The candidate with this id. Candidates are sorted by id.
fn candidate<'e>(engines: &'e [Arc<Worker>], id: &WorkerId) -> Option<&'e Arc<Worker>> {
    debug_assert!(engines.is_sorted_by(|a, b| a.id() <= b.id()), "by id");
    let at = engines
        .binary_search_by(|engine| engine.id().cmp(id))
        .ok()?;
    engines.get(at)
}
