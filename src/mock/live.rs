//! The requests an engine is working on, by id: what `/abort_request` can reach.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Ids and rooms of live requests.
#[derive(Debug, Default)]
pub(crate) struct LiveRequests {
    ids: Mutex<HashMap<String, watch::Sender<bool>>>,
    rooms: Mutex<HashMap<u64, u32>>,
}

impl LiveRequests {
    /// Takes the id, or `None` if a live request has it.
    pub(crate) fn enter(self: &Arc<Self>, rid: &str) -> Option<LiveRequest> {
        let mut ids = self.ids.lock();
        if ids.contains_key(rid) {
            return None;
        }
        let abort = watch::Sender::new(false);
        let aborted = abort.subscribe();
        ids.insert(rid.to_owned(), abort);
        Some(LiveRequest {
            live: self.clone(),
            rid: rid.to_owned(),
            rooms: 0..0,
            aborted,
        })
    }

    /// Aborts every live request whose id starts with `rid` (the scheduler's rule), or all.
    /// An empty id without `all` is ignored.
    pub(crate) fn abort(&self, rid: &str, all: bool) {
        for (id, abort) in self.ids.lock().iter() {
            if all || (!rid.is_empty() && id.starts_with(rid)) {
                abort.send_replace(true);
            }
        }
    }
}

/// Holds an id, and rooms, until dropped.
#[derive(Debug)]
#[must_use = "the id is free again once this is dropped"]
pub(crate) struct LiveRequest {
    live: Arc<LiveRequests>,
    rid: String,
    rooms: std::ops::Range<u64>,
    aborted: watch::Receiver<bool>,
}

impl LiveRequest {
    pub(crate) fn is_aborted(&self) -> bool {
        *self.aborted.borrow()
    }

    /// Returns when `/abort_request` has named this request. The future borrows nothing.
    pub(crate) fn aborted(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut aborted = self.aborted.clone();
        async move {
            if aborted.wait_for(|aborted| *aborted).await.is_err() {
                // The request is over and cannot be aborted any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes `count` rooms from `first`; says how many of them another live request has.
    pub(crate) fn take_rooms(&mut self, first: u64, count: u64) -> u64 {
        let mut collisions = 0;
        let mut rooms = self.live.rooms.lock();
        self.rooms = first..first.saturating_add(count);
        for room in self.rooms.clone() {
            let holders = rooms.entry(room).or_default();
            collisions += u64::from(*holders > 0);
            *holders += 1;
        }
        collisions
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        self.live.ids.lock().remove(&self.rid);
        let mut rooms = self.live.rooms.lock();
        for room in self.rooms.clone() {
            if let Some(holders) = rooms.get_mut(&room) {
                *holders -= 1;
                if *holders == 0 {
                    rooms.remove(&room);
                }
            }
        }
    }
}
