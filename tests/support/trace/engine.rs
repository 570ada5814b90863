//! One simulated engine: a queue, a prefill at a time, a prefix cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sgl_edge::ids::Stage;
use sgl_edge::kv::KvEvent;
use sgl_edge::mock::PageCache;
use sgl_edge::state::{NativeReport, Report};
use sgl_edge::workers::{EngineUrl, InflightGuard, Worker, WorkerSpec};
use tokio::time::Instant;

use super::{PAGE, RATE, STEP, format};

/// A cache, which several engines may share.
pub(super) type Cache = Arc<Mutex<PageCache>>;

/// A request at an engine.
pub(super) struct Prompt {
    pub(super) at: Instant,
    pub(super) tokens: u64,
    pub(super) output: u32,
    /// Of its whole pages.
    pub(super) names: Vec<i64>,
    pub(super) guard: InflightGuard,
}

impl Prompt {
    /// Tokens that `held` pages save; the last token is always computed.
    fn saved(&self, held: usize) -> u64 {
        let page = u64::from(PAGE);
        (held as u64 * page).min((self.tokens - 1) / page * page)
    }
}

pub(super) struct Engine {
    cache: Cache,
    pub(super) queue: VecDeque<Prompt>,
    /// The prompt being computed, and when it will be.
    computing: Option<(Prompt, Instant)>,
    pub(super) answering: Vec<(u64, InflightGuard)>,
    pub(super) reported: Instant,
    pub(super) report_due: bool,
    computed_tokens: u64,
    computing_us: u64,
}

/// An empty cache of this many pages.
pub(super) fn cache(pages: u64) -> Cache {
    Arc::new(Mutex::new(PageCache::new(pages)))
}

/// The router's side of engine `number`.
pub(super) fn handle(number: usize) -> Arc<Worker> {
    let spec = WorkerSpec {
        id: format!("e{number:04}").into(),
        url: EngineUrl::parse(&format!("http://127.0.0.1:{}", number + 1)).expect("a url"),
        model: "m".into(),
        role: Stage::Plain,
        bootstrap_port: None,
    };
    Arc::new(Worker::new(spec, None))
}

/// How long so many tokens take.
fn prefill_time(tokens: u64) -> Duration {
    STEP + Duration::from_secs_f64(tokens as f64 / RATE)
}

impl Engine {
    pub(super) fn new(cache: Cache) -> Self {
        Self {
            cache,
            queue: VecDeque::new(),
            computing: None,
            answering: Vec::new(),
            reported: Instant::now(),
            report_due: false,
            computed_tokens: 0,
            computing_us: 0,
        }
    }

    /// Takes the next prompt, unless one is being computed: tokens that were there, and how long
    /// the others take.
    pub(super) fn start(&mut self) -> Option<(u64, Duration)> {
        if self.computing.is_some() {
            return None;
        }
        let prompt = self.queue.pop_front()?;
        let cached = prompt.saved(self.cache.lock().touch(&prompt.names));
        let uncached = prompt.tokens - cached;
        let time = prefill_time(uncached);
        self.computed_tokens += uncached;
        self.computing_us += u64::try_from(time.as_micros()).expect("a short time");
        self.computing = Some((prompt, Instant::now() + time));
        Some((cached, time))
    }

    /// The prompt is computed and its pages are held; what was stored and evicted for that.
    pub(super) fn computed(&mut self) -> (Prompt, Vec<KvEvent>) {
        let (prompt, _) = self.computing.take().expect("a prompt was being computed");
        let events = self.cache.lock().insert(&prompt.names, format(), &[]);
        (prompt, events.into_iter().map(|(event, _)| event).collect())
    }

    fn uncached(&self, prompt: &Prompt) -> u64 {
        prompt.tokens - prompt.saved(self.cache.lock().held(&prompt.names))
    }

    /// Time until the queue is empty, if its prompts hit what is held now.
    pub(super) fn work_left(&self) -> Duration {
        let now = Instant::now();
        let running = self.computing.as_ref();
        let rest = running.map_or(Duration::ZERO, |(_, done)| {
            done.saturating_duration_since(now)
        });
        let waiting = self.queue.iter();
        rest + waiting
            .map(|prompt| prefill_time(self.uncached(prompt)))
            .sum::<Duration>()
    }

    pub(super) fn report(&self) -> Report {
        let queued: u64 = self.queue.iter().map(|prompt| prompt.tokens).sum();
        let uncached = self.queue.iter().map(|prompt| self.uncached(prompt)).sum();
        let used = self.cache.lock().len() as u64 * u64::from(PAGE);
        Report {
            running_requests: self.answering.len() as u64 + u64::from(self.computing.is_some()),
            waiting_requests: self.queue.len() as u64,
            used_tokens: used,
            max_total_tokens: 1_000_000_000,
            native: Some(NativeReport {
                waiting_uncached_tokens: uncached,
                total_tokens: used + queued,
                max_running_requests: 256,
                prefilled_tokens: self.computed_tokens,
                prefill_busy_us: self.computing_us,
            }),
        }
    }
}
