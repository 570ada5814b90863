//! How many times the availability of any engine has changed.
//!
//! Groups keep the list of their available engines and look at thousands of engines again only
//! after this number has moved, so that a pick costs the same whatever the size of the fleet. One
//! number for the whole process: a change elsewhere costs a group one needless look and never a
//! wrong answer. Time passes without a change here; see
//! [`Worker::availability_changes_at`](super::Worker::availability_changes_at).

use std::sync::atomic::{AtomicU64, Ordering};

static CHANGES: AtomicU64 = AtomicU64::new(0);

/// To be called after, never before, an engine became available or ceased to be.
pub(super) fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// The number of changes so far. Who reads it and then looks at engines sees every change that it
/// counts.
#[must_use]
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}
