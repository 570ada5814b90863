//! `sgl-edge explain` on files alone.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Files of one test, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str, config: &Value, body: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("explain-{name}"));
        fs::create_dir_all(&path).expect("a writable target directory");
        let files = Self(path);
        files.write("edge.yaml", &sgl_edge::config::to_yaml(config));
        files.write("body.json", body);
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a writable file");
    }

    fn explain(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sgl-edge"));
        command.current_dir(&self.0);
        command.args(["explain", "-c", "edge.yaml", "--body", "body.json"]);
        command.args(arguments).output().expect("the program")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.explain(&[arguments, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What stays is below the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Three plain engines that nobody listens for.
fn config(policy: Value) -> Value {
    let engine = |id: &str, port| json!({"id": id, "url": format!("http://127.0.0.1:{port}"), "role": "plain"});
    json!({"models": [{
        "id": "m",
        "engines": {"static": [engine("E1", 1), engine("E2", 2), engine("E3", 3)]},
        "buckets": [{"id": "all", "groups": {"plain": {"policy": policy}}}],
    }]})
}

const BODY: &str = r#"{"model":"m","messages":[],"input_ids":[1,2,3],"max_tokens":5}"#;

#[test]
fn an_idle_fleet_is_assumed_and_cursors_stand_at_zero() {
    let files = Files::new("idle", &config(json!({"type": "round_robin"})), BODY);
    for _ in 0..2 {
        let explained = files.json(&[]);
        assert_eq!(explained["outcome"]["engines"], json!({"plain": "E1"}));
        assert_eq!(explained["request"]["expected_peak_tokens"], 8);
    }
}

#[test]
fn health_breakers_and_counts_of_the_state_file_decide() {
    let policy = json!({"type": "round_robin", "admission": {"max_inflight_requests": 4}});
    let files = Files::new("state", &config(policy), BODY);
    files.write(
        "state.json",
        r#"{"engines": {"E1": {"healthy": false}, "E2": {"inflight": 4}, "E3": {"inflight": 3}}}"#,
    );
    let explained = files.json(&["--state", "state.json"]);
    assert_eq!(explained["outcome"]["engines"], json!({"plain": "E3"}));
    let group = &explained["attempts"][0]["groups"][0];
    assert_eq!(group["engines"][0]["why"], "unhealthy");
    assert_eq!(group["engines"][1]["inflight"], 4);
    assert_eq!(
        group["admission"],
        json!([
            {"engine": "E2", "allowed": false, "limit": "max_inflight_requests"},
            {"engine": "E3", "allowed": true, "limit": null},
        ])
    );
    files.write(
        "state.json",
        r#"{"engines": {"E1": {"breaker": "open"}, "E2": {"inflight": 4}, "E3": {"healthy": false}}}"#,
    );
    let explained = files.json(&["--state", "state.json"]);
    assert_eq!(explained["outcome"]["status"], 503);
    assert_eq!(explained["outcome"]["code"], "policy_selection_failed");
    assert_eq!(explained["attempts"][0]["outcome"], "rejected");
}

#[test]
fn bindings_of_the_state_file_are_found_by_header_also_when_their_engine_has_left() {
    let files = Files::new("bindings", &config(json!({"type": "session_aware"})), BODY);
    files.write(
        "state.json",
        r#"{"bindings": [
            {"kind": "session", "bucket": "all", "stage": "plain", "key": "alice", "engine": "E2"},
            {"kind": "session", "bucket": "all", "stage": "plain", "key": "bob", "engine": "gone"}
        ], "engines": {"E1": {"inflight": 9}, "E2": {"inflight": 9}}}"#,
    );
    let with = |header| files.json(&["--state", "state.json", "--header", header]);
    let explained = with("X-Session-Id: alice");
    assert_eq!(
        explained["attempts"][0]["groups"][0]["reason"],
        "session_primary"
    );
    assert_eq!(explained["outcome"]["engines"], json!({"plain": "E2"}));
    let explained = with("x-session-id: bob");
    assert_eq!(explained["attempts"][0]["groups"][0]["reason"], "assigned");
    let compared = &explained["attempts"][0]["groups"][0]["compared"];
    assert_eq!(compared["binding"], Value::Null);
}

#[test]
fn reports_of_the_state_file_are_compared_at_their_age_with_what_was_sent_since() {
    let files = Files::new("reports", &config(json!({"type": "load_based"})), BODY);
    let state = |age: u64| {
        let reports = json!([{
            "age_ms": age, "running": 4, "waiting": 6, "used_tokens": 81920,
            "max_total_tokens": 262_144, "waiting_uncached_tokens": 2400, "total_tokens": 84320,
            "max_running_requests": 64, "prefill_tokens_per_second": 8000,
        }]);
        let basic = json!([
            {"running": 1, "waiting": 0, "used_tokens": 4096, "max_total_tokens": 262_144},
        ]);
        let engines = json!({
            "E1": {"inflight": 3, "dispatched_since_report": 1, "reports": reports},
            "E2": {"reports": basic},
            "E3": {"breaker": "open"},
        });
        files.write("state.json", &json!({ "engines": engines }).to_string());
        let explained = files.json(&["--state", "state.json"]);
        explained["attempts"][0]["groups"][0].clone()
    };
    let group = state(250);
    let keys = json!({"source": "reports", "keys": {"E1": [11, 3], "E2": [1, 0]}});
    assert_eq!(group["compared"], keys);
    assert_eq!(group["engine"], "E2");
    let report = &group["engines"][0]["report"];
    assert_eq!(report["age_ms"], 250);
    assert_eq!(report["estimated_prefill_queue_ms"], 300.0);
    assert_eq!(group["engines"][1]["report"]["total_tokens"], Value::Null);
    assert_eq!(state(5000)["compared"], keys, "fresh at exactly the limit");
    let held = json!({"source": "inflight", "keys": {"E1": [3, 3], "E2": [0, 0]}});
    assert_eq!(state(5001)["compared"], held);
}

#[test]
fn a_refusal_is_an_explanation_and_wrong_files_are_not() {
    let files = Files::new("wrong", &config(json!({"type": "random"})), "[]");
    let refused = files.json(&[]);
    assert_eq!(refused["outcome"]["status"], 400);
    let text = files.explain(&[]);
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("outcome: 400 bad_request"), "{text}");
    files.write("body.json", BODY);
    let rows: [(&str, &[&str]); 10] = [
        (
            r#"{"engines": {"E1": {"reports": [{"running": 1}]}}}"#,
            &["missing field"],
        ),
        (
            r#"{"engines": {"E1": {"ranks": 1, "reports": [
                {"running": 1, "waiting": 0, "used_tokens": 0, "max_total_tokens": 1, "rank": 1}]}}}"#,
            &["engines.E1.reports[0].rank"],
        ),
        (
            r#"{"engines": {"E1": {"reports": [
                {"running": 1, "waiting": 0, "used_tokens": 0, "max_total_tokens": 1, "total_tokens": 3}]}}}"#,
            &["engines.E1.reports[0]: give all or none"],
        ),
        (
            r#"{"engines": {"E9": {}, "E8": {}}}"#,
            &["engines.E8", "engines.E9"],
        ),
        (r#"{"engine": {}}"#, &["unknown field `engine`"]),
        (
            r#"{"engines": {"E1": {"inflight": -1}}}"#,
            &["invalid value"],
        ),
        (
            r#"{"engines": {"E1": {"inflight": 1, "dispatched_since_report": 2}}}"#,
            &["engines.E1.dispatched_since_report"],
        ),
        (
            r#"{"bindings": [{"kind": "session", "bucket": "x", "stage": "plain", "key": "a", "engine": "E1"}]}"#,
            &["bindings[0].bucket"],
        ),
        (
            r#"{"bindings": [{"kind": "session", "bucket": "all", "stage": "decode", "key": "a", "engine": "E1"}]}"#,
            &["bindings[0].stage"],
        ),
        ("{", &["EOF"]),
    ];
    for (state, problems) in rows {
        files.write("state.json", state);
        let output = files.explain(&["--state", "state.json"]);
        assert_eq!(output.status.code(), Some(2), "{state}");
        let shown = String::from_utf8(output.stderr).expect("text");
        assert_eq!(
            shown.lines().count(),
            problems.len(),
            "one problem a line: {shown}"
        );
        for problem in problems {
            assert!(shown.contains(problem), "{shown}");
        }
        assert!(shown.starts_with("state.json: "), "{shown}");
    }
    let output = files.explain(&["--header", "no colon", "--state", "missing.json"]);
    assert_eq!(output.status.code(), Some(2));
    let shown = String::from_utf8(output.stderr).expect("text");
    assert_eq!(shown.lines().count(), 2, "{shown}");
}

#[test]
fn every_part_is_named_in_the_text_form() {
    let policy = json!({"type": "round_robin", "admission": {"max_inflight_requests": 1}});
    let files = Files::new("text", &config(policy), BODY);
    files.write("state.json", r#"{"engines": {"E1": {"inflight": 1}}}"#);
    let output = files.explain(&["--state", "state.json"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let expected = "model: m
request: 3 input tokens (input_ids), output 5, expected peak 8
buckets, in the order in which they are tried:
  all (capacity unbounded, rank 0): kept
bucket all: selected
  plain by round_robin
    E1: candidate, in flight 1, no report
    E2: candidate, in flight 0, no report
    E3: candidate, in flight 0, no report
    compared: {\"cursor\":0}
    admission of E1: refused by max_inflight_requests
    admission of E2: allowed
    admission of E3: allowed
    picked E2 (round_robin)
outcome: 200: bucket all, plain E2
";
    assert_eq!(text, expected);
}

#[test]
fn the_worked_example_of_the_design_is_answered_exactly() {
    let engine = |id: &str, port| json!({"id": id, "url": format!("http://127.0.0.1:{port}"), "role": "plain"});
    let cached = json!({"type": "cache_aware", "worker_queue_limit": 4});
    let config = json!({"models": [{
        "id": "qwen2.5-7b-instruct",
        "engines": {"static": [engine("E1", 1), engine("E2", 2), engine("E3", 3)]},
        "buckets": [
            {"id": "short-context", "rank": 10, "limits": {"max": 4096},
             "groups": {"plain": {"policy": {"type": "session_aware"}}}},
            {"id": "long-context", "rank": 20, "limits": {"max": 131_072},
             "groups": {"plain": {"policy": cached}}},
        ],
    }]});
    let ids: Vec<u32> = (0..8192).collect();
    let body = json!({
        "model": "qwen2.5-7b-instruct", "messages": [], "input_ids": ids, "max_tokens": 1024,
    });
    let files = Files::new("example", &config, &body.to_string());
    files.write(
        "state.json",
        include_str!("../../fixtures/explain/state.json"),
    );
    let expected: Value =
        serde_json::from_str(include_str!("../../fixtures/explain/expected.json")).expect("JSON");
    assert_eq!(files.json(&["--state", "state.json"]), expected);
}

#[test]
fn a_failed_lookup_of_the_state_file_is_a_miss_or_ends_routing() {
    let files = Files::new("lookup", &config(json!({"type": "cache_aware"})), BODY);
    let rows = [
        (r#"{"prefix": {}}"#, "no_signal", 200),
        (r#"{"prefix": {"block_size": 1}}"#, "answered", 200),
        (
            r#"{"prefix": {"block_size": 1, "error": "timeout"}}"#,
            "unavailable",
            200,
        ),
        (
            r#"{"prefix": {"block_size": 1, "error": "too_large"}}"#,
            "unavailable",
            200,
        ),
        (
            r#"{"prefix": {"block_size": 1, "error": "rejected"}}"#,
            "rejected",
            500,
        ),
    ];
    for (state, index, status) in rows {
        files.write("state.json", state);
        let explained = files.json(&["--state", "state.json"]);
        let group = &explained["attempts"][0]["groups"][0];
        assert_eq!(group["compared"]["index"], index, "{state}: {explained}");
        assert_eq!(explained["outcome"]["status"], status, "{state}");
    }
}
