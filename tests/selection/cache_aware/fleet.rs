//! Fleets in words: `P1 d112 t9000 w5; P2 stale` is two engines, the first with 112 blocks of the
//! prompt, 9000 waiting uncached tokens and 5 waiting requests, the second without a report.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::explain::{CacheCompared, Compared, Explanation};
use sgl_edge::policies::{
    AdmissionLimits, CacheAwareParams, CacheAwarePolicy, EngineAdmission, Pick, PickError,
    PickRequest, Policy, PolicyServices,
};
use sgl_edge::state::EngineLoad;
use sgl_edge::state::prefix::{
    BoxFuture, CacheSource, LookupRejected, PrefixAnswer, PrefixMatches, PrefixMemo, PrefixQuery,
};
use sgl_edge::workers::{InflightGuard, Worker};

use crate::support::engines::{MODEL, engine_at, hold};
use crate::support::loads::{basic, prefill_load, table, with_estimate};
use crate::support::picks::now;

/// Answers every lookup the same, and counts them.
#[derive(Debug)]
pub(crate) struct FixedSource {
    pub(crate) answer: Result<PrefixAnswer, LookupRejected>,
    pub(crate) asked: Mutex<Vec<Vec<u32>>>,
}

impl FixedSource {
    pub(crate) fn new(answer: Result<PrefixAnswer, LookupRejected>) -> Arc<Self> {
        Arc::new(Self {
            answer,
            asked: Mutex::default(),
        })
    }
}

impl CacheSource for FixedSource {
    fn lookup<'a>(
        &'a self,
        query: PrefixQuery<'a>,
    ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>> {
        self.asked.lock().push(query.ids.to_vec());
        Box::pin(std::future::ready(self.answer.clone()))
    }
}

/// Engines with their reports, and what an index says of one prompt.
pub(crate) struct Fleet {
    pub(crate) engines: Vec<Arc<Worker>>,
    pub(crate) services: PolicyServices,
    pub(crate) answer: Result<PrefixAnswer, LookupRejected>,
    input: u64,
    _guards: Vec<InflightGuard>,
}

#[derive(Default)]
struct Words {
    depth: u32,
    waiting: u64,
    tokens: u64,
    running: u64,
    inflight: u64,
    estimate: Option<u32>,
    stale: bool,
    basic: bool,
}

impl Words {
    fn of(words: &[&str]) -> Self {
        let mut read = Self::default();
        for word in words {
            match *word {
                "stale" => read.stale = true,
                "basic" => read.basic = true,
                word => {
                    let (key, number) = word.split_at(1);
                    let number: u32 = number.parse().expect("a number");
                    match key {
                        "d" => read.depth = number,
                        "w" => read.waiting = number.into(),
                        "t" => read.tokens = number.into(),
                        "r" => read.running = number.into(),
                        "i" => read.inflight = number.into(),
                        "m" => read.estimate = Some(number),
                        _ => panic!("the word {word}"),
                    }
                }
            }
        }
        read
    }

    fn report(&self) -> Option<EngineLoad> {
        if self.stale {
            return None;
        }
        if self.basic {
            return Some(basic(self.running, self.waiting));
        }
        let load = prefill_load(self.tokens, self.waiting, self.running);
        Some(match self.estimate {
            Some(ms) => with_estimate(load, ms.into()),
            None => load,
        })
    }
}

impl Fleet {
    /// Plain engines for a prompt of `input` tokens in `query` blocks.
    pub(crate) fn new(input: u64, query: u32, text: &str) -> Self {
        let mut engines = Vec::new();
        let mut reports = Vec::new();
        let mut holders: Vec<(Arc<str>, u32)> = Vec::new();
        let mut guards = Vec::new();
        for (at, line) in text.split(';').enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let read = Words::of(&words[1..]);
            let url = format!("http://10.0.0.{}:30000", at + 1);
            let engine = engine_at(words[0], MODEL, Stage::Plain, &url);
            guards.extend(hold(&engine, read.inflight));
            holders.push((url.into(), read.depth));
            reports.extend(read.report().map(|report| (engine.clone(), report)));
            engines.push(engine);
        }
        engines.sort_by(|a, b| a.id().cmp(b.id()));
        holders.retain(|(_, depth)| *depth > 0);
        let reports = reports
            .iter()
            .map(|(engine, report)| (engine, report.clone()));
        Self {
            engines,
            services: PolicyServices::new(table(reports)),
            answer: Ok(PrefixAnswer::Matches(PrefixMatches::new(
                query,
                Some(64),
                holders,
            ))),
            input,
            _guards: guards,
        }
    }

    /// The fleet of most examples: 8192 tokens, 128 blocks of 64.
    pub(crate) fn usual(text: &str) -> Self {
        Self::new(8192, 128, text)
    }

    pub(crate) fn pick(&self, params: CacheAwareParams, limits: AdmissionLimits) -> Outcome {
        self.pick_with(params, Arc::new(limits))
    }

    /// Picks twice, explained and for real, which must agree where nothing is drawn.
    pub(crate) fn pick_with(
        &self,
        params: CacheAwareParams,
        admission: Arc<dyn EngineAdmission>,
    ) -> Outcome {
        let source = FixedSource::new(self.answer.clone());
        let services = self.services.with_prefix_source(source);
        let policy = CacheAwarePolicy::new(params, admission, &services);
        let explanation = Explanation::default();
        let explained = self.ask(&policy, Some(&explanation), Stage::Plain);
        let seen = match explanation.take_compared() {
            Some(Compared::CacheAware(seen)) => Some(seen),
            None => None,
            Some(other) => panic!("{other:?}"),
        };
        let result = self.ask(&policy, None, Stage::Plain);
        if seen.as_ref().is_none_or(|seen| seen.fallback.is_none()) {
            assert_eq!(shown(&result), shown(&explained), "explained and real");
        }
        Outcome { result, seen }
    }

    pub(crate) fn ask(
        &self,
        policy: &CacheAwarePolicy,
        explain: Option<&Explanation>,
        stage: Stage,
    ) -> Result<Pick, PickError> {
        let (model, bucket) = (ModelId::from(MODEL), BucketId::from("b"));
        let memo = PrefixMemo::new(Some(PrefixQuery {
            ids: &[1, 2, 3],
            salt: None,
        }));
        let request = PickRequest {
            model: &model,
            stage,
            bucket: &bucket,
            input_tokens: self.input,
            expected_peak_tokens: None,
            token_ids: None,
            session_key: None,
            routing_key: None,
            prefix: &memo,
            explain,
        };
        now(policy.pick(&self.engines, &request))
    }
}

/// What came of a pick, and what was seen on the way.
pub(crate) struct Outcome {
    pub(crate) result: Result<Pick, PickError>,
    pub(crate) seen: Option<CacheCompared>,
}

fn shown(result: &Result<Pick, PickError>) -> String {
    match result {
        Ok(pick) => format!("{} {}", pick.engine.id(), pick.reason),
        Err(error) => error.to_string(),
    }
}

/// `P2 cache_candidate`, `miss of A B C`, or the error.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fallback = self.seen.as_ref().and_then(|seen| seen.fallback.as_ref());
        match (&self.result, fallback) {
            (Ok(pick), Some(fallback)) => {
                assert_eq!(pick.reason.as_str(), "no_cache_candidate");
                assert!(fallback.pool.contains(pick.engine.id()));
                let pool: Vec<&str> = fallback.pool.iter().map(|id| id.as_str()).collect();
                write!(f, "miss of {}", pool.join(" "))
            }
            (result, _) => f.write_str(&shown(result)),
        }
    }
}
