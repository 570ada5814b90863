//! Latency targets: policy-semantics §19, bucket-first form.

use rand::Rng;
use sgl_edge::buckets::{
    Bucket, BucketGroups, BucketResolver, EngineGroup, Misfit, SloEstimates, SloOrder,
    SloPreference, SloTargets, TokenLimits,
};
use sgl_edge::policies::PickError;
use sgl_edge::server::ApiError;

use crate::resolver::worked;
use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::routing::{Router, chat, headers};
use crate::support::seed::rng;

use SloPreference::{BestEffort, Disabled, SloFirst};

fn bucket(id: &str, rank: u32, max: Option<u64>, ttft: Option<f64>, tps: Option<f64>) -> Bucket {
    let limits = TokenLimits {
        max_input_tokens: max,
        ..TokenLimits::default()
    };
    let group = EngineGroup::new(FakePolicy::new(Answer::First, &Journal::default()));
    let estimates = SloEstimates {
        ttft_ms: ttft,
        tokens_per_second: tps,
    };
    Bucket::new(id.into(), rank, limits, BucketGroups::Plain(group)).with_estimates(estimates)
}

/// The worked buckets of the reference.
fn abcd(ttft: SloPreference, tps: SloPreference) -> BucketResolver {
    let buckets = vec![
        bucket("D", 0, None, None, None),
        bucket("C", 0, Some(32768), Some(400.0), Some(80.0)),
        bucket("B", 1, Some(4096), Some(80.0), Some(60.0)),
        bucket("A", 0, Some(4096), Some(200.0), Some(30.0)),
    ];
    let resolver = BucketResolver::try_new(buckets).expect("no contradictions");
    resolver.with_slo(SloOrder { ttft, tps })
}

fn targets(ttft_ms: Option<f64>, tokens_per_second: Option<f64>) -> SloTargets {
    SloTargets {
        ttft_ms,
        tokens_per_second,
    }
}

fn order(resolver: &BucketResolver, input: u64, targets: SloTargets) -> String {
    let buckets = resolver
        .resolve(input, None, targets)
        .expect("valid signals");
    buckets.map(|bucket| bucket.id().as_str()).collect()
}

#[test]
fn the_worked_orders_of_the_reference() {
    let both = targets(Some(100.0), Some(50.0));
    let rows = [
        (Disabled, Disabled, both, "ABCD"),
        (SloFirst, SloFirst, both, "BCAD"),
        (BestEffort, BestEffort, both, "ADCB"),
        (SloFirst, Disabled, targets(Some(250.0), None), "ABCD"),
    ];
    for (ttft, tps, targets, expected) in rows {
        assert_eq!(
            order(&abcd(ttft, tps), 1, targets),
            expected,
            "{ttft:?} {tps:?}"
        );
    }
}

#[test]
fn a_target_is_met_at_exactly_the_estimate() {
    let ttft = |ms| order(&abcd(SloFirst, Disabled), 1, targets(Some(ms), None));
    assert_eq!(ttft(80.0), "BACD");
    assert_eq!(ttft(79.0), "ABCD", "nobody");
    let tps = |speed| order(&abcd(Disabled, SloFirst), 1, targets(None, Some(speed)));
    assert_eq!(tps(60.0), "BCAD");
    assert_eq!(tps(60.5), "CABD");
}

#[test]
fn an_absent_target_changes_nothing_in_any_mode() {
    for mode in [Disabled, SloFirst, BestEffort] {
        assert_eq!(
            order(&abcd(mode, mode), 1, targets(None, None)),
            "ABCD",
            "{mode:?}"
        );
    }
}

#[test]
fn both_targets_add_up_and_may_pull_in_opposite_directions() {
    // ttft 100 slo_first: A, C, D miss. tps 50 best_effort: B, C meet. C has both penalties.
    let resolver = abcd(SloFirst, BestEffort);
    assert_eq!(
        order(&resolver, 1, targets(Some(100.0), Some(50.0))),
        "ABDC"
    );
}

#[test]
fn length_decides_first_and_nothing_that_fits_is_dropped() {
    let resolver = abcd(SloFirst, SloFirst);
    assert_eq!(
        order(&resolver, 5000, targets(Some(100.0), Some(50.0))),
        "CD"
    );
    assert_eq!(order(&resolver, 40_000, targets(Some(1.0), None)), "D");
}

#[test]
fn an_unusable_estimate_meets_no_target() {
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let buckets = vec![
            bucket("a", 0, None, Some(wrong), Some(wrong)),
            bucket("b", 1, None, Some(1.0), Some(1.0)),
        ];
        let resolver = BucketResolver::try_new(buckets).expect("good");
        let resolver = resolver.with_slo(SloOrder {
            ttft: SloFirst,
            tps: SloFirst,
        });
        assert_eq!(
            order(&resolver, 1, targets(Some(2.0), Some(0.5))),
            "ba",
            "{wrong}"
        );
    }
}

#[test]
fn an_enabled_target_that_is_no_number_above_zero_is_an_invalid_signal() {
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        for given in [targets(Some(wrong), None), targets(None, Some(wrong))] {
            let error = abcd(SloFirst, BestEffort)
                .resolve(1, None, given)
                .map(Iterator::count);
            assert!(
                matches!(error, Err(PickError::InvalidSignal(_))),
                "{given:?}"
            );
            assert_eq!(
                order(&abcd(Disabled, Disabled), 1, given),
                "ABCD",
                "{given:?}"
            );
        }
    }
}

/// Id, rank, `limits.max` and the two estimates of a bucket.
type Row = (String, u32, Option<u64>, Option<f64>, Option<f64>);

#[test]
fn random_orders_agree_with_a_sort_by_penalty_capacity_rank_and_id() {
    let mut rng = rng();
    let modes = [Disabled, SloFirst, BestEffort];
    for _ in 0..3_000 {
        let mut number = |most: u32| f64::from(rng.random_range(1..=most));
        let rows: Vec<Row> = (0..5)
            .map(|index| {
                let max = [Some(10), Some(20), None][number(3) as usize - 1];
                let maybe = |value: f64| (value > 1.0).then_some(value);
                (
                    index.to_string(),
                    number(2) as u32,
                    max,
                    maybe(number(4)),
                    maybe(number(4)),
                )
            })
            .collect();
        let given = targets(Some(number(4)), Some(number(4)));
        let (ttft, tps) = (modes[number(3) as usize - 1], modes[number(3) as usize - 1]);
        let built = rows
            .iter()
            .map(|(id, rank, max, a, b)| bucket(id, *rank, *max, *a, *b));
        let resolver = BucketResolver::try_new(built.collect()).expect("good");
        let resolver = resolver.with_slo(SloOrder { ttft, tps });
        let penalty = |mode, met: bool| match mode {
            Disabled => 0,
            SloFirst => u8::from(!met),
            BestEffort => u8::from(met),
        };
        let mut sorted = rows.clone();
        sorted.sort_by_key(|(id, rank, max, a, b)| {
            let by_time = penalty(ttft, a.is_some_and(|a| Some(a) <= given.ttft_ms));
            let by_speed = penalty(tps, b.is_some_and(|b| Some(b) >= given.tokens_per_second));
            (
                by_time + by_speed,
                max.unwrap_or(u64::MAX),
                *rank,
                id.clone(),
            )
        });
        let wanted: String = sorted.into_iter().map(|row| row.0).collect();
        assert_eq!(
            order(&resolver, 5, given),
            wanted,
            "{rows:?} {given:?} {ttft:?} {tps:?}"
        );
    }
}

#[test]
fn every_bucket_that_is_left_out_says_which_bound_it_breaks() {
    let texts = |input, peak| -> Vec<String> {
        let resolver = worked();
        let misfits = resolver.misfits(input, peak);
        let rows = misfits.map(|(bucket, misfit)| match misfit {
            Some(misfit) => format!("{}: {misfit}", bucket.id()),
            None => format!("{}: kept", bucket.id()),
        });
        rows.collect()
    };
    assert_eq!(
        texts(4097, Some(20_000)),
        [
            "short: input 4097 is above limits.max 4096",
            "mid: expected peak 20000 is above max_context_tokens 16384",
            "long: kept",
            "any: kept",
        ]
    );
    assert_eq!(
        texts(1023, None),
        [
            "short: kept",
            "mid: input 1023 is below limits.min 1024",
            "long: kept",
            "any: kept"
        ]
    );
    let misfit = Misfit::InputAboveContext {
        input: 9,
        capacity: 8,
    };
    assert_eq!(misfit.to_string(), "input 9 is above max_context_tokens 8");
}

#[test]
fn what_is_left_out_is_exactly_what_resolving_does_not_return() {
    let mut rng = rng();
    let resolver = worked();
    for _ in 0..2_000 {
        let input = rng.random_range(1..200_000);
        let peak = rng
            .random::<bool>()
            .then(|| input + rng.random_range(0..200_000));
        let found = resolver
            .resolve(input, peak, SloTargets::default())
            .expect("valid");
        let found: Vec<_> = found.map(|bucket| bucket.id().clone()).collect();
        let kept = resolver
            .misfits(input, peak)
            .filter(|(_, misfit)| misfit.is_none());
        let kept: Vec<_> = kept.map(|(bucket, _)| bucket.id().clone()).collect();
        assert_eq!(found, kept, "{input} {peak:?}");
    }
}

// === through a file and headers ===

fn router(slo: &str) -> Router {
    Router::of(
        &[("E1", "plain"), ("E2", "plain")],
        &format!(
            "    slo: {slo}\n    buckets:\n      - {{id: slow, ttft_ms: 400, tokens_per_second: 30, groups: {{plain: {{worker_ids: [E1]}}}}}}\n      - {{id: swift, rank: 1, ttft_ms: 80, tokens_per_second: 60.5, groups: {{plain: {{worker_ids: [E2], policy: {{admission: {{max_inflight_requests: 1}}}}}}}}}}\n"
        ),
    )
}

#[test]
fn a_target_in_a_header_chooses_among_buckets() {
    let router = router("{ttft: slo_first, tps: best_effort}");
    let rows: [(&[(&'static str, &str)], &str); 4] = [
        (&[], "slow"),
        (&[("x-sgl-ttft-slo-ms", "100")], "swift"),
        (&[("x-sgl-ttft-slo-ms", "400")], "slow"),
        (&[("x-sgl-tps-slo", "30")], "slow"),
    ];
    for (given, expected) in rows {
        let selection = router.select_with(&chat(1, None), &headers(given));
        assert_eq!(
            selection.expect("served").bucket.as_str(),
            expected,
            "{given:?}"
        );
    }
}

#[test]
fn a_preferred_bucket_that_refuses_still_gives_way_to_the_next() {
    let router = router("{ttft: slo_first}");
    let _held = crate::support::engines::hold(&router.engine("E2"), 1);
    let given = headers(&[("x-sgl-ttft-slo-ms", "100")]);
    let selection = router.select_with(&chat(1, None), &given).expect("served");
    assert_eq!(
        (selection.bucket.as_str(), selection.buckets_tried),
        ("slow", 2)
    );
}

#[test]
fn a_malformed_enabled_target_is_a_bad_request_and_a_disabled_one_is_not_read() {
    let given = headers(&[("x-sgl-ttft-slo-ms", "soon"), ("x-sgl-tps-slo", "fast")]);
    for (slo, refused) in [
        ("{ttft: slo_first}", true),
        ("{tps: best_effort}", true),
        ("{}", false),
    ] {
        let result = router(slo).prepare_with(&chat(1, None), &given);
        match refused {
            true => assert!(matches!(result, Err(ApiError::BadRequest(_))), "{slo}"),
            false => assert!(result.is_ok(), "{slo}"),
        }
    }
}
