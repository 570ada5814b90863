//! What an explanation records, and that it changes nothing: `explain.md` §2.

use sgl_edge::buckets::{Bucket, BucketGroups, BucketRequest, EngineGroup, TokenLimits};
use sgl_edge::ids::ModelId;
use sgl_edge::policies::explain::{Compared, Explanation, GroupTrace, LoadSource, NotCandidate};
use sgl_edge::policies::{
    AdmissionLimits, Limit, PickError, PolicyParams, PolicyServices, PowerOfTwoParams, build,
};
use sgl_edge::workers::WorkerRegistry;

use crate::support::engines::{MODEL, hold, open_breaker, plain_engines, registry};
use crate::support::picks::{ask_bucket, facts, ids, now};

fn bucket(params: &PolicyParams, limits: AdmissionLimits, members: Option<&[&str]>) -> Bucket {
    let services = PolicyServices::new(std::sync::Arc::default());
    let mut group = EngineGroup::new(build(params, limits, &MODEL.into(), &services));
    if let Some(members) = members {
        group = group.with_worker_ids(members.iter().map(|id| (*id).into()));
    }
    let groups = BucketGroups::Plain(group);
    Bucket::new("b".into(), 0, TokenLimits::default(), groups)
}

fn explained(bucket: &Bucket, workers: &WorkerRegistry) -> (Vec<GroupTrace>, Option<String>) {
    let model = ModelId::from(MODEL);
    let explanation = Explanation::default();
    let request = BucketRequest {
        explain: Some(&explanation),
        ..facts(&model)
    };
    let pick = now(bucket.pick_engines(workers, &request));
    let picked = pick.ok().map(|pick| ids(&pick).remove(0));
    (explanation.into_groups(), picked)
}

fn at_most(inflight: u64) -> AdmissionLimits {
    AdmissionLimits {
        max_inflight_requests: Some(inflight),
        ..AdmissionLimits::default()
    }
}

#[test]
fn explaining_round_robin_moves_no_cursor() {
    let workers = registry(&plain_engines(&["a", "b"]));
    for limits in [AdmissionLimits::default(), at_most(5)] {
        let bucket = bucket(&PolicyParams::RoundRobin, limits, None);
        for (cursor, expected) in ["a", "b", "a"].into_iter().enumerate() {
            for _ in 0..2 {
                let (groups, picked) = explained(&bucket, &workers);
                assert_eq!(picked.as_deref(), Some(expected));
                assert_eq!(groups[0].compared, Some(Compared::RoundRobin { cursor }));
            }
            assert_eq!(ids(&ask_bucket(&bucket, &workers).unwrap()), [expected]);
        }
    }
}

#[test]
fn every_check_is_recorded_in_order_also_where_no_cap_is_set() {
    let engines = plain_engines(&["a", "b", "c"]);
    let _held = hold(&engines[1], 2);
    let workers = registry(&engines);
    for (limits, refused) in [
        (AdmissionLimits::default(), None),
        (at_most(2), Some(Limit::InflightRequests)),
    ] {
        for params in [PolicyParams::RoundRobin, PolicyParams::Random] {
            let (groups, _) = explained(&bucket(&params, limits, None), &workers);
            let checks: Vec<_> = groups[0]
                .admission
                .iter()
                .map(|check| (check.engine.as_str(), check.limit))
                .collect();
            assert_eq!(checks, [("a", None), ("b", refused), ("c", None)]);
        }
    }
}

#[test]
fn power_of_two_shows_the_sample_in_the_order_drawn_and_one_check() {
    let engines = plain_engines(&["a", "b"]);
    let _held = hold(&engines[0], 1);
    let workers = registry(&engines);
    let params = PolicyParams::PowerOfTwo(PowerOfTwoParams::default());
    let bucket = bucket(&params, AdmissionLimits::default(), None);
    let (groups, picked) = explained(&bucket, &workers);
    assert_eq!(picked.as_deref(), Some("b"));
    let Some(Compared::PowerOfTwo { sampled, source }) = &groups[0].compared else {
        panic!("{groups:?}");
    };
    let mut sorted: Vec<_> = sampled.iter().map(|id| id.as_str()).collect();
    sorted.sort_unstable();
    assert_eq!((sorted, *source), (vec!["a", "b"], LoadSource::Inflight));
    assert_eq!(groups[0].admission.len(), 1);
    assert_eq!(groups[0].admission[0].engine.as_str(), "b");
}

#[test]
fn every_engine_of_the_role_is_listed_with_the_reason_against_it() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    engines[1].set_healthy(false);
    open_breaker(&engines[2]);
    let bucket = bucket(
        &PolicyParams::RoundRobin,
        AdmissionLimits::default(),
        Some(&["a", "b", "c"]),
    );
    let (groups, picked) = explained(&bucket, &registry(&engines));
    assert_eq!(picked.as_deref(), Some("a"));
    let listed: Vec<_> = groups[0]
        .engines
        .iter()
        .map(|(id, why)| (id.as_str(), *why))
        .collect();
    let expected = [
        ("a", None),
        ("b", Some(NotCandidate::Unhealthy)),
        ("c", Some(NotCandidate::BreakerOpen)),
        ("d", Some(NotCandidate::NotAMember)),
    ];
    assert_eq!(listed, expected);
}

#[test]
fn a_group_without_candidates_is_recorded_and_its_policy_not_called() {
    let engines = plain_engines(&["a"]);
    engines[0].set_healthy(false);
    let bucket = bucket(&PolicyParams::Random, AdmissionLimits::default(), None);
    let (groups, picked) = explained(&bucket, &registry(&engines));
    assert_eq!(picked, None);
    assert_eq!(groups[0].compared, None);
    assert_eq!(groups[0].outcome, Err(PickError::NoCandidates));
}

#[test]
fn what_was_compared_has_the_documented_shape() {
    let keys = [("E1".into(), [11, 3]), ("E2".into(), [1, 0])];
    let rows = [
        (Compared::RoundRobin { cursor: 0 }, r#"{"cursor":0}"#),
        (Compared::Random {}, "{}"),
        (
            Compared::PowerOfTwo {
                sampled: vec!["E3".into(), "E1".into()],
                source: LoadSource::Reports,
            },
            r#"{"sampled":["E3","E1"],"source":"reports"}"#,
        ),
        (
            Compared::LoadBased {
                source: LoadSource::Inflight,
                keys: keys.into(),
            },
            r#"{"source":"inflight","keys":{"E1":[11,3],"E2":[1,0]}}"#,
        ),
        (
            Compared::Binding {
                binding: Some("E2".into()),
                fallback: None,
            },
            r#"{"binding":"E2","fallback":null}"#,
        ),
    ];
    for (compared, json) in rows {
        assert_eq!(serde_json::to_string(&compared).unwrap(), json);
    }
}
