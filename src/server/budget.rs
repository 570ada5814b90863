//! Exact caps of the whole router: requests in flight and bytes of request bodies held.
//!
//! Both are guards, so that every exit returns what it took. Neither queues: a full router says
//! so at once (503 with `Retry-After`). Source: contract §2 `limits`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with an optional ceiling.
#[derive(Debug, Default)]
pub struct Budget {
    used: AtomicU64,
}

impl Budget {
    /// What is taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// An empty share that can grow up to `ceiling` over all shares.
    pub fn share(self: &Arc<Self>) -> Share {
        Share {
            budget: Arc::clone(self),
            taken: 0,
        }
    }

    fn take(&self, amount: u64, ceiling: Option<u64>) -> bool {
        let Some(ceiling) = ceiling else {
            self.used.fetch_add(amount, Ordering::Relaxed);
            return true;
        };
        let fits = |used: u64| used.checked_add(amount).filter(|sum| *sum <= ceiling);
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, fits).is_ok()
    }
}

/// One request's part of a budget; given back on drop.
#[derive(Debug)]
#[must_use = "dropping the share gives it back"]
pub struct Share {
    budget: Arc<Budget>,
    taken: u64,
}

impl Share {
    /// Takes `amount` more, unless the sum over all shares would pass `ceiling`.
    #[must_use]
    pub fn grow(&mut self, amount: u64, ceiling: Option<u64>) -> bool {
        let fits = self.budget.take(amount, ceiling);
        if fits {
            self.taken += amount;
        }
        fits
    }

    /// Gives back what it has above `amount`.
    pub fn shrink(&mut self, amount: u64) {
        let surplus = self.taken.saturating_sub(amount);
        self.taken -= surplus;
        self.budget.used.fetch_sub(surplus, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stop_at_the_ceiling_and_give_everything_back() {
        let budget = Arc::new(Budget::default());
        let mut first = budget.share();
        assert!(first.grow(6, Some(10)));
        let mut second = budget.share();
        assert!(!second.grow(5, Some(10)));
        assert!(second.grow(4, Some(10)), "the ceiling is inclusive");
        assert_eq!(budget.used(), 10);
        first.shrink(5);
        first.shrink(7);
        assert_eq!(budget.used(), 9);
        drop(first);
        assert_eq!(budget.used(), 4);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn no_ceiling_never_refuses() {
        let budget = Arc::new(Budget::default());
        let mut share = budget.share();
        assert!(share.grow(u64::from(u32::MAX), None));
    }
}
