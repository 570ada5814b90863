//! Runs the load feeds as long as the process serves.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;

use crate::feeds::FeedThread;
use crate::server::app::App;

/// The service that owns the feed thread.
pub(crate) struct Feeds(pub(crate) Arc<App>);

impl fmt::Debug for Feeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

#[async_trait]
impl BackgroundService for Feeds {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let app = Arc::clone(&self.0);
        let started = FeedThread::start(
            Arc::clone(&app.services.loads),
            Arc::clone(&app.feeds),
            Arc::clone(&app.fleet_changed),
            move || app.routing().fleet(),
        );
        match started {
            // Reports are of use until the last request is placed: the thread goes with the process.
            Ok(_running) => while !*shutdown.borrow() && shutdown.changed().await.is_ok() {},
            Err(error) => tracing::error!(%error, "no load reports: the feed thread cannot start"),
        }
    }
}
