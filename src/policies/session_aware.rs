//! Requests of one session go where its binding points; power-of-two places new sessions.
//!
//! Source: design §5, policy-semantics §14. The protocol is [`Affinity`]'s.

use std::sync::Arc;

use crate::policies::affinity::{Affinity, Placed};
use crate::policies::{Pick, PickFuture, PickRequest, Policy, PolicyKind, Reason, in_time};
use crate::workers::Worker;

/// `session_aware`.
#[derive(Debug)]
pub struct SessionAwarePolicy(Affinity);

impl SessionAwarePolicy {
    /// A policy over `affinity`, whose fallback is power-of-two.
    #[must_use]
    pub const fn new(affinity: Affinity) -> Self {
        Self(affinity)
    }
}

impl Policy for SessionAwarePolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::SessionAware
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        in_time(async move {
            let (engine, placed) = self.0.place(engines, request, request.session_key).await?;
            let reason = match placed {
                Placed::Keyless => Reason::NoSession,
                Placed::Bound => Reason::SessionPrimary,
                Placed::Assigned | Placed::Remapped => Reason::Assigned,
            };
            Ok(Pick { engine, reason })
        })
    }
}
