//! A proxy that many cells watch at the same time: they share scrapes, each no older than the
//! question.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::support::child::Proxy;
use crate::support::gauges::Gauges;

/// The proxy and the newest scrape with its begin.
#[derive(Debug)]
pub(crate) struct Watched {
    proxy: Proxy,
    scrape: Mutex<Option<(Instant, Gauges)>>,
    turns: Semaphore,
}

/// Requests at the same time: a slow machine must not pass for a silent engine.
const AT_ONCE: usize = 16;

impl Deref for Watched {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}

impl Watched {
    pub(crate) async fn start(settings: &Value) -> Arc<Self> {
        Arc::new(Self {
            proxy: Proxy::start(settings.clone()).await,
            scrape: Mutex::new(None),
            turns: Semaphore::new(AT_ONCE),
        })
    }

    /// Waits for the turn to send a request.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turns.acquire().await.expect("it is never closed")
    }

    /// A scrape that was begun after this call.
    pub(crate) async fn gauges(&self) -> Gauges {
        let asked = Instant::now();
        let mut newest = self.scrape.lock().await;
        if let Some((begun, gauges)) = newest.as_ref()
            && *begun > asked
        {
            return gauges.clone();
        }
        let begun = Instant::now();
        let gauges = self.proxy.gauges().await;
        *newest = Some((begun, gauges.clone()));
        gauges
    }

    /// The end of a test, see [`Proxy::finish`].
    pub(crate) async fn finish(watched: Arc<Self>) {
        let watched = Arc::into_inner(watched).expect("every cell has ended");
        watched.proxy.finish().await;
    }
}
