//! A running engine: its shared parts, its routes, its start and its violent end.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use super::chat::instant::Canned;
use super::config::{EngineConfig, Role};
use super::conn::ConnectionTable;
use super::faults::{Faults, FaultsHandle};
use super::kv::KvCaches;
use super::listener::{ConnectionInfo, MockListener, reap_idle};
use super::live::LiveRequests;
use super::load::{LoadSnapshot, Scheduler};
use super::pd::{self, Rooms};
use super::publish::{self, Sockets};
use super::record::{RecordedRequest, Recorder};
use super::stats::{Stats, StatsTable};
use super::{chat, control, info, loads};

/// What the handlers of one engine share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `bootstrap_port` is the real one, never 0 for a prefill engine.
    pub(crate) config: EngineConfig,
    pub(crate) started: std::time::SystemTime,
    pub(crate) faults: FaultsHandle,
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) stats: Arc<StatsTable>,
    pub(crate) recorder: Recorder,
    pub(crate) canned: Canned,
    pub(crate) live: Arc<LiveRequests>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) kv: KvCaches,
    pub(crate) rooms: Arc<Rooms>,
    /// Port of the load reports of rank 0, if it publishes them.
    pub(crate) load_port: Option<u16>,
    rng: Mutex<StdRng>,
}

impl Shared {
    /// The load now, as every report tells it.
    pub(crate) fn load(&self) -> LoadSnapshot {
        self.scheduler.load(|prompt| self.kv.uncached(prompt))
    }

    fn new(
        config: EngineConfig,
        load_port: Option<u16>,
        faults: FaultsHandle,
        connections: Arc<ConnectionTable>,
        kv: KvCaches,
    ) -> Self {
        let scheduler = Scheduler::new(config.max_running_requests, config.max_queued_requests);
        Self {
            started: std::time::SystemTime::now(),
            faults,
            connections,
            stats: Arc::default(),
            recorder: Recorder::default(),
            canned: Canned::new(&config),
            live: Arc::default(),
            scheduler: Arc::new(scheduler),
            kv,
            rooms: Arc::default(),
            load_port,
            rng: Mutex::new(StdRng::from_os_rng()),
            config,
        }
    }

    /// 32 hex digits.
    pub(crate) fn new_rid(&self) -> String {
        format!("{:032x}", self.rng.lock().random::<u128>())
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.stats.snapshot();
        stats.connections_total = self.connections.total();
        stats.connections_open = self.connections.open() as u64;
        stats
    }

    /// Heals the engine and forgets what it counted and recorded.
    pub(crate) fn reset(&self) {
        self.faults.clear();
        self.stats.reset();
        self.recorder.clear();
    }
}

/// A mock engine; it ends when this is dropped.
pub struct Engine {
    address: SocketAddr,
    shared: Arc<Shared>,
    bootstrap_connections: Arc<ConnectionTable>,
    tasks: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.shared.config.name)
            .field("role", &self.shared.config.role)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Starts an engine on the current tokio runtime. It accepts connections when this returns.
///
/// # Errors
/// An address or a bootstrap port that cannot be bound; the message names it.
pub async fn start(mut config: EngineConfig) -> io::Result<Engine> {
    let connections = Arc::new(ConnectionTable::new());
    let bootstrap_connections = Arc::new(ConnectionTable::new());
    let faults = FaultsHandle::new(config.faults.clone());
    let listener = MockListener::bind(config.listen, connections.clone(), faults.clone()).await?;
    let bootstrap = if config.role == Role::Prefill {
        let address = SocketAddr::new(config.listen.ip(), config.bootstrap_port);
        // The bootstrap server has no faults of its own.
        let healthy = FaultsHandle::new(Faults::default());
        let bound = MockListener::bind(address, bootstrap_connections.clone(), healthy).await?;
        config.bootstrap_port = bound.address().port();
        Some(bound)
    } else {
        None
    };
    let address = listener.address();
    let kv = KvCaches::start(&config, &faults, address).await?;
    let ip = config.listen.ip();
    let sockets = match config.load_port {
        Some(port) => Some(Sockets::bind(ip, port, config.kv_ranks).await?),
        None => None,
    };
    let load_port = sockets.as_ref().map(|sockets| sockets.port);
    let shared = Shared::new(config, load_port, faults.clone(), connections.clone(), kv);
    let shared = Arc::new(shared);
    let mut tasks = vec![
        serve(listener, router(shared.clone())),
        spawn(reap_idle(connections, faults.subscribe())),
    ];
    if let Some(sockets) = sockets {
        tasks.push(spawn(publish::run(shared.clone(), sockets)));
    }
    if let Some(bootstrap) = bootstrap {
        tasks.push(serve(bootstrap, pd::router(shared.rooms.clone())));
    }
    Ok(Engine {
        address,
        shared,
        bootstrap_connections,
        tasks,
    })
}

impl Engine {
    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://` and [`addr`](Self::addr), without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The name in the header `x-mock-engine`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// The bootstrap port: the bound one of a prefill engine, else the configured one.
    #[must_use]
    pub fn bootstrap_port(&self) -> u16 {
        self.shared.config.bootstrap_port
    }

    /// Port of the load reports of rank 0; `None` when the engine publishes none.
    #[must_use]
    pub fn load_port(&self) -> Option<u16> {
        self.shared.load_port
    }

    /// Port of the KV event publisher of rank 0; `None` when the engine publishes nothing.
    #[must_use]
    pub fn kv_port(&self) -> Option<u16> {
        self.shared.kv.port()
    }

    /// Port of the replay socket of rank 0; `None` when the engine offers no replay.
    #[must_use]
    pub fn kv_replay_port(&self) -> Option<u16> {
        self.shared.kv.replay_port()
    }

    /// Pages that its cache holds, over all ranks.
    #[must_use]
    pub fn kv_pages(&self) -> usize {
        self.shared.kv.pages()
    }

    /// Switches faults.
    #[must_use]
    pub fn faults(&self) -> FaultsHandle {
        self.shared.faults.clone()
    }

    /// The counters now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The recorded chat requests, oldest first: the last 256, at most 128 MiB of bodies.
    #[must_use]
    pub fn recorded(&self) -> Vec<RecordedRequest> {
        self.shared.recorder.last(usize::MAX)
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Heals the engine and forgets what it counted and recorded.
    pub fn reset(&self) {
        self.shared.reset();
    }

    /// Ends like a killed process: no more listening, every connection closed at once. When this
    /// returns, another engine can be started on the same address.
    pub async fn shutdown(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // An aborted task ends with an error that says just that.
            let _ = task.await;
        }
        self.shared.kv.close();
        for table in [&self.shared.connections, &self.bootstrap_connections] {
            table.close_all();
            table.wait_empty().await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.connections.close_all();
        self.bootstrap_connections.close_all();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let flush = get(info::flush_cache).post(info::flush_cache);
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/abort_request", post(info::abort_request))
        .route("/health", get(info::health))
        .route("/health_generate", get(info::health))
        .route("/ready", get(info::ready))
        .route("/ping", get(info::ready))
        .route("/server_info", get(info::server_info))
        .route("/get_server_info", get(info::server_info))
        .route("/model_info", get(info::model_info))
        .route("/get_model_info", get(info::model_info))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{id}", get(info::model))
        .route("/v1/loads", get(loads::loads))
        .route("/flush_cache", flush)
        .merge(control::routes())
        .layer(from_fn_with_state(shared.clone(), guard))
        .layer(from_fn_with_state(shared.clone(), sign))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

/// Paths that need no key. Source: engine-wire §4.
const OPEN: [&str; 4] = ["/health", "/ready", "/metrics", "/mock/"];

/// Refuses what lacks the engine's key.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let open = |path: &str| OPEN.iter().any(|start| path.starts_with(start));
    let given = request.headers().get(header::AUTHORIZATION);
    let refused = shared.config.api_key.as_ref().is_some_and(|key| {
        let wanted = format!("Bearer {key}");
        given.is_none_or(|given| given.as_bytes() != wanted.as_bytes())
    });
    if refused && !open(request.uri().path()) {
        let body = axum::Json(serde_json::json!({"error": "Unauthorized"}));
        return (StatusCode::UNAUTHORIZED, body).into_response();
    }
    next.run(request).await
}

/// Puts the engine's name on every answer.
async fn sign(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Ok(name) = HeaderValue::try_from(&shared.config.name) {
        response.headers_mut().insert("x-mock-engine", name);
    }
    response
}

fn serve(listener: MockListener, router: Router) -> JoinHandle<()> {
    let service = router.into_make_service_with_connect_info::<ConnectionInfo>();
    spawn(async move {
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%error, "a mock engine stopped serving");
        }
    })
}

/// The only place that starts a task.
#[expect(
    clippy::disallowed_methods,
    reason = "an engine is not a Pingora service; its tasks end with it"
)]
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(work)
}
