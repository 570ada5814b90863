//! Worked cases of design §7 and policy-semantics §6, from the file to the selection.

use rand::Rng;
use sgl_edge::server::ApiError;

use crate::support::engines::{hold, open_breaker};
use crate::support::loads::{admission_load, prefill_load};
use crate::support::picks::ids;
use crate::support::routing::{Router, chat};
use crate::support::seed::rng;

const SPLIT: [(&str, &str); 8] = [
    ("P1", "prefill"),
    ("P2", "prefill"),
    ("P3", "prefill"),
    ("P4", "prefill"),
    ("D1", "decode"),
    ("D2", "decode"),
    ("D3", "decode"),
    ("D4", "decode"),
];

/// The example of design §7, with a policy that is built.
fn designed() -> Router {
    let group = |ids: &str| {
        format!(
            "{{worker_ids: [{ids}], policy: {{type: power_of_two, admission: \
             {{max_running_requests: 64, max_kv_tokens: 1048576}}}}}}"
        )
    };
    let bucket = |id: &str, rank: u32, max: u32, context: u32, p: &str, d: &str| {
        format!(
            "      - id: {id}\n        rank: {rank}\n        limits: {{min: 0, max: {max}}}\n        \
             max_context_tokens: {context}\n        groups: {{pd: {{prefill: {}, decode: {}}}}}\n",
            group(p),
            group(d)
        )
    };
    let short = bucket("short-context", 10, 4096, 8192, "P1, P2", "D1, D2");
    let long = bucket("long-context", 20, 131_072, 131_072, "P3, P4", "D3, D4");
    Router::of(&SPLIT, &format!("    buckets:\n{short}{long}"))
}

/// The bucket of a selection; both engines must be its members.
fn bucket_of(router: &Router, body: &str) -> String {
    let selection = router.select(body).expect("a selection");
    let members = match selection.bucket.as_str() {
        "short-context" => [["P1", "P2"], ["D1", "D2"]],
        _ => [["P3", "P4"], ["D3", "D4"]],
    };
    for (id, members) in ids(&selection.pick).iter().zip(members) {
        assert!(members.contains(&id.as_str()), "{id} of {members:?}");
    }
    selection.bucket.to_string()
}

#[test]
fn four_thousand_tokens_with_a_peak_of_sixteen_thousand_take_both_engines_of_the_long_bucket() {
    let router = designed();
    let rows = [
        (4096, Some(16_384 - 4096), "long-context"),
        (4096, Some(8192 - 4096), "short-context"),
        (4096, Some(8193 - 4096), "long-context"),
        (4096, None, "short-context"),
        (4097, None, "long-context"),
    ];
    for (input, budget, expected) in rows {
        for _ in 0..20 {
            let bucket = bucket_of(&router, &chat(input, budget));
            assert_eq!(bucket, expected, "{input} {budget:?}");
        }
    }
}

#[test]
fn a_request_that_fits_no_bucket_is_the_clients_error_and_nothing_is_tried() {
    let router = designed();
    let error = router
        .select(&chat(1, Some(131_072)))
        .expect_err("too long");
    assert_eq!((error.status(), error.code()), (400, "bad_request"));
    assert!(error.message().contains("no bucket supports"));
    assert!(
        router.select(&chat(1, Some(131_071))).is_ok(),
        "one less fits"
    );
}

#[test]
fn a_full_bucket_advances_to_the_next_and_both_engines_are_picked_again_there() {
    let router = designed();
    for full in [["D1", "D2"], ["P1", "P2"]] {
        for id in full {
            let load = admission_load(64, 0, 0, 0);
            router.loads.publish(&id.into(), load);
        }
        assert_eq!(bucket_of(&router, &chat(10, None)), "long-context");
        for id in full {
            router.loads.forget(&id.into());
        }
        assert_eq!(bucket_of(&router, &chat(10, None)), "short-context");
    }
}

#[test]
fn a_rejection_wins_over_a_later_empty_bucket() {
    // Bucket A rejects by max_kv_tokens, bucket B has no decode engine.
    let router = designed();
    for id in ["P1", "P2"] {
        let load = admission_load(0, 0, 1_048_576, 0);
        router.loads.publish(&id.into(), load);
    }
    for id in ["D3", "D4"] {
        router.engine(id).set_healthy(false);
    }
    let error = router.select(&chat(10, None)).expect_err("all were tried");
    assert_eq!(error, ApiError::PolicySelectionFailed);
    let reason = r#"{bucket="short-context",limit="max_kv_tokens",model="m",stage="prefill"}"#;
    assert_eq!(
        router.series(&format!("admission_rejections_total{reason}")),
        1
    );
}

#[test]
fn the_last_missing_stage_is_named_when_nobody_rejected() {
    // Bucket A is empty at prefill; B has a prefill engine but no decode engine.
    let router = designed();
    for id in ["P1", "P2", "D3", "D4"] {
        router.engine(id).set_healthy(false);
    }
    let error = router.select(&chat(10, None)).expect_err("all were tried");
    assert_eq!(error.code(), "no_decode_workers_available");
    for id in ["P3", "P4"] {
        open_breaker(&router.engine(id));
    }
    let error = router.select(&chat(10, None)).expect_err("all were tried");
    assert_eq!(error.code(), "no_prefill_workers_available");
}

#[test]
fn plain_engines_that_are_all_ill_are_no_healthy_workers() {
    let router = Router::of(
        &[("a", "plain"), ("b", "plain")],
        "    buckets: [{id: only, groups: {plain: {}}}]\n",
    );
    assert!(router.select(&chat(1, None)).is_ok());
    for id in ["a", "b"] {
        router.engine(id).set_healthy(false);
    }
    let error = router.select(&chat(1, None)).expect_err("nobody");
    assert_eq!((error.status(), error.code()), (503, "no_healthy_workers"));
}

#[test]
fn a_rejected_winner_advances_although_another_engine_of_the_bucket_is_free() {
    let router = Router::of(
        &[("a", "plain"), ("b", "plain"), ("c", "plain")],
        "    buckets:
      - id: first
        limits: {max: 100}
        groups: {plain: {worker_ids: [a, b], policy: {type: power_of_two, admission: {max_running_requests: 5}}}}
      - {id: second, groups: {plain: {worker_ids: [c]}}}
",
    );
    // a wins by waiting tokens and is over its cap; b is far below it.
    let mut full = prefill_load(0, 0, 9);
    full.used_tokens = 1;
    router.loads.publish(&"a".into(), full);
    router.loads.publish(&"b".into(), prefill_load(50, 0, 0));
    for _ in 0..10 {
        let selection = router.select(&chat(1, None)).expect("the next bucket");
        assert_eq!(ids(&selection.pick), ["c"]);
        assert_eq!(selection.buckets_tried, 2);
    }
}

#[test]
fn every_request_starts_at_its_first_bucket_again() {
    let router = designed();
    let engines = ["P1", "P2"].map(|id| router.engine(id));
    for _ in 0..3 {
        engines.iter().for_each(|engine| engine.set_healthy(false));
        assert_eq!(bucket_of(&router, &chat(10, None)), "long-context");
        engines.iter().for_each(|engine| engine.set_healthy(true));
        assert_eq!(bucket_of(&router, &chat(10, None)), "short-context");
    }
}

#[test]
fn an_explicitly_empty_group_is_passed_over() {
    let router = Router::of(
        &[("a", "plain")],
        "    buckets:
      - {id: nobody, limits: {max: 10}, groups: {plain: {worker_ids: []}}}
      - {id: everybody, groups: {plain: {}}}
",
    );
    let selection = router.select(&chat(1, None)).expect("the second");
    assert_eq!(selection.bucket.as_str(), "everybody");
}

#[test]
fn models_do_not_share_engines() {
    let router = Router::new(
        "models:
  - {id: x, engines: {static: [{id: ex, url: 'http://127.0.0.1:1', role: plain}]}}
  - {id: y, aliases: [why], engines: {static: [{id: ey, url: 'http://127.0.0.1:1', role: plain}]}}
",
    );
    let rows = [("x", "ex"), ("y", "ey"), ("why", "ey"), ("y:lora", "ey")];
    for (model, expected) in rows {
        let body = format!(r#"{{"model":"{model}"}}"#);
        let selection = router.select(&body).expect("served");
        assert_eq!(ids(&selection.pick), [expected], "{model}");
    }
    router.engine("ex").set_healthy(false);
    assert!(router.select(r#"{"model":"x"}"#).is_err());
}

#[test]
fn whatever_the_state_a_pair_comes_from_one_bucket_and_every_engine_may_serve() {
    let router = designed();
    let mut rng = rng();
    let mut selected = 0;
    for _ in 0..1000 {
        let mut held = Vec::new();
        for (id, _) in SPLIT {
            let engine = router.engine(id);
            engine.set_healthy(rng.random_bool(0.7));
            held.extend(hold(&engine, rng.random_range(0..3)));
            match rng.random_range(0..3) {
                0 => router.loads.forget(engine.id()),
                1 => router
                    .loads
                    .publish(engine.id(), admission_load(64, 0, 0, 0)),
                _ => router.loads.publish(engine.id(), prefill_load(1, 1, 1)),
            }
        }
        match router.select(&chat(10, None)) {
            Ok(selection) => {
                bucket_members(&router, &selection);
                selected += 1;
            }
            Err(error) => assert_eq!(error.status(), 503),
        }
    }
    assert!((100..1000).contains(&selected), "{selected} of 1000");
}

fn bucket_members(router: &Router, selection: &sgl_edge::server::select::Selection) {
    let short = selection.bucket.as_str() == "short-context";
    let picked = ids(&selection.pick);
    assert_eq!(picked.len(), 2);
    for (id, role) in picked.iter().zip(["P", "D"]) {
        let numbers = if short { ["1", "2"] } else { ["3", "4"] };
        assert!(id.starts_with(role) && numbers.contains(&&id[1..]), "{id}");
        let engine = router.engine(id);
        assert!(engine.healthy(), "{id}");
        let snapshot = router.loads.capture([engine.id()]);
        let load = snapshot.get(engine.id());
        assert!(load.is_none_or(|load| load.running_requests < 64), "{id}");
    }
}
