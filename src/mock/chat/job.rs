//! One chat request inside the engine, from the queue to the last token.
//!
//! A [`Job`] owns everything that must be given back: its place in the statistics, in the queue
//! and among the live ids. Dropping it — which is what hyper does when the client goes away —
//! gives all of it back and books the request as aborted, in whatever phase it is.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout};

use super::reply::Reply;
use super::request::ChatRequest;
use super::shape::{Finish, Usage};
use crate::mock::config::Role;
use crate::mock::conn::{BusyGuard, Connection};
use crate::mock::engine::Shared;
use crate::mock::error::EngineError;
use crate::mock::faults::Faults;
use crate::mock::kv::{Sequence, answer_ids};
use crate::mock::live::LiveRequest;
use crate::mock::load::{Queued, Running};
use crate::mock::pd::{FAKE_HOST, fetch_kv};
use crate::mock::stats::{Bootstrap, Outcome, RequestGuard};

/// A request whose head has arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) faults: Faults,
    pub(crate) guard: RequestGuard,
    pub(crate) _busy: BusyGuard,
}

/// A request that has been accepted.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) arrival: Arrival,
    live: LiveRequest,
    queued: Option<Queued>,
    running: Option<Running>,
    prompt_tokens: u64,
    /// The prompt on its rank; none where it is not computed.
    sequence: Option<Arc<Sequence>>,
    /// Tokens of it that were there, once it is computed.
    cached: Option<u64>,
    said: Vec<String>,
    n: u32,
    bootstrap: Option<Bootstrap>,
    reply: Reply,
    made: u32,
}

/// What the generation did.
#[derive(Debug)]
pub(crate) enum Step {
    /// One more token for every choice.
    Token(String),
    /// All choices ended.
    End(Finish),
    /// The scheduler gave up.
    Error(EngineError),
    /// The answer has to break off here.
    BreakOff(BreakOff),
}

/// A way to leave a client without the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BreakOff {
    Cut,
    Reset,
}

impl Job {
    pub(crate) fn new(arrival: Arrival, mut live: LiveRequest, chat: ChatRequest) -> Self {
        let shared = &arrival.shared;
        if let Some(bootstrap) = &chat.bootstrap {
            let collisions = live.take_rooms(bootstrap.room, u64::from(chat.n));
            shared
                .stats
                .count(|stats| stats.room_collisions += collisions);
        }
        let mut reply = Reply::to(&chat, shared.config.reply_tokens, arrival.faults.tokens);
        if shared.config.role == Role::Prefill {
            reply = reply.first_token_only();
        }
        // A decode engine is given the prompt's cache and computes nothing of it.
        let sequence = (shared.config.role != Role::Decode)
            .then(|| Arc::new(shared.kv.assign(chat.ids, chat.cache_salt, chat.rank)));
        Self {
            arrival,
            live,
            queued: None,
            running: None,
            prompt_tokens: chat.prompt_tokens,
            sequence,
            cached: None,
            said: Vec::new(),
            n: chat.n,
            bootstrap: chat.bootstrap,
            reply,
            made: 0,
        }
    }

    /// Everything before the first token: the queue, the meeting, the prompt. An abort ends it
    /// early; [`step`](Self::step) then says so.
    pub(crate) async fn prepare(&mut self) -> Result<(), EngineError> {
        let scheduler = &self.arrival.shared.scheduler;
        let Some(queued) = scheduler.enqueue(self.prompt_tokens, self.sequence.clone()) else {
            return Err(EngineError::aborted(
                StatusCode::SERVICE_UNAVAILABLE,
                "The request queue is full.",
            ));
        };
        self.queued = Some(queued);
        let aborted = self.live.aborted();
        tokio::select! {
            biased;
            () = aborted => Ok(()),
            ready = self.compute() => ready,
        }
    }

    async fn compute(&mut self) -> Result<(), EngineError> {
        match self.arrival.shared.config.role {
            Role::Plain => {
                self.run().await;
                self.compute_prompt().await;
            }
            Role::Prefill => self.prefill().await?,
            Role::Decode => {
                self.receive_kv().await?;
                self.run().await;
                sleep(self.ttft()).await;
            }
        }
        let faults = &self.arrival.faults;
        sleep(Duration::from_millis(faults.reply_delay_ms)).await;
        match faults.late_status.map(StatusCode::from_u16) {
            Some(Ok(status)) => Err(EngineError::aborted(status, "Injected late failure.")),
            _ => Ok(()),
        }
    }

    /// Leaves the queue.
    async fn run(&mut self) {
        if let Some(queued) = self.queued.take() {
            self.running = Some(queued.run().await);
        }
    }

    /// Computes what the cache does not hold, and holds it then.
    async fn compute_prompt(&mut self) {
        let shared = self.arrival.shared.clone();
        let Some(sequence) = self.sequence.clone() else {
            return;
        };
        let cached = shared.kv.begin(&sequence);
        let uncached = self.prompt_tokens - cached;
        let started = Instant::now();
        let rate = shared.config.prefill_rate.filter(|rate| *rate > 0);
        let work = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(uncached as f64 / f64::from(rate))
        });
        sleep(self.ttft() + work).await;
        let took = started.elapsed().max(Duration::from_micros(1));
        shared.scheduler.prefilled(uncached, took);
        shared.kv.store(&sequence, &[]);
        self.cached = Some(cached);
    }

    async fn prefill(&mut self) -> Result<(), EngineError> {
        let shared = self.arrival.shared.clone();
        let Some(bootstrap) = self.bootstrap.clone() else {
            return Ok(());
        };
        let seat = shared.rooms.compute(bootstrap.room);
        self.run().await;
        self.compute_prompt().await;
        if bootstrap.host.as_deref() == Some(FAKE_HOST) {
            return Ok(());
        }
        let handed_over = timeout(shared.config.pd_timeout, seat.hand_over()).await;
        handed_over.map_err(|_| transfer_failed("Prefill", bootstrap.room))?;
        shared.stats.count(|stats| stats.kv_transfers += 1);
        Ok(())
    }

    async fn receive_kv(&mut self) -> Result<(), EngineError> {
        let shared = &self.arrival.shared;
        let Some(bootstrap) = &self.bootstrap else {
            return Ok(());
        };
        let room = bootstrap.room;
        let failed = || transfer_failed("Decode", room);
        let Some(host) = bootstrap.host.as_deref() else {
            return Err(failed());
        };
        if host == FAKE_HOST {
            return Ok(());
        }
        let port = bootstrap.port.unwrap_or(shared.config.bootstrap_port);
        let arrival = async {
            if room == 0 {
                // 0 marks "not arrived" on a decode engine: never ready.
                std::future::pending::<()>().await;
            }
            fetch_kv(host, port, room).await;
        };
        let arrived = timeout(shared.config.pd_timeout, arrival).await;
        arrived.map_err(|_| failed())?;
        shared.stats.count(|stats| stats.kv_transfers += 1);
        Ok(())
    }

    fn ttft(&self) -> Duration {
        let overridden = self.arrival.faults.ttft_ms.map(Duration::from_millis);
        overridden.unwrap_or(self.arrival.shared.config.ttft)
    }

    /// The next thing that happens. Always waits at least once, so that what was said before
    /// leaves in a write of its own.
    pub(crate) async fn step(&mut self) -> Step {
        tokio::task::yield_now().await;
        if self.live.is_aborted() {
            return Step::End(Finish::Abort);
        }
        let faults = &self.arrival.faults;
        let here = Some(self.made);
        if faults.reset_after_tokens == here {
            return Step::BreakOff(BreakOff::Reset);
        }
        if faults.cut_after_tokens == here {
            return Step::BreakOff(BreakOff::Cut);
        }
        if faults.error_event_after_tokens == here {
            let code = faults.error_code.unwrap_or(503);
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            return Step::Error(EngineError::aborted(status, "Injected failure."));
        }
        if faults.stall_after_tokens == here {
            self.live.aborted().await;
            return Step::End(Finish::Abort);
        }
        if self.reply.tokens.is_empty() {
            return Step::End(self.reply.finish);
        }
        self.next_token().await
    }

    async fn next_token(&mut self) -> Step {
        let overridden = self.arrival.faults.interval_ms.map(Duration::from_millis);
        let interval = overridden.unwrap_or(self.arrival.shared.config.token_interval);
        if self.made > 0 && !interval.is_zero() {
            tokio::select! {
                () = self.live.aborted() => return Step::End(Finish::Abort),
                () = sleep(interval) => {}
            }
        }
        let Some(token) = self.reply.tokens.pop_front() else {
            return Step::End(self.reply.finish);
        };
        self.made += 1;
        self.said.push(token.clone());
        self.arrival.guard.add_tokens(u64::from(self.n));
        if let Some(running) = &mut self.running {
            running.grow(u64::from(self.n));
        }
        Step::Token(token)
    }

    /// Tokens of the request so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt_tokens,
            completion: self.arrival.guard.tokens(),
            cached: self
                .cached
                .filter(|_| self.arrival.shared.config.cache_report),
        }
    }

    /// Gives everything back and books `outcome`; what was said is in the cache from now on.
    pub(crate) fn finish(mut self, outcome: Outcome) {
        if let (Some(sequence), Some(_)) = (&self.sequence, self.cached) {
            let shared = &self.arrival.shared;
            let made = answer_ids(&self.said, shared.config.tokenizer.as_deref());
            shared.kv.store(sequence, &made);
        }
        self.arrival.guard.set(outcome);
    }
}

/// Breaks the answer off; the error is for hyper, which then drops the connection (HTTP/1.1) or
/// resets the stream (HTTP/2).
pub(crate) async fn break_off(connection: &Connection, how: BreakOff) -> std::io::Error {
    // Let hyper write what it has before the end comes.
    tokio::task::yield_now().await;
    match how {
        BreakOff::Cut => std::io::Error::other("injected cut"),
        BreakOff::Reset => {
            connection.end(crate::mock::conn::Ending::Reset);
            std::future::pending().await
        }
    }
}

fn transfer_failed(side: &str, room: u64) -> EngineError {
    EngineError::aborted(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("{side} transfer failed for request in room {room}: timed out or no peer."),
    )
}
