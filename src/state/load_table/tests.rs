use super::*;
use crate::state::engine_load::NativeReport;

const MILLI: Duration = Duration::from_millis(1);

fn report(running: u64) -> Report {
    Report {
        running_requests: running,
        waiting_requests: 0,
        used_tokens: 0,
        max_total_tokens: 1000,
        native: Some(NativeReport {
            waiting_uncached_tokens: 0,
            total_tokens: 0,
            max_running_requests: 1,
            prefilled_tokens: 0,
            prefill_busy_us: 0,
        }),
    }
}

fn running(table: &EngineLoadTable, engine: &WorkerId) -> Option<u64> {
    let snapshot = table.capture([engine]);
    snapshot.get(engine).map(|load| load.running_requests)
}

#[tokio::test(start_paused = true)]
async fn a_report_is_fresh_at_exactly_five_seconds_and_absent_after() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.report(&engine, 0, report(1), Instant::now());
    tokio::time::advance(FRESHNESS).await;
    assert_eq!(running(&table, &engine), Some(1));
    tokio::time::advance(MILLI).await;
    assert_eq!(running(&table, &engine), None);
    let (last, heard) = table.last(&engine);
    assert_eq!(last.unwrap().running_requests, 1);
    assert_eq!(heard.unwrap().elapsed(), FRESHNESS + MILLI);
}

#[tokio::test(start_paused = true)]
async fn the_present_is_the_arrival_that_is_given_not_the_moment_of_storing() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    tokio::time::advance(FRESHNESS * 2).await;
    table.report(&engine, 0, report(1), Instant::now() - FRESHNESS - MILLI);
    assert_eq!(running(&table, &engine), None);
    table.report(&engine, 0, report(2), Instant::now() - FRESHNESS);
    assert_eq!(running(&table, &engine), Some(2));
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_absent_until_every_advertised_rank_has_reported() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.advertise(&engine, 2);
    assert!(table.report(&engine, 1, report(3), Instant::now()));
    assert_eq!(running(&table, &engine), None);
    assert!(table.report(&engine, 0, report(4), Instant::now()));
    assert_eq!(running(&table, &engine), Some(7));
    assert!(!table.report(&engine, 2, report(100), Instant::now()));
    assert_eq!(running(&table, &engine), Some(7));
}

#[tokio::test(start_paused = true)]
async fn one_silent_rank_makes_the_engine_absent_at_its_own_limit() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.advertise(&engine, 2);
    table.report(&engine, 0, report(1), Instant::now());
    for _ in 0..5 {
        table.report(&engine, 1, report(1), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(running(&table, &engine), Some(2));
    table.report(&engine, 1, report(1), Instant::now());
    tokio::time::advance(MILLI).await;
    assert_eq!(running(&table, &engine), None);
    table.report(&engine, 0, report(5), Instant::now());
    assert_eq!(running(&table, &engine), Some(6));
}

#[tokio::test(start_paused = true)]
async fn without_advertised_ranks_every_rank_that_was_heard_must_be_fresh() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.report(&engine, 0, report(1), Instant::now());
    assert_eq!(running(&table, &engine), Some(1));
    tokio::time::advance(FRESHNESS).await;
    table.report(&engine, 7, report(1), Instant::now());
    assert_eq!(running(&table, &engine), Some(2));
    tokio::time::advance(MILLI).await;
    assert_eq!(running(&table, &engine), None);
}

#[tokio::test(start_paused = true)]
async fn a_changed_number_of_ranks_forgets_those_that_are_gone_and_waits_for_new_ones() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.advertise(&engine, 2);
    for rank in 0..2 {
        table.report(&engine, rank, report(1), Instant::now());
    }
    table.advertise(&engine, 1);
    assert_eq!(running(&table, &engine), Some(1));
    table.advertise(&engine, 2);
    assert_eq!(running(&table, &engine), None);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_engine_has_no_report_and_its_successor_no_ranks() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    table.advertise(&engine, 2);
    table.report(&engine, 1, report(1), Instant::now());
    table.forget(&engine);
    assert_eq!(table.last(&engine), (None, None));
    table.report(&engine, 0, report(2), Instant::now());
    assert_eq!(running(&table, &engine), Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_estimate_needs_two_consecutive_reports_and_a_stored_rate_needs_none() {
    let (table, engine) = (EngineLoadTable::default(), WorkerId::from("e1"));
    let with = |tokens, busy_us, waiting| Report {
        native: report(0).native.map(|native| NativeReport {
            waiting_uncached_tokens: waiting,
            prefilled_tokens: tokens,
            prefill_busy_us: busy_us,
            ..native
        }),
        ..report(0)
    };
    let estimate = || {
        let snapshot = table.capture([&engine]);
        let native = snapshot.get(&engine).unwrap().native.clone().unwrap();
        native.estimated_prefill_queue_ms
    };
    let now = Instant::now();
    table.report(&engine, 0, with(5000, 1_000_000, 9), now);
    assert_eq!(estimate(), None);
    table.report(&engine, 0, with(17_000, 2_500_000, 2400), now);
    assert_eq!(estimate(), Some(300.0));
    table.report(&engine, 0, with(17_000, 2_500_000, 2400), now);
    assert_eq!(estimate(), None, "a heartbeat");
    let told = RankLoad {
        prefill_rate: Some(8000.0),
        ..RankLoad::after(None, with(0, 0, 2400), now)
    };
    table.store(&engine, 0, told);
    assert_eq!(estimate(), Some(300.0));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_keeps_what_it_saw_in_any_order_and_knows_only_what_was_asked() {
    let table = EngineLoadTable::default();
    let ids: Vec<WorkerId> = (0..20).map(|n| format!("e{n:02}").into()).collect();
    for (n, id) in ids.iter().enumerate() {
        table.report(id, 0, report(n as u64), Instant::now());
    }
    for order in [ids.iter().collect::<Vec<_>>(), ids.iter().rev().collect()] {
        let snapshot = table.capture(order.iter().copied().filter(|id| *id != &ids[3]));
        for (n, id) in ids.iter().enumerate() {
            let seen = snapshot.get(id).map(|load| load.running_requests);
            assert_eq!(seen, (n != 3).then_some(n as u64));
        }
        assert_eq!(
            snapshot.at(0).unwrap().running_requests,
            order[0].as_str()[1..].parse::<u64>().unwrap()
        );
        assert_eq!(snapshot.at(19), None);
    }
    let before = table.capture(&ids);
    table.report(&ids[0], 0, report(99), Instant::now());
    assert_eq!(before.get(&ids[0]).unwrap().running_requests, 0);
    assert_eq!(running(&table, &ids[0]), Some(99));
}
