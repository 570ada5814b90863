//! Requests with one routing key go where its binding points; the configured fallback places new
//! and moved keys, and requests without a key.
//!
//! Adding an engine never moves a key. Source: design §5, policy-semantics §15. The protocol is
//! [`Affinity`]'s.

use std::sync::Arc;

use crate::policies::affinity::{Affinity, Placed};
use crate::policies::{Pick, PickFuture, PickRequest, Policy, PolicyKind, Reason, in_time};
use crate::workers::Worker;

/// `sticky`.
#[derive(Debug)]
pub struct StickyPolicy(Affinity);

impl StickyPolicy {
    /// A policy over `affinity`.
    #[must_use]
    pub const fn new(affinity: Affinity) -> Self {
        Self(affinity)
    }
}

impl Policy for StickyPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Sticky
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        in_time(async move {
            let (engine, placed) = self.0.place(engines, request, request.routing_key).await?;
            let reason = match placed {
                Placed::Keyless => Reason::NoRoutingKey,
                Placed::Bound => Reason::StickyHit,
                Placed::Assigned => Reason::StickyAssigned,
                Placed::Remapped => Reason::StickyRemap,
            };
            Ok(Pick { engine, reason })
        })
    }
}
