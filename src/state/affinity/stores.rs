//! All stores of the process, and when each is swept.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ids::ModelId;
use crate::state::AffinityStore;

/// What a key stands for; kinds never share a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AffinityKind {
    /// Session ids.
    Session,
    /// Routing keys.
    Sticky,
}

/// How long the bindings of one store last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityTimes {
    /// Age since the last use above which a sweep removes a binding; above zero.
    pub idle: Duration,
    /// From one sweep to the next; above zero.
    pub eviction_interval: Duration,
}

#[derive(Debug)]
struct Slot {
    store: Arc<AffinityStore>,
    times: AffinityTimes,
    /// Of the next sweep; the first one is due at once.
    due: Instant,
}

/// One store per kind and model. Lives as long as the process, so bindings survive a reload.
#[derive(Debug, Default)]
pub struct AffinityStores {
    slots: Mutex<BTreeMap<(AffinityKind, ModelId), Slot>>,
}

impl AffinityKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Session, Self::Sticky];

    /// The label used in metrics, state and explanations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Sticky => "sticky",
        }
    }
}

impl fmt::Display for AffinityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Default for AffinityTimes {
    /// 600 s and 60 s. Source: policy-semantics §13.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(600),
            eviction_interval: Duration::from_secs(60),
        }
    }
}

// === impl AffinityStores ===

impl AffinityStores {
    /// The store of a kind and model; made when it is asked for first.
    #[must_use]
    pub fn of(&self, kind: AffinityKind, model: &ModelId) -> Arc<AffinityStore> {
        let mut slots = self.slots.lock();
        let slot = slots.entry((kind, model.clone())).or_insert_with(|| Slot {
            store: Arc::default(),
            times: AffinityTimes::default(),
            due: Instant::now(),
        });
        Arc::clone(&slot.store)
    }

    /// The store of a kind and model, if there is one.
    #[must_use]
    pub fn get(&self, kind: AffinityKind, model: &ModelId) -> Option<Arc<AffinityStore>> {
        let slots = self.slots.lock();
        let slot = slots.get(&(kind, model.clone()))?;
        Some(Arc::clone(&slot.store))
    }

    /// Puts a configuration to work: the times of every model that exists. Stores of models that do
    /// not are dropped, and requests under way keep what they hold.
    pub fn configure(&self, times: impl Fn(AffinityKind, &ModelId) -> Option<AffinityTimes>) {
        self.slots.lock().retain(|(kind, model), slot| {
            let Some(times) = times(*kind, model) else {
                return false;
            };
            slot.times = times;
            slot.due = slot.due.min(Instant::now() + times.eviction_interval);
            true
        });
    }

    /// Sweeps every store whose turn it is at `now`; sweeps that were missed are skipped. Returns
    /// when the next one is due, if there is a store.
    pub fn sweep_due(&self, now: Instant) -> Option<Instant> {
        let mut due = Vec::new();
        let mut next = None;
        for ((kind, model), slot) in self.slots.lock().iter_mut() {
            if slot.due <= now {
                slot.due = now + slot.times.eviction_interval;
                due.push((*kind, model.clone(), Arc::clone(&slot.store), slot.times));
            }
            next = Some(next.map_or(slot.due, |next: Instant| next.min(slot.due)));
        }
        for (kind, model, store, times) in due {
            let removed = store.sweep_expired(times.idle);
            if removed > 0 {
                tracing::info!(%kind, %model, removed, "idle bindings removed");
            }
        }
        next
    }

    /// What `of` makes of every store of a kind, added up.
    pub fn sum(&self, kind: AffinityKind, of: impl Fn(&AffinityStore) -> u64) -> u64 {
        let slots = self.slots.lock();
        let stores = slots.iter().filter(|((other, _), _)| *other == kind);
        stores.map(|(_, slot)| of(&slot.store)).sum()
    }
}
