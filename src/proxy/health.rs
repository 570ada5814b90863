//! Active health checks through `pingora-load-balancing`, reported into the registry.
//!
//! One probe per address and interval; thresholds are Pingora's, so a single lost probe changes
//! nothing. A check filters candidates and never opens a breaker. A reload states the whole set:
//! checks of engines that are gone stop, those of engines that stay go on with their counts.
//! New engines count as healthy until checks fail. Source: contract §2 `health`, field-lessons
//! L32, L33, L41, L55.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header;
use pingora::http::RequestHeader;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::services::background::BackgroundService;
use pingora::{Error, ErrorType, Result};
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend, Backends, Extensions};

use crate::config::Health;
use crate::proxy::engine_call::EngineClient;
use crate::proxy::peer;
use crate::server::app::App;
use crate::workers::Worker;

/// Checks every engine of the active routing.
pub(crate) struct HealthChecks {
    app: Arc<App>,
    backends: Backends,
}

impl HealthChecks {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let mut backends = Backends::new(Box::new(Fleet(Arc::clone(&app))));
        backends.set_health_check(Box::new(EngineCheck {
            app: Arc::clone(&app),
            engines: EngineClient::new(&ServerConf::default()),
        }));
        Self { app, backends }
    }

    async fn pass(&self) {
        if let Err(error) = self.backends.update(|_| {}).await {
            tracing::error!(%error, "health checks could not take over the engine list");
            return;
        }
        self.backends.run_health_check(true).await;
        let verdicts: HashMap<SocketAddr, bool> = self
            .backends
            .get_backend()
            .iter()
            .map(|backend| (backend.addr.clone(), self.backends.ready(backend)))
            .collect();
        for engine in self.app.routing().workers.members().all() {
            let verdict = engine
                .address()
                .and_then(|at| verdicts.get(&SocketAddr::Inet(at)));
            if let Some(healthy) = verdict {
                publish(&engine, *healthy);
            }
        }
    }

    /// With checks switched off nothing may stay out because of an old verdict.
    fn all_healthy(&self) {
        for engine in self.app.routing().workers.members().all() {
            publish(&engine, true);
        }
    }
}

fn publish(engine: &Worker, healthy: bool) {
    if engine.healthy() != healthy {
        tracing::warn!(engine = %engine.id(), healthy, "health changed");
        engine.set_healthy(healthy);
    }
}

#[async_trait]
impl BackgroundService for HealthChecks {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            let health = self.app.routing().config.health.clone();
            let wait = match &health {
                Some(health) => {
                    self.pass().await;
                    health.interval
                }
                None => {
                    self.all_healthy();
                    std::time::Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// The active routing's engines as Pingora backends, one per address.
struct Fleet(Arc<App>);

#[async_trait]
impl ServiceDiscovery for Fleet {
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let engines = self.0.routing().workers.members().all();
        let backends = engines.iter().filter_map(|engine| {
            Some(Backend {
                addr: SocketAddr::Inet(engine.address()?),
                weight: 1,
                ext: Extensions::new(),
            })
        });
        Ok((backends.collect(), HashMap::new()))
    }
}

/// `GET` of the health path; 200 is well.
struct EngineCheck {
    app: Arc<App>,
    engines: EngineClient,
}

impl EngineCheck {
    fn settings(&self) -> Option<Health> {
        self.app.routing().config.health.clone()
    }
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
            engine.address().map(SocketAddr::Inet).as_ref() == Some(&target.addr)
        };
        let Some(engine) = members.iter().find(same) else {
            return Ok(());
        };
        let peer = peer::http1(engine, &routing.config.timeouts)?;
        let mut head = RequestHeader::build("GET", health.path.as_bytes(), Some(1))?;
        head.insert_header(header::HOST, engine.url().authority())?;
        let call = self
            .engines
            .simple(&peer, head, Bytes::new(), health.timeout);
        match call.await? {
            200 => Ok(()),
            status => Err(Error::new_up(ErrorType::HTTPStatus(status))),
        }
    }

    fn health_threshold(&self, success: bool) -> usize {
        let settings = self.settings();
        let wanted = settings.map_or(1, |health| {
            if success {
                health.healthy_after
            } else {
                health.unhealthy_after
            }
        });
        usize::try_from(wanted).unwrap_or(usize::MAX)
    }
}
