//! Signals and background work: reload, janitor, name refresh, affinity sweeps, drain, exit.
//!
//! SIGTERM: not ready at once, new work is served for `shutdown.drain`, then listeners close and
//! what is in flight has `shutdown.grace`. The process leaves as soon as nothing is in flight.
//! SIGINT skips the drain; a second one ends at once. SIGHUP reloads. SIGQUIT hands the sockets to
//! an upgraded process. Source: contract §1, http-and-operations §17, pingora-notes §10.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::BackgroundService;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior};

use crate::server::app::App;
use crate::server::reload::Reloader;
use crate::workers::Members;

/// How often limits are checked; the precision of every timeout of an exchange.
const JANITOR_TICK: Duration = Duration::from_millis(50);

/// How often host names of engines are resolved again.
const NAMES_TICK: Duration = Duration::from_secs(30);

/// Longest time until the due times of affinity stores are looked at again.
const SWEEP_LOOK: Duration = Duration::from_secs(1);

/// How long before the listeners close answers begin to end their connections.
const PARTING: Duration = Duration::from_secs(1);

/// Ends overdue exchanges, and connections whose request head is overdue.
#[derive(Debug)]
pub struct Janitor(pub Arc<App>);

#[async_trait]
impl BackgroundService for Janitor {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut ticks = tokio::time::interval(JANITOR_TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // Goes on during the grace period: limits hold until the process leaves.
        let mut stopping = *shutdown.borrow();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = shutdown.changed(), if !stopping => stopping = changed.is_ok() || stopping,
            }
            let now = Instant::now();
            let headless = self.0.heads.sweep(now);
            if headless > 0 {
                tracing::debug!(headless, "request heads did not arrive in time");
            }
            let expired = self.0.live.sweep(now);
            if expired > 0 {
                tracing::warn!(expired, "requests outlived timeouts.lifetime");
                self.0
                    .metrics
                    .stale_requests(u64::try_from(expired).unwrap_or(u64::MAX));
            }
        }
    }
}

/// Reloads on SIGHUP. Several signals in a row coalesce.
pub struct ReloadOnHangup {
    app: Arc<App>,
    reloader: Arc<Reloader>,
    early: Arc<AtomicBool>,
}

impl fmt::Debug for ReloadOnHangup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadOnHangup").finish_non_exhaustive()
    }
}

impl ReloadOnHangup {
    /// `early` is set by a handler that exists from the first line of `main`, so that a signal
    /// during start-up neither kills the process nor is forgotten.
    #[must_use]
    pub const fn new(app: Arc<App>, reloader: Arc<Reloader>, early: Arc<AtomicBool>) -> Self {
        Self {
            app,
            reloader,
            early,
        }
    }

    async fn reload(&self) {
        let (app, reloader) = (Arc::clone(&self.app), Arc::clone(&self.reloader));
        let work = tokio::task::spawn_blocking(move || reloader.reload(&app).is_ok());
        if work.await.is_err() {
            tracing::error!("reload panicked; the old configuration stays active");
        }
    }
}

#[async_trait]
impl BackgroundService for ReloadOnHangup {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            tracing::error!("no SIGHUP handler: reload only over the admin listener");
            return;
        };
        if self.early.swap(false, Ordering::AcqRel) {
            self.reload().await;
        }
        loop {
            tokio::select! {
                _ = hangup.recv() => self.reload().await,
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// Removes idle bindings.
#[derive(Debug)]
pub struct AffinitySweeper(pub Arc<App>);

#[async_trait]
impl BackgroundService for AffinitySweeper {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let stores = &self.0.services.affinity;
        loop {
            let now = Instant::now();
            let next = stores.sweep_due(now);
            // Looks again soon: a reload may add a store or shorten an interval.
            let wake = next.map_or(now + SWEEP_LOOK, |next| next.min(now + SWEEP_LOOK));
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// Follows engines whose URL holds a name.
#[derive(Debug)]
pub struct NameRefresh(pub Arc<App>);

#[async_trait]
impl BackgroundService for NameRefresh {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(NAMES_TICK) => {}
                _ = shutdown.changed() => return,
            }
            refresh_names(&self.0.routing().workers.members()).await;
        }
    }
}

async fn refresh_names(members: &Members) {
    for engine in members.all() {
        if engine.url().ip().is_some() {
            continue;
        }
        let host = engine.url().host().to_owned();
        match tokio::net::lookup_host((host, engine.url().port())).await {
            Ok(mut addresses) => {
                if let Some(address) = addresses.next() {
                    engine.set_address(address);
                }
            }
            Err(error) => {
                tracing::warn!(engine = %engine.id(), %error, "name does not resolve; the last address stays")
            }
        }
    }
}

/// Tells Pingora when to stop.
#[derive(Debug)]
pub struct Signals(pub Arc<App>);

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let wait = |kind| signal(kind).expect("signal handlers can be installed");
        let mut terminate = wait(SignalKind::terminate());
        let mut interrupt = wait(SignalKind::interrupt());
        let mut quit = wait(SignalKind::quit());
        tokio::select! {
            _ = quit.recv() => {
                // Pingora hands the sockets over and goes on serving for 5 s.
                self.0.start_draining();
                self.0.start_parting();
                return ShutdownSignal::GracefulUpgrade;
            }
            _ = interrupt.recv() => self.0.start_draining(),
            _ = terminate.recv() => self.drain(&mut terminate, &mut interrupt).await,
        }
        ShutdownSignal::GracefulTerminate
    }
}

impl Signals {
    /// Not ready, still serving, until the pause is over or somebody insists.
    async fn drain(&self, terminate: &mut Signal, interrupt: &mut Signal) {
        self.0.start_draining();
        let drain = self.0.routing().config.shutdown.drain;
        tracing::info!(
            drain_secs = drain.as_secs(),
            "draining: not ready, still serving"
        );
        let parting = PARTING.min(drain);
        let pause = async {
            tokio::time::sleep(drain - parting).await;
            self.0.start_parting();
            tokio::time::sleep(parting).await;
        };
        tokio::select! {
            () = pause => {}
            _ = terminate.recv() => tracing::info!("second SIGTERM: drain cut short"),
            _ = interrupt.recv() => tracing::info!("SIGINT: drain cut short"),
        }
    }
}

/// Leaves as soon as nothing is in flight, which Pingora's fixed grace sleep does not.
pub struct Exit {
    app: Arc<App>,
    leave: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exit").finish_non_exhaustive()
    }
}

impl Exit {
    /// `leave` ends the process.
    #[must_use]
    pub fn new(app: Arc<App>, leave: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            app,
            leave: Box::new(leave),
        }
    }

    /// Waits until nothing is going on. Connections whose first request has not been read yet count
    /// for a second; Pingora closes idle ones by itself when it stops.
    async fn idle(&self) {
        let patience = Instant::now() + Duration::from_secs(1);
        let mut quiet = 0;
        while quiet < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let waiting = self.app.connections.used() > 0 && Instant::now() < patience;
            quiet = if waiting || self.busy() { 0 } else { quiet + 1 };
        }
    }

    /// A request, or a prefill leg that outlives one.
    fn busy(&self) -> bool {
        let engines = self.app.routing().workers.members().all();
        self.app.inflight.used() > 0
            || !self.app.live.is_empty()
            || engines.iter().any(|engine| engine.inflight() > 0)
    }
}

#[async_trait]
impl BackgroundService for Exit {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        while !*shutdown.borrow() {
            if shutdown.changed().await.is_err() {
                return;
            }
        }
        // Made only now: the signal that began all this does not count as the second one.
        let mut interrupt =
            signal(SignalKind::interrupt()).expect("signal handlers can be installed");
        let grace = self.app.routing().config.shutdown.grace;
        tokio::select! {
            () = self.idle() => tracing::info!("nothing in flight: leaving"),
            () = tokio::time::sleep(grace) => {
                tracing::warn!(inflight = self.app.inflight.used(), "grace is over: leaving");
            }
            _ = interrupt.recv() => tracing::warn!("second SIGINT: leaving at once"),
        }
        (self.leave)();
    }
}
