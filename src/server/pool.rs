//! Threads for work that is too long for an event loop.
//!
//! Few, persistent (libraries keep caches per thread) and behind a bounded queue. It refuses to
//! wait for room: who finds the queue full does without. Work whose client has gone by the time a
//! thread is free is not begun. Source: http-and-operations §9, field-lessons L71.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

/// Pieces of work that may wait per thread. Chosen.
const QUEUE_PER_THREAD: usize = 32;

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotDone {
    /// Too much work was waiting.
    QueueFull,
    /// It panicked.
    Panicked,
}

impl NotDone {
    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Panicked => "panicked",
        }
    }
}

/// The threads and their queue.
#[derive(Debug)]
pub struct WorkPool {
    threads: rayon::ThreadPool,
    places: Arc<Semaphore>,
    size: usize,
}

impl WorkPool {
    /// A pool for a machine with `cores` cores: one thread fewer, so that event loops get their turn.
    ///
    /// # Panics
    /// When the system gives no threads.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        let count = cores.saturating_sub(1).max(1);
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("prepare-{index}"))
            .build()
            .expect("the system has threads");
        let size = count * (QUEUE_PER_THREAD + 1);
        Self {
            threads,
            places: Arc::new(Semaphore::new(size)),
            size,
        }
    }

    /// Does `work` on a thread of the pool. Dropping the future takes it off the queue.
    ///
    /// * `gone`: called instead of `work` when nobody waits for it any more.
    ///
    /// # Errors
    /// [`NotDone`].
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<T, NotDone> {
        let places = Arc::clone(&self.places);
        let place = places.try_acquire_owned().map_err(|_| NotDone::QueueFull)?;
        let (answer, done) = oneshot::channel();
        self.threads.spawn(move || {
            if answer.is_closed() {
                gone();
            } else if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
                let _ = answer.send(result);
            }
            drop(place);
        });
        done.await.map_err(|_| NotDone::Panicked)
    }

    /// Work that is being done or waits.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.size - self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A pool of one thread, held by work that ends when the sender is dropped.
    fn held() -> (
        Arc<WorkPool>,
        mpsc::Sender<()>,
        tokio::task::JoinHandle<Result<(), NotDone>>,
    ) {
        let pool = Arc::new(WorkPool::new(1));
        let (release, wait) = mpsc::channel::<()>();
        let holder = Arc::clone(&pool);
        #[expect(clippy::disallowed_methods, reason = "a second party for a test")]
        let held = tokio::spawn(async move {
            let work = move || wait.recv().unwrap_or_default();
            holder.run(work, || ()).await
        });
        (pool, release, held)
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_has_room_again_afterwards() {
        let (pool, release, held) = held();
        tokio::task::yield_now().await;
        let mut waiting = Vec::new();
        for _ in 0..QUEUE_PER_THREAD {
            let mut work = Box::pin(pool.run(|| (), || ()));
            assert!(futures_util::poll!(&mut work).is_pending());
            waiting.push(work);
        }
        assert_eq!(pool.taken(), QUEUE_PER_THREAD + 1);
        assert_eq!(pool.run(|| (), || ()).await, Err(NotDone::QueueFull));
        drop(release);
        assert_eq!(held.await.expect("not cancelled"), Ok(()));
        for work in waiting {
            assert_eq!(work.await, Ok(()));
        }
        while pool.taken() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(|| 7, || ()).await, Ok(7));
    }

    #[tokio::test]
    async fn work_of_a_client_that_left_is_not_begun() {
        let (pool, release, held) = held();
        tokio::task::yield_now().await;
        let (done, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let count = |counter: &Arc<AtomicUsize>| {
            let counter = Arc::clone(counter);
            move || {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut left = Box::pin(pool.run(count(&done), count(&gone)));
        assert!(futures_util::poll!(&mut left).is_pending());
        drop(left);
        drop(release);
        assert_eq!(held.await.expect("not cancelled"), Ok(()));
        assert_eq!(pool.run(|| 1, || ()).await, Ok(1));
        assert_eq!(
            (done.load(Ordering::Relaxed), gone.load(Ordering::Relaxed)),
            (0, 1)
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_work_only() {
        let pool = WorkPool::new(1);
        let broken: Result<(), _> = pool.run(|| panic!("on purpose"), || ()).await;
        assert_eq!(broken, Err(NotDone::Panicked));
        assert_eq!(pool.run(|| 1, || ()).await, Ok(1));
    }
}
