//! Puts the services of one process together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pingora::server::Server;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::services::background::background_service;
use pingora::services::listening::Service;
use pingora_proxy::HttpProxy;

use crate::config::Config;
use crate::proxy::admin::{AdminApp, AdminDoor};
use crate::proxy::discovery::Discovery;
use crate::proxy::feeds::Feeds;
use crate::proxy::health::HealthChecks;
use crate::proxy::introspect::Introspection;
use crate::proxy::kv_feeds::EventFeeds;
use crate::proxy::lifecycle::{AffinitySweeper, Exit, Janitor, NameRefresh, ReloadOnHangup};
use crate::proxy::poll_loads::LoadPolls;
use crate::proxy::{Door, EdgeProxy};
use crate::server::app::App;
use crate::server::reload::Reloader;

/// Idle engine connections kept per worker thread.
const UPSTREAM_POOL: usize = 1024;

/// How a process is started.
pub struct Start {
    /// The services.
    pub app: Arc<App>,
    /// The file to reload, if there is one.
    pub reloader: Option<Arc<Reloader>>,
    /// Set by a SIGHUP that came before the services ran.
    pub early_hangup: Arc<AtomicBool>,
    /// Pingora's own options (`--upgrade`, `--daemon`, `--conf`).
    pub options: Opt,
    /// Ends the process.
    pub leave: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start").finish_non_exhaustive()
    }
}

/// Number of worker threads for `config`.
#[must_use]
pub fn threads(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    config.threads.unwrap_or_else(cores)
}

/// Pingora's settings with the defaults that would hurt replaced (pingora-notes §10, §13); a file
/// given with `--conf` keeps what it says about sockets, users and upgrades.
///
/// # Errors
/// The `--conf` file cannot be read.
pub fn server_conf(config: &Config, options: &Opt) -> Result<ServerConf, String> {
    let mut conf = match &options.conf {
        Some(path) => {
            ServerConf::load_from_yaml(path).map_err(|error| format!("{path}: {error}"))?
        }
        None => ServerConf::default(),
    };
    conf.threads = threads(config);
    conf.upstream_keepalive_pool_size = conf.upstream_keepalive_pool_size.max(UPSTREAM_POOL);
    // Pingora sleeps this long whatever happens; `lifecycle::Exit` leaves before, when nothing is
    // in flight or the grace of the then active configuration is over.
    conf.grace_period_seconds = Some(24 * 3600);
    conf.graceful_shutdown_timeout_seconds = Some(1);
    if options.daemon && conf.working_directory.is_none() {
        // Relative paths in the configuration mean the same before and after the fork.
        conf.working_directory = std::env::current_dir().ok();
    }
    Ok(conf)
}

/// The data listener over `proxy`: HTTP/1.1 and h2c on every address of the configuration.
#[must_use]
pub fn data_service(proxy: EdgeProxy, conf: &Arc<ServerConf>, config: &Config) -> Service<Door> {
    let app = Arc::clone(proxy.app());
    let mut http = HttpProxy::new(proxy, Arc::clone(conf));
    http.handle_init_modules();
    let mut service = Service::new("data".to_owned(), Door::new(http, app));
    for address in &config.listen {
        service.add_tcp(&address.to_string());
    }
    service
}

/// A server with every service of the process, ready to run.
///
/// # Errors
/// Pingora's own file cannot be read.
pub fn assemble(start: Start) -> Result<Server, String> {
    let Start {
        app,
        reloader,
        early_hangup,
        options,
        leave,
    } = start;
    let config = Arc::clone(&app.routing().config);
    let conf = server_conf(&config, &options)?;
    let mut server = Server::new_with_opt_and_conf(
        Opt {
            conf: None,
            ..options
        },
        conf,
    );
    server.bootstrap();
    let conf = Arc::clone(&server.configuration);

    let mut admin = Service::new(
        "admin".to_owned(),
        AdminDoor::new(AdminApp::new(Arc::clone(&app), reloader.clone(), &conf)),
    );
    admin.threads = Some(1);
    admin.add_tcp(&config.admin.listen.to_string());
    let mut before_data = Vec::new();
    if let Some(reloader) = reloader {
        let reload = ReloadOnHangup::new(Arc::clone(&app), reloader, early_hangup);
        before_data.push(server.add_service(background_service("reload", reload)));
    }
    before_data.push(server.add_service(background_service("janitor", Janitor(Arc::clone(&app)))));
    let health = HealthChecks::new(Arc::clone(&app));
    server.add_service(background_service("health", health));
    let introspection = Introspection::new(Arc::clone(&app));
    server.add_service(background_service("introspection", introspection));
    server.add_service(background_service("feeds", Feeds(Arc::clone(&app))));
    let discovery = Discovery::new(Arc::clone(&app));
    server.add_service(background_service("discovery", discovery));
    #[cfg(feature = "kubernetes")]
    {
        let watches = crate::proxy::kubernetes::Kubernetes::new(Arc::clone(&app));
        server.add_service(background_service("kubernetes", watches));
    }
    let polls = LoadPolls::new(Arc::clone(&app));
    server.add_service(background_service("load polls", polls));
    let events = EventFeeds(Arc::clone(&app));
    server.add_service(background_service("kv-events", events));
    server.add_service(background_service("names", NameRefresh(Arc::clone(&app))));
    let sweeper = AffinitySweeper(Arc::clone(&app));
    server.add_service(background_service("affinity", sweeper));
    server.add_service(background_service(
        "exit",
        Exit::new(Arc::clone(&app), leave),
    ));
    server.add_service(admin);
    let data = data_service(EdgeProxy::new(Arc::clone(&app), &conf), &conf, &config);
    let data = server.add_service(data);
    for service in &before_data {
        data.add_dependency(service);
    }
    Ok(server)
}
