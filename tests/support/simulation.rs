//! A fleet of queues on a virtual clock, for what a policy does to queue time.
//!
//! Discrete events: requests arrive at random, an engine runs a few of them at once at its own
//! speed, the rest wait in its queue. Policies are the real ones, over real handles, guards and the
//! real load table; reports reach the table as an engine sends them: on change, at most every 50 ms,
//! and once a second when nothing changes. No sockets, no real time, a fixed seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::{
    AdmissionLimits, PickRequest, Policy, PolicyParams, PolicyServices, SeededDraw, build,
};
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::state::{NativeReport, Report};
use sgl_edge::workers::{EngineUrl, InflightGuard, Worker, WorkerSpec};
use tokio::time::Instant;

/// Requests that an engine runs at once.
const SLOTS: usize = 4;
/// Speeds of the engines in turn; a request of mean size takes a second at speed 1.
const SPEEDS: [f64; 4] = [0.5, 1.0, 1.0, 2.0];
/// Least time between two reports of an engine.
const SPACING: Duration = Duration::from_millis(50);
/// From an event in an engine to its report in the table.
const FLIGHT: Duration = Duration::from_millis(2);
/// An idle engine reports this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Prompt tokens of a request.
const TOKENS: u64 = 500;

/// Who chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chooser {
    /// A policy of the router.
    Policy(PolicyParams),
    /// The same without any report.
    Blind(PolicyParams),
    /// Join the shortest queue, known exactly at every moment.
    Shortest,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) engines: usize,
    pub(crate) requests: usize,
    /// Share of the fleet's capacity that arrives.
    pub(crate) load: f64,
    pub(crate) chooser: Chooser,
}

/// Time in the engines' queues, seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueTime {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(usize),
    Report(usize),
    Arrival,
}

/// A request in a queue: when it came, how much work it is, its place in the router's count.
type Waiting = (Instant, f64, InflightGuard);

struct Engine {
    speed: f64,
    running: Vec<(u64, InflightGuard)>,
    queue: VecDeque<Waiting>,
    reported: Instant,
    report_due: bool,
}

struct Fleet {
    handles: Vec<Arc<Worker>>,
    engines: Vec<Engine>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    number: u64,
    waits: Vec<f64>,
    services: PolicyServices,
    rng: StdRng,
    reports: bool,
}

/// Runs one scenario. Must run on a paused clock.
pub(crate) async fn simulate(scenario: Scenario) -> QueueTime {
    let (params, reports) = match scenario.chooser {
        Chooser::Policy(params) => (params, true),
        Chooser::Blind(params) => (params, false),
        Chooser::Shortest => (PolicyParams::Random, false),
    };
    let services = PolicyServices {
        draw: Arc::new(SeededDraw::new(11)),
        ..PolicyServices::new(Arc::default())
    };
    let model = ModelId::from("m");
    let policy = build(&params, AdmissionLimits::default(), &model, &services);
    let mut fleet = Fleet::new(scenario.engines, services, reports);
    let capacity: f64 = fleet.engines.iter().map(|e| e.speed * SLOTS as f64).sum();
    let rate = scenario.load * capacity;
    fleet.schedule(Duration::ZERO, Event::Arrival);
    let mut arrived = 0;
    while let Some(Reverse((at, number, event))) = fleet.events.pop() {
        tokio::time::advance(at.saturating_duration_since(Instant::now())).await;
        match event {
            Event::Arrival if arrived < scenario.requests => {
                arrived += 1;
                let place = match scenario.chooser {
                    Chooser::Shortest => fleet.shortest(),
                    Chooser::Policy(_) | Chooser::Blind(_) => fleet.ask(policy.as_ref(), &model),
                };
                fleet.take(place);
                let gap = fleet.exponential(1.0 / rate);
                fleet.schedule(gap, Event::Arrival);
            }
            Event::Arrival => {}
            Event::Done(place) => fleet.done(place, number),
            // Heartbeats end with the work, or the run would not.
            Event::Report(place) => fleet.report(place, arrived < scenario.requests),
        }
    }
    fleet.queue_time()
}

impl Fleet {
    fn new(count: usize, services: PolicyServices, reports: bool) -> Self {
        let handles = (0..count).map(|number| {
            let spec = WorkerSpec {
                id: format!("e{number:04}").into(),
                url: EngineUrl::parse(&format!("http://127.0.0.1:{}", number + 1)).expect("a url"),
                model: "m".into(),
                role: Stage::Plain,
                bootstrap_port: None,
            };
            Arc::new(Worker::new(spec, None))
        });
        let engines = (0..count).map(|number| Engine {
            speed: SPEEDS[number % SPEEDS.len()],
            running: Vec::new(),
            queue: VecDeque::new(),
            reported: Instant::now(),
            report_due: false,
        });
        let mut fleet = Self {
            handles: handles.collect(),
            engines: engines.collect(),
            events: BinaryHeap::new(),
            number: 0,
            waits: Vec::new(),
            services,
            rng: StdRng::seed_from_u64(7),
            reports,
        };
        for place in 0..count {
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

    fn exponential(&mut self, mean: f64) -> Duration {
        let uniform: f64 = self.rng.random_range(f64::MIN_POSITIVE..1.0);
        Duration::from_secs_f64(-uniform.ln() * mean)
    }

    fn ask(&self, policy: &dyn Policy, model: &ModelId) -> usize {
        let bucket = BucketId::from("b");
        let request = PickRequest {
            model,
            stage: Stage::Plain,
            bucket: &bucket,
            input_tokens: TOKENS,
            expected_peak_tokens: None,
            token_ids: None,
            session_key: None,
            routing_key: None,
            prefix: &PrefixMemo::none(),
            explain: None,
        };
        let pick = policy.pick(&self.handles, &request).now_or_never();
        let engine = pick.expect("no waiting").expect("engines are there").engine;
        let same = |handle: &Arc<Worker>| Arc::ptr_eq(handle, &engine);
        self.handles.iter().position(same).expect("a candidate")
    }

    fn shortest(&mut self) -> usize {
        let held = |engine: &Engine| engine.running.len() + engine.queue.len();
        let least = self.engines.iter().map(held).min().unwrap_or(0);
        let tied = |engine: &&usize| held(&self.engines[**engine]) == least;
        let places: Vec<usize> = (0..self.engines.len()).collect();
        let tied: Vec<usize> = places.iter().filter(tied).copied().collect();
        tied[self.rng.random_range(0..tied.len())]
    }

    fn take(&mut self, place: usize) {
        let guard = self.handles[place].acquire(TOKENS);
        let work = self.exponential(1.0).as_secs_f64();
        let waiting = (Instant::now(), work, guard);
        self.engines[place].queue.push_back(waiting);
        self.start(place);
        self.changed(place);
    }

    /// Starts what fits into the free slots.
    fn start(&mut self, place: usize) {
        while self.engines[place].running.len() < SLOTS {
            let Some((since, work, guard)) = self.engines[place].queue.pop_front() else {
                return;
            };
            self.waits.push(since.elapsed().as_secs_f64());
            let time = Duration::from_secs_f64(work / self.engines[place].speed);
            let number = self.schedule(time, Event::Done(place));
            self.engines[place].running.push((number, guard));
        }
    }

    fn done(&mut self, place: usize, number: u64) {
        self.engines[place].running.retain(|(n, _)| *n != number);
        self.start(place);
        self.changed(place);
    }

    /// Something changed: a report is on its way, unless one is already.
    fn changed(&mut self, place: usize) {
        let engine = &mut self.engines[place];
        if !self.reports || std::mem::replace(&mut engine.report_due, true) {
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
        let (running, waiting) = (engine.running.len() as u64, engine.queue.len() as u64);
        let report = Report {
            running_requests: running,
            waiting_requests: waiting,
            used_tokens: running * TOKENS,
            max_total_tokens: 1_000_000,
            native: Some(NativeReport {
                waiting_uncached_tokens: waiting * TOKENS,
                total_tokens: (running + waiting) * TOKENS,
                max_running_requests: SLOTS as u64,
                prefilled_tokens: 0,
                prefill_busy_us: 0,
            }),
        };
        let id = self.handles[place].id();
        self.services.loads.report(id, 0, report, Instant::now());
        if more {
            self.schedule(HEARTBEAT, Event::Report(place));
        }
    }

    fn queue_time(mut self) -> QueueTime {
        // The fleet starts empty: the first fifth says nothing about the load.
        let mut waits = self.waits.split_off(self.waits.len() / 5);
        waits.sort_by(f64::total_cmp);
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
        QueueTime {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}
