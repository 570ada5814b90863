//! What every topic needs: the program as a child, a fleet of mocks, clients, polling.

pub(crate) mod body;
pub(crate) mod child;
pub(crate) mod client;
pub(crate) mod fleet;
pub(crate) mod gauges;
pub(crate) mod h2c;
pub(crate) mod leaks;
pub(crate) mod raw_engine;

use std::time::Duration;

use tokio::task::JoinHandle;

/// Longest wait for anything that should happen at once. Generous: other builds share the machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Longest wait for the largest bodies in an unoptimised build.
pub(crate) const LARGE: Duration = Duration::from_secs(60);

/// Starts work beside a test; it ends with the test's runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "tests are no Pingora services; the runtime of the test bounds the task"
)]
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(work)
}

/// The result of `work`, which must come within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// Waits until something has become true.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !is_true().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "never happened: {what}"
        );
        pause(20).await;
    }
}

/// A real sleep: what is waited for happens in other processes.
pub(crate) async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
