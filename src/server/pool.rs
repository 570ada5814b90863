//! Threads for work that is too long for an event loop.
//!
//! Few, persistent (libraries keep caches per thread) and behind a queue that is bounded by what waits
//! in it, not by how many: a hundred short prompts are done before one long one. It refuses to
//! wait for room: who finds the queue full does without. Work whose client has gone by the time a
//! thread is free is not begun. Source: http-and-operations §9, field-lessons L71.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Work that may wait per thread, KiB of [`Cost`]. Chosen: about 0.15 s of it, at the 4 ns a byte that
/// encoding takes (`benches/README.md`).
const QUEUE_PER_THREAD: usize = 32 << 10;

/// The most that one piece of work counts, KiB, so that some can wait whatever its size.
const MOST: usize = QUEUE_PER_THREAD / 16;

/// How long work takes: as long as encoding a prompt of so many bytes with the fast tokenizer library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Bytes.
    pub bytes: usize,
}

impl Cost {
    fn places(self) -> usize {
        self.bytes.div_ceil(1 << 10).clamp(1, MOST)
    }
}

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
    taken: Arc<AtomicUsize>,
}

/// Room in the queue, given back when dropped.
struct Place {
    _places: OwnedSemaphorePermit,
    taken: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
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
        Self {
            threads,
            places: Arc::new(Semaphore::new(count * QUEUE_PER_THREAD)),
            taken: Arc::default(),
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
        cost: Cost,
        work: impl FnOnce() -> T + Send + 'static,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<T, NotDone> {
        let place = self.place(cost).ok_or(NotDone::QueueFull)?;
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

    fn place(&self, cost: Cost) -> Option<Place> {
        let wanted = u32::try_from(cost.places()).ok()?;
        let places = Arc::clone(&self.places);
        let places = places.try_acquire_many_owned(wanted).ok()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Place {
            _places: places,
            taken: Arc::clone(&self.taken),
        })
    }

    /// Pieces of work that are being done or wait.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LITTLE: Cost = Cost { bytes: 1 };

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
            holder.run(LITTLE, work, || ()).await
        });
        (pool, release, held)
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_has_room_again_afterwards() {
        let (pool, release, held) = held();
        tokio::task::yield_now().await;
        // However long, sixteen find room, less the one that is being done; short ones fill what is left.
        let (long, short) = (Cost { bytes: 1 << 30 }, Cost { bytes: 2 << 10 });
        let mut waiting = Vec::new();
        for (cost, count) in [(long, 15), (short, MOST / 2 - 1), (LITTLE, 1)] {
            for _ in 0..count {
                let mut work = Box::pin(pool.run(cost, || (), || ()));
                assert!(futures_util::poll!(&mut work).is_pending());
                waiting.push(work);
            }
            assert_eq!(pool.run(long, || (), || ()).await, Err(NotDone::QueueFull));
        }
        assert_eq!(pool.taken(), 15 + MOST / 2 + 1);
        assert_eq!(
            pool.run(LITTLE, || (), || ()).await,
            Err(NotDone::QueueFull)
        );
        drop(release);
        assert_eq!(held.await.expect("not cancelled"), Ok(()));
        for work in waiting {
            assert_eq!(work.await, Ok(()));
        }
        while pool.taken() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(long, || 7, || ()).await, Ok(7));
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
        let mut left = Box::pin(pool.run(LITTLE, count(&done), count(&gone)));
        assert!(futures_util::poll!(&mut left).is_pending());
        drop(left);
        drop(release);
        assert_eq!(held.await.expect("not cancelled"), Ok(()));
        assert_eq!(pool.run(LITTLE, || 1, || ()).await, Ok(1));
        assert_eq!(
            (done.load(Ordering::Relaxed), gone.load(Ordering::Relaxed)),
            (0, 1)
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_work_only() {
        let pool = WorkPool::new(1);
        let broken: Result<(), _> = pool.run(LITTLE, || panic!("on purpose"), || ()).await;
        assert_eq!(broken, Err(NotDone::Panicked));
        assert_eq!(pool.run(LITTLE, || 1, || ()).await, Ok(1));
    }
}
