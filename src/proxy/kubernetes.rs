//! Watches the EndpointSlices of every model that takes its engines from Kubernetes.
//!
//! One watch per source, started and stopped as reloads name sources; `kube`'s watcher lists,
//! follows bookmarks and lists again when the server has forgotten where it was. What it tells goes
//! to [`Discovered`]; nothing here decides who serves. A server that does not answer, or forbids,
//! changes nothing: engines stay as they are, the log says why, and it is asked again.
//! Source: http-and-operations §15.2.

mod object;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::config::Kubernetes as Source;
use crate::server::app::App;
use crate::server::kubernetes::{self, Change, Discovered};

/// How often the sources and the generation are looked at: as long may a new generation hold an
/// engine that went while it was built.
const LOOK: Duration = Duration::from_millis(100);

/// Changes that wait to be taken in; watches wait beyond it.
const WAITING: usize = 1024;

/// The watches of one process.
pub(crate) struct Kubernetes {
    app: Arc<App>,
    discovered: Arc<Mutex<Discovered>>,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").finish_non_exhaustive()
    }
}

/// A running watch; dropped, it stops.
struct Running {
    /// Tells its changes from those of an earlier watch of the same source.
    number: u64,
    stop: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.abort();
    }
}

/// Change, source, and the number of the watch that told it.
type Told = (u64, Source, Change);

impl Kubernetes {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            discovered: Arc::default(),
        }
    }

    /// Takes in what waits, of watches that still run.
    fn take(
        &self,
        first: Told,
        told: &mut mpsc::Receiver<Told>,
        running: &HashMap<Source, Running>,
    ) {
        let mut discovered = self.discovered.lock();
        let mut next = Some(first);
        while let Some((number, source, change)) = next {
            let current = running.get(&source);
            if current.is_some_and(|running| running.number == number) {
                discovered.take(&source, change);
            }
            next = told.try_recv().ok();
        }
    }

    async fn adopt(&self) {
        if !self.discovered.lock().due(&self.app) {
            return;
        }
        let (app, discovered) = (Arc::clone(&self.app), Arc::clone(&self.discovered));
        let work = tokio::task::spawn_blocking(move || discovered.lock().adopt(&app));
        if work.await.is_err() {
            tracing::error!("taking over engines of Kubernetes panicked; engines stay as they are");
        }
    }
}

#[async_trait]
impl BackgroundService for Kubernetes {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let (tell, mut told) = mpsc::channel(WAITING);
        let mut running: HashMap<Source, Running> = HashMap::new();
        let mut watches = FuturesUnordered::new();
        let mut started = 0;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let wanted = kubernetes::sources(&self.app.routing().config);
            running.retain(|source, _| wanted.contains(source));
            self.discovered.lock().keep(&wanted);
            for source in wanted {
                if running.contains_key(&source) {
                    continue;
                }
                started += 1;
                let (stop, registration) = AbortHandle::new_pair();
                let number = started;
                let watch = watch::run(source.clone(), number, tell.clone());
                watches.push(Abortable::new(watch, registration));
                running.insert(source, Running { number, stop });
            }
            tokio::select! {
                Some(first) = told.recv() => self.take(first, &mut told, &running),
                Some(_stopped) = watches.next() => {}
                _ = look.tick() => {}
                _ = shutdown.changed() => return,
            }
            self.adopt().await;
        }
    }
}
