//! The work an engine holds: a queue in front of a limited number of running requests.
//!
//! `/v1/loads` is read from here and never made up, so a router that steers by it steers by the
//! truth; so are the reports over ZMQ.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::kv::Sequence;

/// Load numbers, in the units of engine-wire §2.2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LoadSnapshot {
    /// Requests being computed.
    pub(crate) running: u32,
    /// Requests in the queue, or waiting for their KV cache.
    pub(crate) waiting: u32,
    /// Prompt tokens of those.
    pub(crate) queued_tokens: u64,
    /// The same without what the cache holds of them; 0 on decode engines.
    pub(crate) waiting_tokens: u64,
    /// KV tokens of running requests.
    pub(crate) used_tokens: u64,
    /// Prompt tokens computed since the start.
    pub(crate) prefilled_tokens: u64,
    /// Time that took, microseconds.
    pub(crate) prefill_busy_us: u64,
}

/// The part of `whole` that falls to rank `number` of `ranks`; all parts add up to it.
pub(crate) fn share(whole: u64, number: u32, ranks: u32) -> u64 {
    let (number, ranks) = (u64::from(number), u64::from(ranks.max(1)));
    whole / ranks + u64::from(number < whole % ranks)
}

impl LoadSnapshot {
    /// The part of rank `number` of `ranks`; all parts add up to the whole.
    pub(crate) fn share(self, number: u32, ranks: u32) -> Self {
        let part = |whole| share(whole, number, ranks);
        let small = |whole: u32| u32::try_from(part(whole.into())).unwrap_or(whole);
        Self {
            running: small(self.running),
            waiting: small(self.waiting),
            queued_tokens: part(self.queued_tokens),
            waiting_tokens: part(self.waiting_tokens),
            used_tokens: part(self.used_tokens),
            prefilled_tokens: part(self.prefilled_tokens),
            prefill_busy_us: part(self.prefill_busy_us),
        }
    }
}

/// Decode steps between two reports. Source: engine-wire §2.3.
const STEPS: u64 = 15;

/// The scheduler's books.
#[derive(Debug)]
pub(crate) struct Scheduler {
    slots: Arc<Semaphore>,
    max_waiting: Option<u32>,
    load: Mutex<LoadSnapshot>,
    /// Prompts of the queue that will be computed here.
    prompts: Mutex<Slab<Arc<Sequence>>>,
    /// Told at the moments at which a real engine reports its load.
    progress: Notify,
    /// Tokens generated since it was told last.
    generated: Mutex<u64>,
}

impl Scheduler {
    pub(crate) fn new(max_running: u32, max_waiting: Option<u32>) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(max_running as usize)),
            max_waiting,
            load: Mutex::new(LoadSnapshot::default()),
            prompts: Mutex::default(),
            progress: Notify::new(),
            generated: Mutex::new(0),
        }
    }

    /// The numbers now; `uncached` says how many tokens of a prompt are not held at this moment,
    /// because the real scheduler matches its queue again at every step.
    pub(crate) fn load(&self, uncached: impl Fn(&Sequence) -> u64) -> LoadSnapshot {
        let prompts: Vec<_> = self.prompts.lock().iter().map(|(_, p)| p.clone()).collect();
        LoadSnapshot {
            waiting_tokens: prompts.iter().map(|prompt| uncached(prompt)).sum(),
            ..*self.load.lock()
        }
    }

    /// Requests in the queue.
    pub(crate) fn waiting(&self) -> u32 {
        self.load.lock().waiting
    }

    /// Waits until a prompt was computed, some decode steps were made or the engine went idle.
    pub(crate) async fn progressed(&self) {
        self.progress.notified().await;
    }

    /// `tokens` were generated; a step makes one of every running request.
    fn stepped(&self, tokens: u64) {
        let running = u64::from(self.load.lock().running.max(1));
        let mut generated = self.generated.lock();
        *generated += tokens;
        if *generated >= STEPS * running {
            *generated = 0;
            self.progress.notify_one();
        }
    }

    /// Puts a request into the queue, or `None` when the queue is full. `prompt` is there if it is
    /// to be computed here.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        prompt_tokens: u64,
        prompt: Option<Arc<Sequence>>,
    ) -> Option<Queued> {
        let mut load = self.load.lock();
        let must_wait = self.slots.available_permits() == 0;
        if must_wait && self.max_waiting.is_some_and(|max| load.waiting >= max) {
            return None;
        }
        load.waiting += 1;
        load.queued_tokens += prompt_tokens;
        Some(Queued {
            scheduler: self.clone(),
            prompt_tokens,
            prompt: prompt.map(|prompt| self.prompts.lock().insert(prompt)),
        })
    }

    /// A prompt was computed.
    pub(crate) fn prefilled(&self, tokens: u64, took: Duration) {
        let mut load = self.load.lock();
        load.prefilled_tokens += tokens;
        load.prefill_busy_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.progress.notify_one();
    }
}

/// A request in the queue.
#[derive(Debug)]
#[must_use = "the request leaves the queue when this is dropped"]
pub(crate) struct Queued {
    scheduler: Arc<Scheduler>,
    prompt_tokens: u64,
    /// Its key among the prompts.
    prompt: Option<usize>,
}

impl Queued {
    /// Waits for its turn.
    pub(crate) async fn run(self) -> Running {
        let slot = self
            .scheduler
            .slots
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        {
            let mut load = self.scheduler.load.lock();
            load.running += 1;
            load.used_tokens += self.prompt_tokens;
        }
        Running {
            scheduler: self.scheduler.clone(),
            tokens: self.prompt_tokens,
            _slot: slot,
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut load = self.scheduler.load.lock();
        load.waiting -= 1;
        load.queued_tokens -= self.prompt_tokens;
        if let Some(key) = self.prompt {
            self.scheduler.prompts.lock().remove(key);
        }
    }
}

/// A request being computed.
#[derive(Debug)]
#[must_use = "the slot is free again once this is dropped"]
pub(crate) struct Running {
    scheduler: Arc<Scheduler>,
    tokens: u64,
    _slot: OwnedSemaphorePermit,
}

impl Running {
    /// The sequence grew.
    pub(crate) fn grow(&mut self, tokens: u64) {
        self.tokens += tokens;
        self.scheduler.load.lock().used_tokens += tokens;
        self.scheduler.stepped(tokens);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut load = self.scheduler.load.lock();
        load.running -= 1;
        load.used_tokens -= self.tokens;
        if load.running + load.waiting == 0 {
            self.scheduler.progress.notify_one();
        }
    }
}
