//! The policies as a file builds them: scopes, races, fallbacks, engines that come and go.

use std::sync::{Arc, Barrier};

use sgl_edge::ids::Stage;
use sgl_edge::policies::{
    AdmissionLimits, PickError, PickRequest, Policy, PolicyKind, PolicyParams, PolicyServices,
    Reason, StickyFallback, StickyParams, build,
};
use sgl_edge::state::AffinityKind;
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::workers::Worker;

use super::rejected;
use crate::support::engines::{MODEL, engine, hold, plain_engines};
use crate::support::picks::now;

/// A policy as a file builds it.
fn built(
    params: &PolicyParams,
    limits: AdmissionLimits,
    services: &PolicyServices,
) -> Arc<dyn Policy> {
    build(params, limits, &MODEL.into(), services)
}

fn sessions() -> (Arc<dyn Policy>, PolicyServices) {
    let services = PolicyServices::new(Arc::default());
    let policy = built(
        &PolicyParams::SessionAware,
        AdmissionLimits::default(),
        &services,
    );
    (policy, services)
}

fn ask_at(
    policy: &dyn Policy,
    engines: &[Arc<Worker>],
    (model, stage, bucket): (&str, Stage, &str),
    key: &str,
) -> Result<(String, Reason), PickError> {
    let (model, bucket) = (model.into(), bucket.into());
    let request = PickRequest {
        model: &model,
        stage,
        bucket: &bucket,
        input_tokens: 1,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: Some(key),
        routing_key: Some(key),
        prefix: &PrefixMemo::none(),
        explain: None,
    };
    let pick = now(policy.pick(engines, &request))?;
    Ok((pick.engine.id().to_string(), pick.reason))
}

fn ask(policy: &dyn Policy, engines: &[Arc<Worker>], key: &str) -> (String, Reason) {
    ask_at(policy, engines, (MODEL, Stage::Plain, "b"), key).expect("a pick")
}

#[test]
fn the_worked_session_of_the_reference() {
    let engines = plain_engines(&["a", "b"]);
    let _b = hold(&engines[1], 9);
    let services = PolicyServices::new(Arc::default());
    let capped = AdmissionLimits {
        max_inflight_requests: Some(100),
        ..AdmissionLimits::default()
    };
    let policy = built(&PolicyParams::SessionAware, capped, &services);
    let policy = policy.as_ref();
    assert_eq!(ask(policy, &engines, "k"), ("a".into(), Reason::Assigned));
    let _a = hold(&engines[0], 99);
    assert_eq!(
        ask(policy, &engines, "k"),
        ("a".into(), Reason::SessionPrimary)
    );
    let one_more = hold(&engines[0], 1);
    let refused = ask_at(policy, &engines, (MODEL, Stage::Plain, "b"), "k");
    assert_eq!(refused.unwrap_err(), rejected("a"));
    drop(one_more);
    assert_eq!(
        ask(policy, &engines, "k"),
        ("a".into(), Reason::SessionPrimary)
    );
    assert_eq!(
        ask(policy, &engines[1..], "k"),
        ("b".into(), Reason::Assigned)
    );
    assert_eq!(
        ask(policy, &engines, "k"),
        ("b".into(), Reason::SessionPrimary)
    );
}

#[test]
fn two_hundred_first_requests_with_one_key_end_on_one_engine() {
    let engines = plain_engines(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    let sticky = StickyParams {
        fallback: StickyFallback::Random,
    };
    for params in [PolicyParams::SessionAware, PolicyParams::Sticky(sticky)] {
        let services = PolicyServices::new(Arc::default());
        let policy = built(&params, AdmissionLimits::default(), &services);
        let barrier = Barrier::new(200);
        let picks: Vec<(String, Reason)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..200)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        ask(policy.as_ref(), &engines, "k")
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let fresh = [Reason::Assigned, Reason::StickyAssigned];
        let assigned = picks.iter().filter(|(_, reason)| fresh.contains(reason));
        assert_eq!(assigned.count(), 1, "{params:?}");
        let (engine, _) = ask(policy.as_ref(), &engines, "k");
        assert!(picks.iter().all(|(other, _)| *other == engine), "{picks:?}");
    }
}

#[test]
fn models_buckets_and_stages_never_share_a_binding() {
    let engines = plain_engines(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    let (policy, services) = sessions();
    let mut scopes = Vec::new();
    for model in ["x", "y", "z", "w"] {
        for stage in Stage::ALL {
            for bucket in ["short", "long"] {
                scopes.push((model, stage, bucket));
            }
        }
    }
    let first: Vec<_> = scopes
        .iter()
        .map(|scope| ask_at(policy.as_ref(), &engines, *scope, "k").unwrap())
        .collect();
    assert!(first.iter().all(|(_, reason)| *reason == Reason::Assigned));
    // One key, four models in rotation: stable bindings, no remaps. Source: field-lessons L28.
    for _ in 0..10 {
        for (scope, (engine, _)) in scopes.iter().zip(&first) {
            let again = ask_at(policy.as_ref(), &engines, *scope, "k").unwrap();
            assert_eq!(again, (engine.clone(), Reason::SessionPrimary), "{scope:?}");
        }
    }
    let store = services.affinity.of(AffinityKind::Session, &MODEL.into());
    assert_eq!(store.len(), scopes.len());
}

#[test]
fn groups_of_one_bucket_share_the_store_of_the_process_and_kinds_do_not() {
    let engines = plain_engines(&["a", "b", "c", "d"]);
    let services = PolicyServices::new(Arc::default());
    let open = AdmissionLimits::default();
    let before = built(&PolicyParams::SessionAware, open, &services);
    let (engine, _) = ask(before.as_ref(), &engines, "k");
    // As a reload builds it: another object, the same bindings.
    let after = built(&PolicyParams::SessionAware, open, &services);
    assert_eq!(
        ask(after.as_ref(), &engines, "k"),
        (engine, Reason::SessionPrimary)
    );
    let sticky = built(
        &PolicyParams::Sticky(StickyParams::default()),
        open,
        &services,
    );
    assert_eq!(
        ask(sticky.as_ref(), &engines, "k").1,
        Reason::StickyAssigned
    );
}

#[test]
fn an_engine_added_never_moves_a_key_and_one_that_returns_has_its_keys_again() {
    let engines = plain_engines(&["a", "b", "c"]);
    let services = PolicyServices::new(Arc::default());
    let params = PolicyParams::Sticky(StickyParams::default());
    let policy = built(&params, AdmissionLimits::default(), &services);
    let policy = policy.as_ref();
    let keys: Vec<String> = (0..20).map(|key| key.to_string()).collect();
    let placed: Vec<_> = keys
        .iter()
        .map(|key| ask(policy, &engines[..2], key))
        .collect();
    for (key, (engine, _)) in keys.iter().zip(&placed) {
        assert_eq!(
            ask(policy, &engines, key),
            (engine.clone(), Reason::StickyHit)
        );
    }
    // Another handle with the same id is the same engine to a binding.
    let again = [engine("a", Stage::Plain), engine("b", Stage::Plain)];
    for (key, (engine, _)) in keys.iter().zip(&placed) {
        assert_eq!(
            ask(policy, &again, key),
            (engine.clone(), Reason::StickyHit)
        );
    }
}

#[test]
fn every_fallback_places_keys_its_own_way_and_round_robin_is_the_default() {
    assert_eq!(StickyParams::default().fallback, StickyFallback::RoundRobin);
    let engines = plain_engines(&["a", "b", "c"]);
    let _held = (hold(&engines[0], 5), hold(&engines[1], 5));
    let rows = [
        (StickyFallback::RoundRobin, PolicyKind::RoundRobin),
        (StickyFallback::Random, PolicyKind::Random),
        (StickyFallback::PowerOfTwo, PolicyKind::PowerOfTwo),
        (StickyFallback::LeastLoad, PolicyKind::LeastLoad),
    ];
    for (fallback, kind) in rows {
        assert_eq!(StickyFallback::of(kind), Some(fallback));
        assert_eq!(fallback.params().kind(), kind);
        let services = PolicyServices::new(Arc::default());
        let params = PolicyParams::Sticky(StickyParams { fallback });
        let policy = built(&params, AdmissionLimits::default(), &services);
        let keys: Vec<String> = (0..60).map(|key| key.to_string()).collect();
        let picks: Vec<_> = keys
            .iter()
            .map(|key| ask(policy.as_ref(), &engines, key).0)
            .collect();
        let count = |id: &str| picks.iter().filter(|pick| *pick == id).count();
        match fallback {
            StickyFallback::RoundRobin => assert_eq!(picks[..4], ["a", "b", "c", "a"]),
            // The idle engine wins every pair that it is drawn into, two of three.
            StickyFallback::PowerOfTwo => assert!(count("c") > 25, "{picks:?}"),
            StickyFallback::LeastLoad => assert_eq!(count("c"), 60),
            StickyFallback::Random => assert!(["a", "b", "c"].iter().all(|id| count(id) > 3)),
        }
    }
    for kind in [
        PolicyKind::SessionAware,
        PolicyKind::Sticky,
        PolicyKind::CacheAware,
    ] {
        assert_eq!(StickyFallback::of(kind), None, "{kind}");
    }
}

#[test]
fn the_fallback_has_no_caps_and_the_owner_checks_its_pick() {
    let engines = plain_engines(&["a", "b"]);
    let _held = (hold(&engines[0], 2), hold(&engines[1], 3));
    let services = PolicyServices::new(Arc::default());
    let limits = AdmissionLimits {
        max_inflight_requests: Some(2),
        ..AdmissionLimits::default()
    };
    // A capped rotation would say NoAdmissibleEngine; the owner names the one pick it refused.
    for (params, refused) in [
        (PolicyParams::SessionAware, "a"),
        (PolicyParams::Sticky(StickyParams::default()), "a"),
    ] {
        let policy = built(&params, limits, &services);
        let error = ask_at(policy.as_ref(), &engines, (MODEL, Stage::Plain, "b"), "k");
        assert_eq!(error.unwrap_err(), rejected(refused), "{params:?}");
    }
}
