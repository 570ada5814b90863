//! Active health checks through `pingora-load-balancing`, reported into the registry.
//!
//! One probe per address and interval, each on its own: an engine that hangs delays nobody else's
//! verdict. Thresholds are Pingora's, so a single lost probe changes nothing. A check filters
//! candidates and never opens a breaker. A reload states the whole set: checks of engines that are
//! gone stop, those of engines that stay go on with their counts. New engines count as healthy
//! until checks fail. Source: contract §2 `health`, field-lessons L32, L33, L41, L55.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pingora::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::services::background::BackgroundService;
use pingora::{Error, ErrorType, Result};
use pingora_load_balancing::discovery::Static;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend, Backends, Extensions};
use tokio::time::Instant;

use crate::proxy::engine_call::{self, EngineClient};
use crate::proxy::peer;
use crate::server::app::App;
use crate::workers::Worker;

/// How often the list of engines and the settings are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Checks every engine of the active routing.
pub(crate) struct HealthChecks {
    app: Arc<App>,
    engines: EngineClient,
}

/// The checks of one address; Pingora keeps its count of good and bad answers in a row.
struct Probe {
    address: SocketAddr,
    backends: Backends,
    started: Option<Instant>,
}

impl Probe {
    fn new(address: SocketAddr, check: EngineCheck) -> Self {
        let backend = Backend {
            addr: PingoraAddr::Inet(address),
            weight: 1,
            ext: Extensions::new(),
        };
        let mut backends = Backends::new(Static::new([backend].into()));
        backends.set_health_check(Box::new(check));
        Self {
            address,
            backends,
            started: None,
        }
    }

    fn due(&self, interval: Duration, now: Instant) -> bool {
        self.started
            .is_none_or(|started| now.duration_since(started) >= interval)
    }

    async fn run(mut self) -> Self {
        self.started = Some(Instant::now());
        match self.backends.update(|_| {}).await {
            Ok(()) => self.backends.run_health_check(false).await,
            Err(error) => tracing::error!(%error, "health check not set up"),
        }
        self
    }

    fn healthy(&self) -> bool {
        let backends = self.backends.get_backend();
        backends.iter().all(|backend| self.backends.ready(backend))
    }
}

impl HealthChecks {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            engines: EngineClient::new(&ServerConf::default()),
        }
    }

    /// Brings the idle probes in line with the engines of the active routing.
    fn follow(&self, idle: &mut HashMap<SocketAddr, Probe>, running: &HashSet<SocketAddr>) {
        let engines = self.app.routing().workers.members().all();
        let wanted: HashSet<_> = engines
            .iter()
            .filter_map(|engine| engine.address())
            .collect();
        idle.retain(|address, _| wanted.contains(address));
        for address in wanted {
            if !running.contains(&address) {
                idle.entry(address)
                    .or_insert_with(|| Probe::new(address, self.check()));
            }
        }
    }

    fn check(&self) -> EngineCheck {
        EngineCheck {
            app: Arc::clone(&self.app),
            engines: self.engines.clone(),
        }
    }

    fn publish(&self, address: SocketAddr, healthy: bool) {
        for engine in self.app.routing().workers.members().all() {
            if engine.address() == Some(address) {
                set(&engine, healthy);
            }
        }
    }

    /// With checks switched off nothing may stay out because of an old verdict.
    fn all_healthy(&self) {
        for engine in self.app.routing().workers.members().all() {
            set(&engine, true);
        }
    }
}

fn set(engine: &Worker, healthy: bool) {
    if engine.healthy() != healthy {
        tracing::warn!(engine = %engine.id(), healthy, "health changed");
        engine.set_healthy(healthy);
    }
}

#[async_trait]
impl BackgroundService for HealthChecks {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut idle: HashMap<SocketAddr, Probe> = HashMap::new();
        let mut running = FuturesUnordered::new();
        let mut running_at: HashSet<SocketAddr> = HashSet::new();
        loop {
            let health = self.app.routing().config.health.clone();
            self.follow(&mut idle, &running_at);
            if let Some(health) = &health {
                let now = Instant::now();
                for (address, probe) in idle.extract_if(|_, probe| probe.due(health.interval, now))
                {
                    running_at.insert(address);
                    running.push(probe.run());
                }
            } else {
                // Switched on again, every engine starts with a clean record.
                idle.clear();
                running.clear();
                running_at.clear();
                self.all_healthy();
            }
            tokio::select! {
                Some(probe) = running.next() => {
                    running_at.remove(&probe.address);
                    if health.is_some() {
                        self.publish(probe.address, probe.healthy());
                    }
                    idle.insert(probe.address, probe);
                }
                () = tokio::time::sleep(LOOK) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// `GET` of the health path; 200 is well.
struct EngineCheck {
    app: Arc<App>,
    engines: EngineClient,
}

#[async_trait]
impl HealthCheck for EngineCheck {
    async fn check(&self, target: &Backend) -> Result<()> {
        let routing = self.app.routing();
        let Some(health) = &routing.config.health else {
            return Ok(());
        };
        let members = routing.workers.members().all();
        let same = |engine: &&Arc<Worker>| {
            engine.address().map(PingoraAddr::Inet).as_ref() == Some(&target.addr)
        };
        let Some(engine) = members.iter().find(same) else {
            return Ok(());
        };
        let peer = peer::http1(engine, &routing.config.timeouts)?;
        let head = engine_call::head("GET", &health.path, engine, &routing.secrets, None, None)?;
        let call = self
            .engines
            .simple(&peer, head, Bytes::new(), health.timeout);
        match call.await? {
            200 => Ok(()),
            status => Err(Error::new_up(ErrorType::HTTPStatus(status))),
        }
    }

    fn health_threshold(&self, success: bool) -> usize {
        let routing = self.app.routing();
        let wanted = routing.config.health.as_ref().map_or(1, |health| {
            if success {
                health.healthy_after
            } else {
                health.unhealthy_after
            }
        });
        usize::try_from(wanted).unwrap_or(usize::MAX)
    }
}
