use super::*;

fn breaker() -> Arc<Breaker> {
    Arc::new(Breaker::new(Some(BreakerParams::default())))
}

fn dispatch(breaker: &Arc<Breaker>, outcome: Outcome, now: Instant) {
    breaker.claim(now).expect("allowed").settle(outcome, now);
}

fn opened(now: Instant) -> Arc<Breaker> {
    let breaker = breaker();
    for _ in 0..3 {
        dispatch(&breaker, Outcome::Failure, now);
    }
    assert_eq!(breaker.state(now).0, BreakerState::Open);
    breaker
}

const COOL_DOWN: Duration = Duration::from_secs(30);

#[test]
fn three_consecutive_failures_open_it_and_a_success_clears_the_streak() {
    let (breaker, now) = (breaker(), Instant::now());
    dispatch(&breaker, Outcome::Failure, now);
    dispatch(&breaker, Outcome::Failure, now);
    dispatch(&breaker, Outcome::Success, now);
    dispatch(&breaker, Outcome::Failure, now);
    dispatch(&breaker, Outcome::Failure, now);
    assert!(breaker.would_allow(now));
    dispatch(&breaker, Outcome::Failure, now);
    assert!(!breaker.would_allow(now));
    assert!(breaker.claim(now).is_none());
    assert_eq!(breaker.state(now), (BreakerState::Open, COOL_DOWN));
}

#[test]
fn busy_answers_neither_count_nor_reset_the_streak_while_closed() {
    let (breaker, now) = (breaker(), Instant::now());
    for _ in 0..200 {
        dispatch(&breaker, Outcome::Neutral, now);
    }
    dispatch(&breaker, Outcome::Failure, now);
    dispatch(&breaker, Outcome::Failure, now);
    dispatch(&breaker, Outcome::Neutral, now);
    dispatch(&breaker, Outcome::Failure, now);
    assert_eq!(breaker.state(now).0, BreakerState::Open);
}

#[test]
fn looking_claims_nothing_and_exactly_one_probe_passes_after_the_cool_down() {
    let now = Instant::now();
    let breaker = opened(now);
    let later = now + COOL_DOWN;
    assert!(!breaker.would_allow(later - Duration::from_millis(1)));
    assert!(breaker.would_allow(later) && breaker.would_allow(later));
    let probe = breaker.claim(later).expect("the probe");
    assert!(!breaker.would_allow(later));
    assert!(breaker.claim(later).is_none());
    drop(probe);
}

#[test]
fn each_probe_outcome_leads_to_its_state() {
    let rows = [
        (Outcome::Success, BreakerState::Closed),
        (Outcome::Neutral, BreakerState::Closed),
        (Outcome::Failure, BreakerState::Open),
    ];
    for (outcome, expected) in rows {
        let now = Instant::now();
        let breaker = opened(now);
        let later = now + COOL_DOWN;
        dispatch(&breaker, outcome, later);
        assert_eq!(breaker.state(later).0, expected, "{outcome:?}");
    }
}

#[test]
fn a_failed_probe_starts_a_new_cool_down() {
    let now = Instant::now();
    let breaker = opened(now);
    dispatch(&breaker, Outcome::Failure, now + COOL_DOWN);
    assert!(!breaker.would_allow(now + COOL_DOWN + Duration::from_secs(29)));
    assert!(breaker.would_allow(now + COOL_DOWN * 2));
}

#[test]
fn failures_while_open_do_not_extend_the_cool_down() {
    let (breaker, now) = (breaker(), Instant::now());
    let mut late = breaker.claim(now).expect("closed");
    for _ in 0..3 {
        dispatch(&breaker, Outcome::Failure, now);
    }
    late.settle(Outcome::Failure, now + Duration::from_secs(20));
    assert!(breaker.would_allow(now + COOL_DOWN));
}

#[test]
fn a_cancelled_probe_frees_only_its_own_slot() {
    let now = Instant::now();
    let breaker = opened(now);
    let later = now + COOL_DOWN;
    let first = breaker.claim(later).expect("first probe");
    drop(first);
    let mut second = breaker.claim(later).expect("the slot is free again");
    assert!(breaker.claim(later).is_none());
    second.settle(Outcome::Success, later);
    drop(second);
    assert_eq!(breaker.state(later).0, BreakerState::Closed);
}

#[test]
fn an_outcome_from_before_the_opening_does_not_decide_the_probe() {
    let (breaker, now) = (breaker(), Instant::now());
    let mut old = breaker.claim(now).expect("closed");
    for _ in 0..3 {
        dispatch(&breaker, Outcome::Failure, now);
    }
    let later = now + COOL_DOWN;
    let probe = breaker.claim(later).expect("probe");
    old.settle(Outcome::Failure, later);
    assert_eq!(breaker.state(later).0, BreakerState::HalfOpen);
    drop(probe);
}

#[test]
fn a_switched_off_breaker_never_opens() {
    let breaker = Arc::new(Breaker::new(None));
    let now = Instant::now();
    for _ in 0..50 {
        dispatch(&breaker, Outcome::Failure, now);
    }
    assert!(breaker.would_allow(now));
}

#[test]
fn statuses_map_to_outcomes() {
    let rows = [
        (200, Outcome::Success),
        (400, Outcome::Success),
        (404, Outcome::Success),
        (429, Outcome::Neutral),
        (500, Outcome::Failure),
        (502, Outcome::Failure),
        (503, Outcome::Neutral),
        (504, Outcome::Failure),
    ];
    for (status, expected) in rows {
        assert_eq!(Outcome::of_status(status), expected, "{status}");
    }
}
