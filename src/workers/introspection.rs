//! What an engine said of itself, and when it is to be asked.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
enum Next {
    Now,
    At(Instant),
    Never,
}

/// One engine's answer. Shared by every handle of the engine at one address, also across a reload.
#[derive(Debug)]
pub struct Introspection {
    http2: AtomicBool,
    next: Mutex<Next>,
}

impl Default for Introspection {
    fn default() -> Self {
        Self {
            http2: AtomicBool::new(false),
            next: Mutex::new(Next::Now),
        }
    }
}

impl Introspection {
    /// Whether it announced HTTP/2 with prior knowledge on its cleartext port. False until it
    /// says so.
    #[must_use]
    pub fn http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Whether it should be asked at `now`.
    #[must_use]
    pub fn due(&self, now: Instant) -> bool {
        match *self.next.lock() {
            Next::Now => true,
            Next::At(at) => now >= at,
            Next::Never => false,
        }
    }

    /// Stores its answer; it is not asked again.
    pub fn resolved(&self, http2: bool) {
        self.http2.store(http2, Ordering::Relaxed);
        *self.next.lock() = Next::Never;
    }

    /// It gave no answer; ask again at `at`.
    pub fn ask_again(&self, at: Instant) {
        *self.next.lock() = Next::At(at);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_engine_is_asked_at_once_later_when_silent_and_never_again_once_it_answered() {
        let (engine, now) = (Introspection::default(), Instant::now());
        assert!(engine.due(now) && !engine.http2());
        engine.ask_again(now + Duration::from_secs(30));
        assert!(!engine.due(now + Duration::from_secs(29)));
        assert!(engine.due(now + Duration::from_secs(30)));
        engine.resolved(true);
        assert!(!engine.due(now + Duration::from_secs(3600)) && engine.http2());
    }
}
