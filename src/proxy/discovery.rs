//! Follows the files of engines as long as the process serves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::time::MissedTickBehavior;

use crate::server::app::App;
use crate::server::discovery::FileWatch;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The watcher of one process.
pub(crate) struct Discovery {
    app: Arc<App>,
    watch: Arc<Mutex<FileWatch>>,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").finish_non_exhaustive()
    }
}

impl Discovery {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            watch: Arc::default(),
        }
    }
}

#[async_trait]
impl BackgroundService for Discovery {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                _ = shutdown.changed() => return,
            }
            let (app, watch) = (Arc::clone(&self.app), Arc::clone(&self.watch));
            let work = tokio::task::spawn_blocking(move || watch.lock().look(&app));
            if work.await.is_err() {
                tracing::error!(
                    "looking at the files of engines panicked; engines stay as they are"
                );
            }
        }
    }
}
