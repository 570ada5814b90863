//! Keeps the subscriptions to engines in step with who is there, and the indexes tidy.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;

use crate::server::app::App;
use crate::server::follow;

/// How often the set of engines is compared.
const LOOK: Duration = Duration::from_millis(250);

/// The service; its runtime is where events are decoded and applied.
pub(crate) struct EventFeeds(pub(crate) Arc<App>);

impl EventFeeds {
    async fn pass(&self) {
        let routing = self.0.routing();
        self.0.kv_feeds.follow(&follow::followed(&routing)).await;
        let prefixes = &self.0.services.prefixes;
        prefixes.retain(|model| routing.models().any(|other| other.id == *model));
        self.0.kv_feeds.sweep().await;
    }
}

#[async_trait]
impl BackgroundService for EventFeeds {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                () = self.pass() => {}
                _ = shutdown.changed() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}
