//! Asking engines what they can do: `GET /server_info`.
//!
//! The answer ([`Facts`]) says what must never be assumed: whether an engine speaks HTTP/2 on its
//! cleartext port, its role, what it publishes. No request waits for it. Asked when an engine
//! appears, three times on network errors and 5xx, and again every 30 s, because another process
//! may be answering there by then; a 4xx or an answer that is not JSON says that nothing is known.
//! Source: engine-wire §1.3, §4, http-and-operations §13.

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

use crate::proxy::engine_call::EngineClient;
use crate::server::app::App;
use crate::workers::{Facts, Worker};

/// For one answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Pauses between the three attempts.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];
/// Until an engine is asked again, whatever it said: it may be another one by then.
const AGAIN: Duration = Duration::from_secs(30);
/// How often new engines are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Engines asked at the same time.
const AT_ONCE: usize = 32;
/// Largest answer that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Asks every engine of the active routing.
pub(crate) struct Introspection {
    app: Arc<App>,
    engines: EngineClient,
}

/// What came of asking.
enum Answer {
    Info(Facts),
    /// It has nothing to say.
    Final,
    /// It may answer later.
    Later,
}

impl Introspection {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            engines: EngineClient::new(&ServerConf::default()),
        }
    }

    /// Engines that are to be asked now. Each of them is not due again until it has been asked.
    fn due(&self) -> Vec<Arc<Worker>> {
        let now = Instant::now();
        let mut engines = self.app.routing().workers.members().all();
        engines.retain(|engine| engine.introspection().due(now));
        for engine in &engines {
            engine.introspection().ask_again(now + AGAIN);
        }
        engines
    }

    async fn learn(&self, engine: &Worker, slots: &Semaphore) {
        let Ok(_slot) = slots.acquire().await else {
            return;
        };
        let facts = match self.ask(engine).await {
            Answer::Info(facts) => facts,
            Answer::Final => Facts::default(),
            Answer::Later => return engine.introspection().ask_again(Instant::now() + AGAIN),
        };
        let problem = facts.problem.clone();
        let new = engine
            .introspection()
            .resolved(facts, Instant::now() + AGAIN);
        if !new {
            return;
        }
        if let Some(problem) = problem {
            tracing::warn!(engine = %engine.id(), problem, "its kv_events cannot be used");
        }
        self.app.learned();
    }

    async fn ask(&self, engine: &Worker) -> Answer {
        for pause in BACK_OFF.iter().map(Some).chain([None]) {
            let routing = self.app.routing();
            let answer = self
                .engines
                .get(&routing, engine, "/server_info", MAX_ANSWER);
            match tokio::time::timeout(LIMIT, answer).await {
                Ok(Ok((200, body))) => {
                    let facts = Facts::parse(&body, engine.url().host());
                    return facts.map_or(Answer::Final, Answer::Info);
                }
                // A key may be put right on either side.
                Ok(Ok((status @ (401 | 403), _))) => {
                    tracing::warn!(
                        engine = %engine.id(),
                        status,
                        "the engine refuses /server_info: engines.api_key_file names the key it wants"
                    );
                    return Answer::Later;
                }
                Ok(Ok((400..=499, _))) => return Answer::Final,
                Ok(Ok(_) | Err(_)) | Err(_) => {}
            }
            if let Some(pause) = pause {
                tokio::time::sleep(*pause).await;
            }
        }
        tracing::debug!(engine = %engine.id(), "no answer to /server_info; asked again later");
        Answer::Later
    }
}

#[async_trait]
impl BackgroundService for Introspection {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let slots = Semaphore::new(AT_ONCE);
        let mut asking = FuturesUnordered::new();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = look.tick() => for engine in self.due() {
                    let slots = &slots;
                    asking.push(async move { self.learn(&engine, slots).await });
                },
                Some(()) = asking.next() => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}
