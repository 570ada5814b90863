//! The thread that keeps load feeds in step with the fleet, and connects them.
//!
//! It has little to do: what comes over the connections is read on another thread. Request threads
//! never run a feed.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::feeds::loads::{LoadFeeds, Member};
use crate::feeds::stats::FeedStats;
use crate::state::EngineLoadTable;

/// How often the fleet is looked at when nobody says that it changed.
const LOOK: Duration = Duration::from_millis(500);

/// The running thread; dropping it ends all feeds.
#[derive(Debug)]
pub struct FeedThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FeedThread {
    /// Starts the thread: `fleet` gives the whole fleet whenever it is asked, `changed` says when
    /// to ask at once.
    ///
    /// # Errors
    /// No threads, or no event loop, can be made.
    pub fn start(
        table: Arc<EngineLoadTable>,
        stats: Arc<FeedStats>,
        changed: Arc<Notify>,
        fleet: impl Fn() -> Vec<Member> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut feeds = LoadFeeds::new(table, stats)?;
        let (stop, mut stopped) = oneshot::channel();
        let work = async move {
            loop {
                feeds.reconcile(fleet());
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = changed.notified() => {}
                    _ = &mut stopped => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("feeds".to_owned());
        let thread = thread.spawn(move || runtime.block_on(work))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for FeedThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends at once; a panic in there has been reported by then.
            let _ = thread.join();
        }
    }
}
