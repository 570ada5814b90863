use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

#[derive(Debug, Default)]
struct Wire(AtomicUsize, AtomicBool);

impl Cut for Wire {
    fn cut(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn unread(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

const LIMITS: ExchangeLimits = ExchangeLimits {
    first_byte: Duration::from_secs(3),
    stream_idle: Duration::from_secs(2),
    request: None,
    lifetime: Duration::from_secs(10),
};

fn armed() -> (Arc<Exchange>, Arc<Wire>, Instant) {
    let (now, wire) = (Instant::now(), Arc::new(Wire::default()));
    let exchange = Arc::new(Exchange::new(now, LIMITS));
    assert!(exchange.arm(wire.clone()));
    exchange.dispatched(now);
    (exchange, wire, now)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn each_limit_ends_the_exchange_with_its_own_cause_exactly_when_it_is_reached() {
    let table = Arc::new(LiveTable::default());
    let (exchange, wire, start) = armed();
    let _guard = table.insert(exchange.clone());
    table.sweep(start + secs(3) - Duration::from_millis(1));
    assert_eq!(exchange.cause(), None);
    table.sweep(start + secs(3));
    assert_eq!(exchange.cause(), Some(&EndCause::FirstByte));
    assert_eq!(wire.0.load(Ordering::Relaxed), 1);

    let (exchange, _, start) = armed();
    let _guard = table.insert(exchange.clone());
    exchange.heard(start + secs(1));
    table.sweep(start + secs(2));
    assert_eq!(exchange.cause(), None);
    table.sweep(start + secs(3));
    assert_eq!(exchange.cause(), Some(&EndCause::StreamIdle));
}

#[test]
fn a_steady_stream_is_ended_only_by_its_lifetime() {
    let table = Arc::new(LiveTable::default());
    let (exchange, _, start) = armed();
    let _guard = table.insert(exchange.clone());
    for second in 1..10 {
        exchange.heard(start + secs(second));
        assert_eq!(table.sweep(start + secs(second)), 0);
        assert_eq!(exchange.cause(), None, "second {second}");
    }
    assert_eq!(table.sweep(start + secs(10)), 1);
    assert_eq!(exchange.cause(), Some(&EndCause::Lifetime));
    assert_eq!(table.sweep(start + secs(11)), 0, "counted once");
}

#[test]
fn the_first_cause_wins_and_cuts_once() {
    let (exchange, wire, _) = armed();
    assert!(exchange.end(EndCause::PrefillFailed));
    assert!(!exchange.end(EndCause::Lifetime));
    assert_eq!(exchange.cause(), Some(&EndCause::PrefillFailed));
    assert_eq!(wire.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_disarmed_wire_is_never_cut() {
    let (exchange, wire, _) = armed();
    exchange.disarm();
    assert!(exchange.end(EndCause::PrefillFailed));
    assert_eq!(wire.0.load(Ordering::Relaxed), 0);
}

#[test]
fn arming_after_the_end_cuts_at_once() {
    let now = Instant::now();
    let exchange = Exchange::new(now, LIMITS);
    exchange.end(EndCause::PrefillFailed);
    let wire = Arc::new(Wire::default());
    assert!(!exchange.arm(wire.clone()));
    assert_eq!(wire.0.load(Ordering::Relaxed), 1);
}

#[test]
fn the_table_is_empty_when_its_guards_are_gone() {
    let table = Arc::new(LiveTable::default());
    let guards: Vec<_> = (0..100).map(|_| table.insert(armed().0)).collect();
    assert_eq!(table.len(), 100);
    drop(guards);
    assert!(table.is_empty());
}

#[test]
fn silence_counts_only_from_dispatch_and_the_upload_is_not_part_of_the_request_limit() {
    let table = Arc::new(LiveTable::default());
    let (start, wire) = (Instant::now(), Arc::new(Wire::default()));
    let limits = ExchangeLimits {
        request: Some(secs(4)),
        ..LIMITS
    };
    let exchange = Arc::new(Exchange::new(start, limits));
    let _guard = table.insert(exchange.clone());
    assert!(exchange.arm(wire));
    table.sweep(start + secs(5));
    assert_eq!(exchange.cause(), None, "still uploading");
    exchange.dispatched(start + secs(5));
    exchange.heard(start + secs(7));
    exchange.heard(start + secs(8));
    table.sweep(start + secs(9));
    assert_eq!(exchange.cause(), Some(&EndCause::Request));
}

#[test]
fn an_engine_whose_bytes_wait_to_be_read_is_not_silent() {
    let table = Arc::new(LiveTable::default());
    let (exchange, wire, start) = armed();
    let _guard = table.insert(exchange.clone());
    exchange.heard(start);
    wire.1.store(true, Ordering::Relaxed);
    table.sweep(start + secs(2));
    assert_eq!(exchange.cause(), None);
    wire.1.store(false, Ordering::Relaxed);
    table.sweep(start + secs(4));
    assert_eq!(exchange.cause(), Some(&EndCause::StreamIdle));
}
