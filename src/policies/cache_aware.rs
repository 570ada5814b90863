//! Prefer the engine that already holds the prompt's prefix, whenever that is really better.
//!
//! The eight steps of policy-semantics §16: look up once (through the request's memo), keep what is
//! deep enough, bound the candidates by uncached work and pressure, hold back engines over the soft
//! queue limit, hard-check the rest, let the pressure guard trade a little recomputation for a much
//! shorter queue, pin a holder when everybody is full, and on a miss fall back to load.
//!
//! The soft gate is a preference and never a refusal; hard admission is never bypassed, not even by
//! the pin, and a hard refusal is an error for the bucket loop, not a miss. Whoever ranks three or
//! more engines by pressure chooses one source for the whole set first. Serves plain and prefill
//! groups only. Source: design §5 "Cache-aware behavior".

mod counters;
mod hits;
mod params;
mod ranking;

use std::sync::Arc;
use std::time::Instant;

pub use counters::CacheCounters;
pub use params::CacheAwareParams;

use crate::ids::{Stage, WorkerId};
use crate::policies::admission::{self, Admission, AdmissionLimits, EngineAdmission};
use crate::policies::explain::{CacheCompared, CacheFallback, Compared, Explanation, IndexAnswer};
use crate::policies::{
    Pick, PickError, PickFuture, PickRequest, Policy, PolicyKind, PolicyServices, PowerOfTwoPolicy,
    Reason, Rejection, ids, in_time,
};
use crate::state::prefix::{CacheSource, PrefixAnswer};
use crate::state::{EngineLoadTable, LoadSnapshot};
use crate::workers::Worker;
use hits::{Gate, Hit};

/// `cache_aware`.
#[derive(Debug)]
pub struct CacheAwarePolicy {
    params: CacheAwareParams,
    source: Arc<dyn CacheSource>,
    loads: Arc<EngineLoadTable>,
    admission: Arc<dyn EngineAdmission>,
    fallback: PowerOfTwoPolicy,
    counters: Arc<CacheCounters>,
}

/// One pick, from the lookup on.
struct Attempt<'e> {
    engines: &'e [Arc<Worker>],
    snapshot: LoadSnapshot,
    explain: Option<&'e Explanation>,
    rejections: Vec<Rejection>,
}

impl CacheAwarePolicy {
    /// A policy over the prefix source of `services`, with a load-based fallback of its own that
    /// asks no admission.
    #[must_use]
    pub fn new(
        params: CacheAwareParams,
        admission: Arc<dyn EngineAdmission>,
        services: &PolicyServices,
    ) -> Self {
        let loads = Arc::clone(&services.loads);
        let fallback = PowerOfTwoPolicy::new(
            params.min_load_choices,
            Arc::clone(&loads),
            Arc::new(AdmissionLimits::default()),
            Arc::clone(&services.draw),
        );
        Self {
            params,
            source: Arc::clone(&services.prefix_source),
            loads,
            admission,
            fallback,
            counters: Arc::clone(&services.cache_counters),
        }
    }

    async fn choose(
        &self,
        engines: &[Arc<Worker>],
        request: &PickRequest<'_>,
    ) -> Result<Pick, PickError> {
        if engines.is_empty() {
            return Err(PickError::NoCandidates);
        }
        if request.stage == Stage::Decode {
            let problem = "cache_aware serves plain and prefill groups only";
            return Err(PickError::InvalidConfiguration(problem));
        }
        let answer = self.look_up(request).await?;
        // After the lookup, which may have gone over a network: loads are not older than need be.
        let snapshot = self.loads.capture(ids(engines));
        let hits = hits::kept(&self.params, engines, request, &answer, &snapshot);
        let gate = Gate::new(&self.params, engines, hits.kept(), &snapshot);
        let mut seen = compared(&answer, &hits, &gate);
        let mut attempt = Attempt {
            engines,
            snapshot,
            explain: request.explain,
            rejections: Vec::new(),
        };
        if let Some(pick) = self.holder(&gate, &mut attempt)? {
            record(request.explain, seen);
            return Ok(pick);
        }
        if !attempt.rejections.is_empty() {
            record(request.explain, seen);
            return Err(PickError::NoAdmissibleEngine(attempt.rejections));
        }
        self.miss(request, &gate, &attempt, &mut seen).await
    }

    /// Step 2.
    async fn look_up(&self, request: &PickRequest<'_>) -> Result<Arc<PrefixAnswer>, PickError> {
        let started = Instant::now();
        let answer = request.prefix.lookup(&self.source).await;
        if request.explain.is_none() {
            self.counters
                .lookup_seconds
                .observe(started.elapsed().as_secs_f64());
            self.counters.looked_up(answer.as_deref().ok());
        }
        match answer {
            Ok(answer) => {
                if let PrefixAnswer::Unavailable(why) = *answer {
                    tracing::warn!(model = %request.model, %why, "prefix index unavailable; routed as a miss");
                }
                Ok(answer)
            }
            Err(error) => {
                tracing::error!(model = %request.model, %error, "prefix lookup failed");
                let nothing = hits::Hits::default();
                let mut seen = compared(&PrefixAnswer::NoSignal, &nothing, &Gate::default());
                seen.index = IndexAnswer::Rejected;
                record(request.explain, seen);
                Err(PickError::InvalidSignal(
                    "the prefix index rejected the query",
                ))
            }
        }
    }

    /// Steps 6 and 7: an admitted holder, if the rules name one.
    fn holder<'e>(
        &self,
        gate: &Gate<'e>,
        attempt: &mut Attempt<'e>,
    ) -> Result<Option<Pick>, PickError> {
        let admitted = self.admitted(&gate.evaluated, attempt)?;
        if !admitted.is_empty() {
            let counters = attempt.explain.is_none().then_some(&*self.counters);
            let winner = ranking::tournament(
                &self.params,
                &gate.evaluated,
                &admitted,
                &attempt.snapshot,
                counters,
            );
            let reason = match gate.saturated {
                true => Reason::SaturationPin,
                false => Reason::CacheCandidate,
            };
            return Ok(winner.map(|hit| pick(hit.engine, reason)));
        }
        if !gate.floor_reached(&self.params, attempt.engines, &attempt.snapshot) {
            return Ok(None);
        }
        let admitted = self.admitted(&gate.gated, attempt)?;
        let winner = ranking::least_pressure(&gate.gated, &admitted, &attempt.snapshot);
        Ok(winner.map(|hit| pick(hit.engine, Reason::SaturationPin)))
    }

    /// The hits that hard admission lets through, in their order; every one of `hits` is asked.
    fn admitted<'e>(
        &self,
        hits: &[Hit<'e>],
        attempt: &mut Attempt<'e>,
    ) -> Result<Vec<Hit<'e>>, PickError> {
        let mut admitted = Vec::with_capacity(hits.len());
        for hit in hits {
            let checker = self.admission.as_ref();
            let answer = admission::ask(checker, hit.engine, &attempt.snapshot, attempt.explain)?;
            let refused = match answer {
                Admission::Allow => {
                    admitted.push(*hit);
                    false
                }
                Admission::Reject(limit) => {
                    let engine = hit.engine.id().clone();
                    attempt.rejections.push(Rejection { engine, limit });
                    true
                }
            };
            if attempt.explain.is_none() {
                self.counters.admission_evaluated.inc();
                self.counters.admission_rejected.inc_by(u64::from(refused));
            }
        }
        Ok(admitted)
    }

    /// Step 8: load decides, among engines below the soft limit where there are any.
    async fn miss(
        &self,
        request: &PickRequest<'_>,
        gate: &Gate<'_>,
        attempt: &Attempt<'_>,
        seen: &mut CacheCompared,
    ) -> Result<Pick, PickError> {
        let pool = gate.pool(&self.params, attempt.engines, &attempt.snapshot);
        let nested = request.explain.map(|_| Explanation::default());
        let inner = PickRequest {
            explain: nested.as_ref(),
            ..*request
        };
        let result = self.fallback.pick(&pool, &inner).await;
        if let Some(nested) = &nested {
            let sampled = match nested.take_compared() {
                Some(Compared::PowerOfTwo { sampled, .. }) => sampled,
                _ => Vec::new(),
            };
            let pool = pool.iter().map(|engine| engine.id().clone()).collect();
            seen.fallback = Some(CacheFallback { pool, sampled });
        }
        record(request.explain, seen.clone());
        let engine = result?.engine;
        if !pool.iter().any(|member| Arc::ptr_eq(member, &engine)) {
            return Err(PickError::OutsideCandidates(engine.id().clone()));
        }
        let checker = self.admission.as_ref();
        admission::require(checker, &engine, &attempt.snapshot, request.explain)?;
        let diverted_blocks = gate.gated.iter().map(|hit| hit.blocks).max().unwrap_or(0);
        Ok(pick(&engine, Reason::NoCacheCandidate { diverted_blocks }))
    }
}

fn pick(engine: &Arc<Worker>, reason: Reason) -> Pick {
    Pick {
        engine: Arc::clone(engine),
        reason,
    }
}

fn record(explain: Option<&Explanation>, seen: CacheCompared) {
    if let Some(explain) = explain {
        explain.compared(Compared::CacheAware(seen));
    }
}

fn compared(answer: &PrefixAnswer, hits: &hits::Hits<'_>, gate: &Gate<'_>) -> CacheCompared {
    let ids = |hits: &[Hit<'_>]| -> Vec<WorkerId> {
        hits.iter().map(|hit| hit.engine.id().clone()).collect()
    };
    CacheCompared {
        index: match answer {
            PrefixAnswer::NoSignal => IndexAnswer::NoSignal,
            PrefixAnswer::Unavailable(_) => IndexAnswer::Unavailable,
            PrefixAnswer::Matches(_) => IndexAnswer::Answered,
        },
        query_blocks: match answer {
            PrefixAnswer::Matches(matches) => matches.query_blocks(),
            PrefixAnswer::NoSignal | PrefixAnswer::Unavailable(_) => 0,
        },
        hits: hits.all.iter().map(Hit::shown).collect(),
        kept: hits.kept,
        evaluated: ids(&gate.evaluated),
        gated: ids(&gate.gated),
        saturated: gate.saturated,
        fallback: None,
    }
}

impl Policy for CacheAwarePolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::CacheAware
    }

    fn pick<'a>(
        &'a self,
        engines: &'a [Arc<Worker>],
        request: &'a PickRequest<'a>,
    ) -> PickFuture<'a> {
        in_time(self.choose(engines, request))
    }
}
