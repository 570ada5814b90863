//! The rooms of one prefill engine.
//!
//! A room exists while a prefill computes for it or a decode waits for it, whichever comes
//! first. A prefill that goes away leaves the waiting decode alone: it waits on, as a real one
//! does, until its own time-out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nobody computes for this room.
    Empty,
    /// The prefill with this ticket is computing.
    Computing(u64),
    /// The cache of this ticket is complete.
    Ready(u64),
    /// Decode has fetched it.
    Delivered(u64),
}

impl Phase {
    fn ticket(self) -> Option<u64> {
        match self {
            Self::Empty => None,
            Self::Computing(ticket) | Self::Ready(ticket) | Self::Delivered(ticket) => Some(ticket),
        }
    }
}

/// All rooms of an engine.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    rooms: Mutex<HashMap<u64, Arc<watch::Sender<Phase>>>>,
    tickets: AtomicU64,
}

impl Rooms {
    /// A prefill starts to compute for `room`. An earlier one in the same room loses it.
    pub(crate) fn compute(self: &Arc<Self>, room: u64) -> PrefillSeat {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let phase = self.room(room);
        phase.send_replace(Phase::Computing(ticket));
        PrefillSeat {
            rooms: self.clone(),
            room,
            ticket,
            phase,
        }
    }

    /// Waits until the cache of `room` is complete, and takes it.
    pub(crate) async fn take(self: &Arc<Self>, room: u64) {
        let phase = self.room(room);
        let mut waiter = Waiter {
            rooms: self,
            room,
            phase: phase.subscribe(),
        };
        loop {
            // `phase` is the sender, so waiting cannot fail.
            let _ = waiter
                .phase
                .wait_for(|phase| matches!(phase, Phase::Ready(_)))
                .await;
            let taken = phase.send_if_modified(|phase| {
                let Phase::Ready(ticket) = *phase else {
                    return false;
                };
                *phase = Phase::Delivered(ticket);
                true
            });
            if taken {
                return;
            }
        }
    }

    /// Rooms that exist now.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rooms.lock().len()
    }

    fn room(&self, room: u64) -> Arc<watch::Sender<Phase>> {
        self.rooms
            .lock()
            .entry(room)
            .or_insert_with(|| Arc::new(watch::Sender::new(Phase::Empty)))
            .clone()
    }

    /// Forgets the room if nobody computes, and no more than `leaving` still wait.
    fn forget(&self, room: u64, leaving: usize) {
        let mut rooms = self.rooms.lock();
        let is_unused = rooms.get(&room).is_some_and(|phase| {
            *phase.borrow() == Phase::Empty && phase.receiver_count() <= leaving
        });
        if is_unused {
            rooms.remove(&room);
        }
    }
}

/// The place of a prefill in its room; empty again once dropped.
#[derive(Debug)]
#[must_use = "the room is empty once this is dropped"]
pub(crate) struct PrefillSeat {
    rooms: Arc<Rooms>,
    room: u64,
    ticket: u64,
    phase: Arc<watch::Sender<Phase>>,
}

impl PrefillSeat {
    /// The cache is complete; returns when decode has fetched it.
    pub(crate) async fn hand_over(&self) {
        self.phase.send_if_modified(|phase| {
            let mine = *phase == Phase::Computing(self.ticket);
            if mine {
                *phase = Phase::Ready(self.ticket);
            }
            mine
        });
        let mut watching = self.phase.subscribe();
        // The sender is held by `self`, so waiting cannot fail.
        let _ = watching
            .wait_for(|phase| *phase == Phase::Delivered(self.ticket))
            .await;
    }
}

impl Drop for PrefillSeat {
    fn drop(&mut self) {
        self.phase.send_if_modified(|phase| {
            let mine = phase.ticket() == Some(self.ticket);
            if mine {
                *phase = Phase::Empty;
            }
            mine
        });
        self.rooms.forget(self.room, 0);
    }
}

/// A decode in front of the room.
struct Waiter<'a> {
    rooms: &'a Rooms,
    room: u64,
    phase: watch::Receiver<Phase>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // This waiter's own receiver is dropped only after this.
        self.rooms.forget(self.room, 1);
    }
}
