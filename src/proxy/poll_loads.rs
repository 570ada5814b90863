//! Load reports of engines that publish none: `GET /v1/loads`, asked again and again.
//!
//! Engines with a load socket are never asked: a publisher that falls silent must look silent.
//! Every engine is asked one question at a time, so a slow one is asked less often and delays
//! nobody. Nothing is asked where no policy and no cap reads reports. Source: engine-wire §2.5.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::services::background::BackgroundService;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

use crate::feeds::Outcome;
use crate::feeds::load_stat::{Malformed, loads_answer};
use crate::ids::WorkerId;
use crate::proxy::engine_call::EngineClient;
use crate::server::app::App;
use crate::workers::Worker;

/// For one answer; a later one would describe the past.
const LIMIT: Duration = Duration::from_secs(2);
/// How often it is looked who is due; the shortest interval that can be set.
const LOOK: Duration = Duration::from_millis(50);
/// Until an engine that refuses is asked again.
const REFUSED: Duration = Duration::from_secs(30);
/// Longer than any answer takes.
const FAR: Duration = Duration::from_secs(3600);
/// Engines asked at the same time.
const AT_ONCE: usize = 64;
/// Largest answer that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Asks the engines of the active routing.
pub(crate) struct LoadPolls {
    app: Arc<App>,
    engines: EngineClient,
}

impl fmt::Debug for LoadPolls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadPolls").finish_non_exhaustive()
    }
}

impl LoadPolls {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            engines: EngineClient::new(&ServerConf::default()),
        }
    }
}

impl LoadPolls {
    async fn ask(&self, engine: Arc<Worker>, slots: &Semaphore) -> (WorkerId, Duration) {
        let id = engine.id().clone();
        let Ok(_slot) = slots.acquire().await else {
            return (id, LIMIT);
        };
        let routing = self.app.routing();
        let answer = self.engines.get(&routing, &engine, "/v1/loads", MAX_ANSWER);
        let body = match tokio::time::timeout(LIMIT, answer).await {
            Ok(Ok((200, body))) => body,
            Ok(Ok((status, _))) => {
                tracing::debug!(engine = %id, status, "no answer to /v1/loads");
                // It has no such route, or wants a key: neither changes within a second.
                return (id, REFUSED);
            }
            Ok(Err(_)) | Err(_) => return (id, Duration::ZERO),
        };
        // It may have been removed, or have told of a socket, since it was asked.
        if !self.app.routing().polls(&engine) {
            return (id, Duration::ZERO);
        }
        match loads_answer(&body).and_then(complete) {
            Ok(reports) => {
                let (loads, now) = (&self.app.services.loads, Instant::now());
                loads.advertise(&id, u32::try_from(reports.len()).unwrap_or(u32::MAX));
                for (rank, report) in reports {
                    loads.report(&id, rank, report, now);
                    self.app.feeds.report(Outcome::Accepted);
                }
            }
            Err(reason) => self.app.feeds.refused(&id, reason),
        }
        (id, Duration::ZERO)
    }
}

/// An answer with a row for each of ranks 0, 1, 2, …
fn complete<T>(reports: Vec<(u32, T)>) -> Result<Vec<(u32, T)>, Malformed> {
    let ranks = reports.len() as u64;
    if ranks == 0 || reports.iter().any(|(rank, _)| u64::from(*rank) >= ranks) {
        return Err(Malformed::Rank);
    }
    Ok(reports)
}

#[async_trait]
impl BackgroundService for LoadPolls {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let slots = Semaphore::new(AT_ONCE);
        let mut asking = FuturesUnordered::new();
        // When each engine is due; far away while it is being asked.
        let mut due: HashMap<WorkerId, Instant> = HashMap::new();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    let polled = self.app.routing().polled();
                    let now = Instant::now();
                    let ids: HashSet<&WorkerId> = polled.iter().map(|(engine, _)| engine.id()).collect();
                    due.retain(|id, _| ids.contains(id));
                    for (engine, interval) in polled {
                        let at = due.entry(engine.id().clone()).or_insert(now);
                        if *at > now {
                            continue;
                        }
                        *at = now + FAR;
                        let slots = &slots;
                        asking.push(async move {
                            let (id, pause) = self.ask(engine, slots).await;
                            (id, now + interval.max(pause))
                        });
                    }
                }
                Some((id, next)) = asking.next() => {
                    due.insert(id, next.max(Instant::now()));
                }
                _ = shutdown.changed() => return,
            }
        }
    }
}
