//! Which buckets, in which order: design §3, policy-semantics §3 and §4.

use std::sync::Arc;

use sgl_edge::buckets::{
    Bucket, BucketGroups, BucketResolver, EngineGroup, ResolverError, SloTargets, TokenLimits,
};
use sgl_edge::ids::BucketId;
use sgl_edge::policies::PickError;

use crate::support::fakes::{Answer, FakePolicy, Journal};
use crate::support::routing::{Router, chat};

/// Lower and upper input bound, context capacity.
type Limits = (Option<u64>, Option<u64>, Option<u64>);

const NONE: Limits = (None, None, None);

pub(crate) fn bucket(id: &str, rank: u32, limits: Limits) -> Bucket {
    watched(id, rank, limits, &Journal::default())
}

fn watched(id: &str, rank: u32, limits: Limits, journal: &Journal) -> Bucket {
    let (min_input_tokens, max_input_tokens, max_context_tokens) = limits;
    let limits = TokenLimits {
        min_input_tokens,
        max_input_tokens,
        max_context_tokens,
    };
    let group = EngineGroup::new(FakePolicy::new(Answer::First, journal));
    Bucket::new(id.into(), rank, limits, BucketGroups::Plain(group))
}

pub(crate) fn resolved(resolver: &BucketResolver, input: u64, peak: Option<u64>) -> Vec<&str> {
    let buckets = resolver
        .resolve(input, peak, SloTargets::default())
        .expect("peak not below the input");
    buckets.map(|bucket| bucket.id().as_str()).collect()
}

fn order(buckets: Vec<Bucket>) -> Vec<String> {
    let resolver = BucketResolver::try_new(buckets).expect("good buckets");
    let ids = resolved(&resolver, 1, None).into_iter();
    ids.map(str::to_owned).collect()
}

/// The buckets of the worked table, given in an order that is not the answer.
pub(crate) fn worked() -> BucketResolver {
    BucketResolver::try_new(vec![
        bucket("any", 5, NONE),
        bucket("long", 20, (Some(0), Some(131_072), Some(131_072))),
        bucket("mid", 0, (Some(1024), None, Some(16_384))),
        bucket("short", 10, (Some(0), Some(4096), Some(8192))),
    ])
    .expect("good buckets")
}

#[test]
fn every_row_of_the_worked_table() {
    let rows: [(u64, Option<u64>, &[&str]); 7] = [
        (4000, Some(8000), &["short", "mid", "long", "any"]),
        (4096, Some(8192), &["short", "mid", "long", "any"]),
        (4097, Some(8192), &["mid", "long", "any"]),
        (4000, Some(16_000), &["mid", "long", "any"]),
        (4000, None, &["short", "mid", "long", "any"]),
        (1023, None, &["short", "long", "any"]),
        (200_000, None, &["any"]),
    ];
    let resolver = worked();
    for (input, peak, expected) in rows {
        assert_eq!(
            resolved(&resolver, input, peak),
            expected,
            "{input} {peak:?}"
        );
    }
}

#[test]
fn a_peak_below_the_input_is_an_invalid_signal_even_if_no_bucket_could_fit() {
    let tiny = BucketResolver::try_new(vec![bucket("tiny", 0, (None, Some(1), None))]);
    for resolver in [worked(), tiny.expect("good")] {
        let error = resolver
            .resolve(4000, Some(3999), SloTargets::default())
            .map(Iterator::count);
        assert!(
            matches!(error, Err(PickError::InvalidSignal(_))),
            "{error:?}"
        );
    }
}

#[test]
fn a_peak_equal_to_the_input_is_valid() {
    assert_eq!(
        resolved(&worked(), 4000, Some(4000)),
        ["short", "mid", "long", "any"]
    );
}

#[test]
fn no_compatible_bucket_is_an_empty_list_and_not_an_error() {
    let resolver = BucketResolver::try_new(vec![bucket("s", 0, (None, Some(10), None))]);
    let resolver = resolver.expect("good");
    assert!(resolved(&resolver, 11, None).is_empty());
    let empty = BucketResolver::try_new(Vec::new()).expect("no bucket is no contradiction");
    assert!(resolved(&empty, 1, None).is_empty());
}

#[test]
fn each_bound_is_inclusive_and_one_token_beyond_it_is_outside() {
    let input = bucket("input", 0, (Some(10), Some(20), None));
    let context = bucket("context", 1, (None, None, Some(20)));
    let resolver = BucketResolver::try_new(vec![input, context]).expect("good");
    let rows: [(u64, Option<u64>, &[&str]); 8] = [
        (9, None, &["context"]),
        (10, None, &["input", "context"]),
        (20, None, &["input", "context"]),
        (21, None, &[]),
        (10, Some(20), &["input", "context"]),
        (10, Some(21), &["input"]),
        (9, Some(21), &[]),
        (20, Some(u64::MAX), &["input"]),
    ];
    for (input, peak, expected) in rows {
        assert_eq!(
            resolved(&resolver, input, peak),
            expected,
            "{input} {peak:?}"
        );
    }
}

#[test]
fn the_input_range_looks_at_the_input_and_never_at_the_peak() {
    let resolver = BucketResolver::try_new(vec![
        bucket("low", 0, (None, Some(100), None)),
        bucket("high", 0, (Some(101), None, None)),
    ]);
    assert_eq!(resolved(&resolver.expect("good"), 100, Some(5000)), ["low"]);
}

#[test]
fn equal_capacities_are_ordered_by_rank_and_then_by_id() {
    let twenty = (None, Some(20), None);
    let buckets = vec![
        bucket("huge", 0, (None, Some(21), None)),
        bucket("later", 2, twenty),
        bucket("z", 1, twenty),
        bucket("a", 1, twenty),
    ];
    assert_eq!(order(buckets), ["a", "z", "later", "huge"]);
}

#[test]
fn ids_are_compared_bytewise() {
    let ids = ["w2", "w10", "a", "B", "é"];
    let buckets = ids.map(|id| bucket(id, 0, NONE));
    assert_eq!(order(buckets.into()), ["B", "a", "w10", "w2", "é"]);
}

#[test]
fn the_smaller_of_the_two_upper_bounds_is_the_capacity() {
    let buckets = vec![
        bucket("input 30", 0, (None, Some(30), Some(90))),
        bucket("context 20", 0, (None, Some(90), Some(20))),
        bucket("context 10", 0, (None, None, Some(10))),
        bucket("input 40", 0, (None, Some(40), None)),
    ];
    assert_eq!(
        order(buckets),
        ["context 10", "context 20", "input 30", "input 40"]
    );
}

#[test]
fn the_lower_bound_does_not_order_buckets() {
    let buckets = vec![
        bucket("from 1", 1, (Some(1), Some(20), None)),
        bucket("from 0", 0, (Some(0), Some(20), None)),
        bucket("from nothing", 2, (None, Some(20), None)),
    ];
    assert_eq!(order(buckets), ["from 0", "from 1", "from nothing"]);
}

#[test]
fn unbounded_sorts_last_and_ties_with_a_bound_of_exactly_the_largest_number() {
    let rows = [
        (0, 1, ["big", "open", "max"]),
        (1, 0, ["big", "max", "open"]),
    ];
    for (open, max, expected) in rows {
        let buckets = vec![
            bucket("open", open, NONE),
            bucket("max", max, (None, Some(u64::MAX), None)),
            bucket("big", 9, (None, Some(u64::MAX - 1), None)),
        ];
        assert_eq!(order(buckets), expected);
    }
    let context = bucket("b", 0, (None, None, Some(u64::MAX)));
    assert_eq!(order(vec![context, bucket("a", 0, NONE)]), ["a", "b"]);
}

#[test]
fn the_implicit_pair_tries_plain_before_pd() {
    let router = Router::of(&[("e", "plain")], "");
    let prepared = router.prepare(&chat(1, None)).expect("good");
    assert_eq!(
        resolved(&prepared.model.resolver, 1, None),
        ["plain", "pd"],
        "by id alone, pd would come first"
    );
    let selection = router.select(&chat(1, None)).expect("one engine");
    assert_eq!(selection.buckets_tried, 1);
}

#[test]
fn resolving_asks_no_policy_and_keeps_buckets_whose_groups_are_empty() {
    let journal = Journal::default();
    let nobody = EngineGroup::new(FakePolicy::new(Answer::First, &journal)).with_worker_ids([]);
    let buckets = vec![
        Bucket::new(
            "nobody".into(),
            0,
            TokenLimits::default(),
            BucketGroups::Plain(nobody),
        ),
        watched("somebody", 1, NONE, &journal),
    ];
    let resolver = BucketResolver::try_new(buckets).expect("good");
    assert_eq!(resolved(&resolver, 1, None), ["nobody", "somebody"]);
    assert!(journal.lock().is_empty());
}

#[test]
fn contradicting_buckets_are_refused_when_the_resolver_is_built() {
    let unreachable = |id: &str| ResolverError::Unreachable(BucketId::from(id));
    let rows = [
        (bucket("", 0, NONE), ResolverError::EmptyId),
        (bucket(" \t ", 0, NONE), ResolverError::EmptyId),
        (
            bucket("ok", 1, NONE),
            ResolverError::DuplicateId("ok".into()),
        ),
        (bucket("i", 0, (Some(2), Some(1), None)), unreachable("i")),
        (bucket("c", 0, (Some(2), None, Some(1))), unreachable("c")),
        (
            bucket("m", 0, (Some(2), Some(9), Some(1))),
            unreachable("m"),
        ),
    ];
    for (bad, expected) in rows {
        let built = BucketResolver::try_new(vec![bucket("ok", 0, NONE), bad]);
        assert_eq!(built.map(|_| ()), Err(expected));
    }
}

#[test]
fn a_bucket_for_exactly_one_length_is_accepted() {
    let one = bucket("one", 0, (Some(7), Some(7), Some(7)));
    let resolver = BucketResolver::try_new(vec![one]).expect("reachable");
    assert_eq!(resolved(&resolver, 7, Some(7)), ["one"]);
    assert!(resolved(&resolver, 8, None).is_empty());
}

#[test]
fn equal_ranks_and_equal_limits_are_allowed() {
    let policy = || FakePolicy::new(Answer::First, &Journal::default());
    let groups = || BucketGroups::Plain(EngineGroup::new(Arc::clone(&policy()) as _));
    let twin = |id: &str| Bucket::new(id.into(), 3, TokenLimits::default(), groups());
    assert_eq!(order(vec![twin("b"), twin("a")]), ["a", "b"]);
}
