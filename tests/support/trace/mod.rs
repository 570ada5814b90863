//! A conversation trace on simulated engines with prefix caches, for what a policy does to hit rate
//! and time to first token.
//!
//! Discrete events on a virtual clock. An engine computes prompts one after the other at a fixed
//! rate, holds pages that are evicted least recently used first, announces both, and reports its
//! load as a real one does. Policies, handles, guards, load table and prefix index are the real
//! ones, prompts are hashed as engines hash them. No sockets, no real time, a fixed seed.

mod engine;
mod file;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::kv::{BlockFormat, BlockUnit, KvEvent, block_hashes};
use sgl_edge::policies::{
    AdmissionLimits, PickRequest, Policy, PolicyParams, PolicyServices, SeededDraw, build,
};
use sgl_edge::state::prefix::{LocalPrefixes, PrefixMemo, PrefixQuery};
use sgl_edge::workers::Worker;
use tokio::time::Instant;

use engine::{Engine, Prompt};
use file::Request;

/// Tokens of a page.
const PAGE: u32 = 64;
/// Prompt tokens that an engine computes in a second.
const RATE: f64 = 8000.0;
/// Time of a prefill step beside its tokens.
const STEP: Duration = Duration::from_millis(20);
/// Time between two tokens of an answer.
const TOKEN: Duration = Duration::from_millis(25);
/// From an event in an engine to the router.
const FLIGHT: Duration = Duration::from_millis(2);
/// Least time between two reports of an engine.
const SPACING: Duration = Duration::from_millis(50);
/// An idle engine reports this often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Who chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chooser {
    /// A policy of the router.
    Policy(PolicyParams),
    /// What no router can reach: every engine holds all that any engine has ever computed, and the
    /// one with the least work left is known exactly.
    Perfect,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Requests from the start of the trace.
    pub(crate) requests: usize,
    pub(crate) engines: usize,
    /// KV tokens that an engine can hold.
    pub(crate) capacity: u64,
    pub(crate) chooser: Chooser,
}

/// What came out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Share of all prompt tokens that did not have to be computed.
    pub(crate) hit_rate: f64,
    /// Time to first token, seconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Computed(usize),
    Answered(usize, u64),
    Report(usize),
    /// What an engine stored and evicted is known to the router.
    Announced(usize, usize),
}

struct Fleet {
    handles: Vec<Arc<Worker>>,
    engines: Vec<Engine>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    announced: Vec<Vec<KvEvent>>,
    number: u64,
    services: PolicyServices,
    prefixes: Arc<LocalPrefixes>,
    perfect: bool,
    rng: StdRng,
    cached: u64,
    times: Vec<f64>,
}

/// Block format of every engine here.
fn format() -> BlockFormat {
    BlockFormat::new(PAGE, BlockUnit::Unigram).expect("a page size above 0")
}

/// Runs one scenario. Must run on a paused clock.
pub(crate) async fn replay(scenario: Scenario) -> Outcome {
    let trace = file::requests(scenario.requests);
    let mut fleet = Fleet::new(&scenario);
    let policy = match &scenario.chooser {
        Chooser::Policy(params) => Some(build(
            params,
            AdmissionLimits::default(),
            &ModelId::from("m"),
            &fleet.services,
        )),
        Chooser::Perfect => None,
    };
    for (nth, request) in trace.iter().enumerate() {
        fleet.schedule(request.at, Event::Arrival(nth));
    }
    while let Some(Reverse((at, _, event))) = fleet.events.pop() {
        tokio::time::advance(at.saturating_duration_since(Instant::now())).await;
        match event {
            Event::Arrival(nth) => fleet.arrive(&trace[nth], policy.as_deref()).await,
            Event::Computed(place) => fleet.computed(place),
            Event::Answered(place, number) => fleet.answered(place, number),
            // Heartbeats end with the work, or the run would not.
            Event::Report(place) => fleet.report(place, fleet.times.len() < trace.len()),
            Event::Announced(place, batch) => fleet.announced(place, batch),
        }
    }
    fleet.outcome(&trace)
}

impl Fleet {
    fn new(scenario: &Scenario) -> Self {
        let handles: Vec<_> = (0..scenario.engines).map(engine::handle).collect();
        let prefixes = Arc::<LocalPrefixes>::default();
        for handle in &handles {
            prefixes.announce(handle.origin(), format());
        }
        let services = PolicyServices {
            draw: Arc::new(SeededDraw::new(11)),
            ..PolicyServices::new(Arc::default())
        };
        let perfect = matches!(scenario.chooser, Chooser::Perfect);
        // All that any engine computes, for ever, in a cache that the engines share.
        let (caches, pages) = match perfect {
            true => (1, u64::MAX),
            false => (scenario.engines, scenario.capacity / u64::from(PAGE)),
        };
        let caches: Vec<_> = (0..caches).map(|_| engine::cache(pages)).collect();
        let cache = |place: usize| caches[place % caches.len()].clone();
        let mut fleet = Self {
            engines: (0..handles.len())
                .map(|place| Engine::new(cache(place)))
                .collect(),
            handles,
            events: BinaryHeap::new(),
            announced: Vec::new(),
            number: 0,
            services: services.with_prefix_source(prefixes.clone()),
            prefixes,
            perfect,
            rng: StdRng::seed_from_u64(7),
            cached: 0,
            times: Vec::new(),
        };
        for place in 0..scenario.engines {
            fleet.changed(place);
        }
        fleet
    }

    fn schedule(&mut self, after: Duration, event: Event) -> u64 {
        self.number += 1;
        let at = Instant::now() + after;
        self.events.push(Reverse((at, self.number, event)));
        self.number
    }

    async fn arrive(&mut self, request: &Request, policy: Option<&dyn Policy>) {
        let ids = request.ids();
        let place = match policy {
            Some(policy) => self.ask(policy, &ids).await,
            None => self.least_work(),
        };
        let tokens = ids.len();
        let prompt = Prompt {
            at: Instant::now(),
            tokens: tokens as u64,
            output: request.output,
            names: block_hashes(&ids[..tokens - tokens % PAGE as usize], format(), None),
            guard: self.handles[place].acquire(tokens as u64),
        };
        self.engines[place].queue.push_back(prompt);
        self.start(place);
        self.changed(place);
    }

    async fn ask(&self, policy: &dyn Policy, ids: &[u32]) -> usize {
        let (model, bucket) = (ModelId::from("m"), BucketId::from("b"));
        let request = PickRequest {
            model: &model,
            stage: Stage::Plain,
            bucket: &bucket,
            input_tokens: ids.len() as u64,
            expected_peak_tokens: None,
            token_ids: Some(ids),
            session_key: None,
            routing_key: None,
            prefix: &PrefixMemo::new(Some(PrefixQuery { ids, salt: None })),
            explain: None,
        };
        let pick = policy.pick(&self.handles, &request).await;
        let engine = pick.expect("engines are there").engine;
        let same = |handle: &Arc<Worker>| Arc::ptr_eq(handle, &engine);
        self.handles.iter().position(same).expect("a candidate")
    }

    fn least_work(&mut self) -> usize {
        let work: Vec<Duration> = self.engines.iter().map(Engine::work_left).collect();
        let least = work.iter().min().copied();
        let tied: Vec<usize> = (0..work.len())
            .filter(|place| Some(work[*place]) == least)
            .collect();
        tied[self.rng.random_range(0..tied.len())]
    }

    /// Starts the next prompt, if none is being computed.
    fn start(&mut self, place: usize) {
        if let Some((cached, time)) = self.engines[place].start() {
            self.cached += cached;
            self.schedule(time, Event::Computed(place));
        }
    }

    fn computed(&mut self, place: usize) {
        let (prompt, events) = self.engines[place].computed();
        self.times.push(prompt.at.elapsed().as_secs_f64());
        if !self.perfect && !events.is_empty() {
            self.announced.push(events);
            let batch = self.announced.len() - 1;
            self.schedule(FLIGHT, Event::Announced(place, batch));
        }
        let number = self.schedule(
            TOKEN * prompt.output,
            Event::Answered(place, self.number + 1),
        );
        self.engines[place].answering.push((number, prompt.guard));
        self.start(place);
        self.changed(place);
    }

    fn answered(&mut self, place: usize, number: u64) {
        let answering = &mut self.engines[place].answering;
        answering.retain(|(found, _)| *found != number);
        self.changed(place);
    }

    fn announced(&mut self, place: usize, batch: usize) {
        let events = std::mem::take(&mut self.announced[batch]);
        let origin = self.handles[place].origin();
        self.prefixes.apply(origin, 0, &events);
    }

    /// Something changed: a report is on its way, unless one is already.
    fn changed(&mut self, place: usize) {
        let engine = &mut self.engines[place];
        if std::mem::replace(&mut engine.report_due, true) {
            return;
        }
        let wait = SPACING.saturating_sub(engine.reported.elapsed());
        self.schedule(wait.max(FLIGHT), Event::Report(place));
    }

    fn report(&mut self, place: usize, more: bool) {
        let engine = &mut self.engines[place];
        if !engine.report_due && engine.reported.elapsed() < HEARTBEAT {
            return;
        }
        (engine.reported, engine.report_due) = (Instant::now(), false);
        let (report, id) = (engine.report(), self.handles[place].id());
        self.services.loads.report(id, 0, report, Instant::now());
        if more {
            self.schedule(HEARTBEAT, Event::Report(place));
        }
    }

    fn outcome(mut self, trace: &[Request]) -> Outcome {
        self.times.sort_by(f64::total_cmp);
        let at = |share: f64| self.times[((self.times.len() - 1) as f64 * share) as usize];
        let tokens: usize = trace.iter().map(|request| request.input).sum();
        Outcome {
            hit_rate: self.cached as f64 / tokens as f64,
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}
