//! `--bucket-config`.

use serde_json::{Value, json};
use sgl_edge::config::Translated;

use super::{SOUND, problem, translate_all};
use crate::only_path;

fn with_buckets(name: &str, text: &str, more: &str) -> Result<Translated, Vec<String>> {
    let path = only_path(name);
    std::fs::write(&path, text).expect("a writable folder");
    let path = path.to_str().expect("a plain path").to_owned();
    let line = format!("{SOUND} {more}");
    let mut line: Vec<&str> = line.split_whitespace().collect();
    line.extend(["--bucket-config", &path]);
    translate_all(&line).map_err(|lines| {
        let lines = lines.into_iter();
        lines.map(|line| line.replace(&path, name)).collect()
    })
}

fn buckets_of(translated: &Translated) -> Value {
    let file: Value = serde_yaml::from_str(&translated.yaml).expect("YAML");
    file["models"][0]["buckets"].clone()
}

#[test]
fn a_bucket_file_is_read_in_its_own_spelling_and_groups_get_the_policies_of_the_flags() {
    let text = r#"{
      "ttft_slo": "slo_first",
      "buckets": [
        {"id": "short", "rank": 1, "min_input_tokens": 0, "max_input_tokens": 4096, "max_context_tokens": 8192,
         "ttft_ms": 200, "tokens_per_second": 30.5,
         "plain": {"worker_ids": ["E1"], "policy": "random", "admission": {"max_kv_tokens": 9}}},
        {"id": "pairs", "prefill": {}, "decode": {"policy": {"type": "round_robin"}}},
        {"id": "ours", "limits": {"min": 1}, "groups": {"plain": {"policy": {"type": "power_of_two", "choices": 3}}}}
      ]}"#;
    let more =
        "--policy sticky --sticky-fallback-policy random --filter overloaded --max-in-flight 4";
    let translated =
        with_buckets("good.json", text, more).unwrap_or_else(|lines| panic!("{lines:?}"));
    let cap = json!({"max_inflight_requests": 4});
    let wanted = json!([
        {"id": "short", "rank": 1, "max_context_tokens": 8192, "ttft_ms": 200, "tokens_per_second": 30.5,
         "limits": {"min": 0, "max": 4096},
         "groups": {"plain": {
            "policy": {"type": "random", "admission": {"max_kv_tokens": 9, "max_inflight_requests": 4}},
            "worker_ids": ["E1"]}}},
        {"id": "pairs", "limits": {"min": null, "max": null}, "groups": {"pd": {
            "prefill": {"policy": {"type": "sticky", "fallback": "random", "admission": cap}},
            "decode": {"policy": {"type": "round_robin", "admission": cap}}}}},
        {"id": "ours", "limits": {"min": 1}, "groups": {"plain": {
            "policy": {"type": "power_of_two", "choices": 3, "admission": cap}}}},
    ]);
    assert_eq!(buckets_of(&translated), wanted);
    assert_eq!(translated.config.models[0].slo.ttft.as_str(), "slo_first");
}

#[test]
fn a_tuning_flag_may_be_used_by_one_group_of_the_bucket_file() {
    let text = r#"{"buckets": [{"id": "a", "plain": {"policy": "session_aware"}}, {"id": "b", "plain": {}}]}"#;
    let translated = with_buckets("one.json", text, "--session-idle-secs 9").expect("used");
    assert_eq!(
        translated.config.models[0].affinity.session.idle.as_secs(),
        9
    );
}

#[test]
fn bucket_files_of_one_role_each_are_refused_with_the_reason() {
    let text = r#"{
      "ttft_slo_policy": "slo_first",
      "buckets": [
        {"id": "p", "stage": "prefill", "rank": 0, "worker_ids": ["P1"], "max_extend_tokens": 4096},
        {"id": "d", "stage": "decode", "rank": 0, "worker_ids": ["D1"], "max_sequence_tokens": 8192}
      ]}"#;
    let found = with_buckets("legacy.json", text, "").unwrap_err();
    let lines = |line: &str| found.iter().filter(|found| found.contains(line)).count();
    assert_eq!(
        lines("pairs are never inferred from rank or name"),
        2,
        "{found:#?}"
    );
    assert_eq!(lines("ranges per role were removed"), 2, "{found:#?}");
    assert_eq!(lines("legacy.json:2: ttft_slo_policy: "), 1, "{found:#?}");
    assert_eq!(lines("legacy.json:4: buckets[0].stage: "), 1, "{found:#?}");
}

#[test]
fn what_is_wrong_in_a_bucket_file_names_the_file() {
    let rows = [
        ("", "--bucket-config: wrong.json: is empty"),
        ("{", "wrong.json:1: "),
        (
            "[]",
            "wrong.json:1: .: expected a map of settings, found a list",
        ),
        ("{}", "wrong.json:1: buckets: missing"),
        (
            r#"{"buckets": [{"id": "a", "plain": {}, "prefill": {}}]}"#,
            "wrong.json:1: buckets[0]: needs `plain`, or",
        ),
        (
            r#"{"buckets": [{"id": "a", "decode": {}}]}"#,
            "wrong.json:1: buckets[0]: needs `plain`, or",
        ),
        (
            r#"{"buckets": [{"id": "a", "plain": {"affinity": 1}}]}"#,
            "wrong.json:1: buckets[0].plain.affinity: unknown key",
        ),
        (
            r#"{"buckets": [{"id": "a", "id": "b", "plain": {}}]}"#,
            "wrong.json:1: buckets[0].id: duplicate key",
        ),
        (r#"{"buckets": []}"#, "wrong.json: buckets: no buckets"),
        (
            r#"{"buckets": [{"id": "a", "min_input_tokens": 9, "max_input_tokens": 8, "plain": {}}]}"#,
            "wrong.json: buckets[0].limits: min 9 is above max 8",
        ),
        (
            r#"{"buckets": [{"id": "a", "plain": {"policy": "fused_score"}}]}"#,
            "`fused_score` is not a policy",
        ),
        (
            r#"{"buckets": [{"id": "a", "plain": {"policy": {"admission": {}}, "admission": {}}}]}"#,
            "wrong.json:1: buckets[0].plain.admission: is given twice",
        ),
    ];
    for (text, wanted) in rows {
        let found = with_buckets("wrong.json", text, "").unwrap_err().join("\n");
        assert!(found.contains(wanted), "{text}: {found}");
    }
    let missing = problem("--bucket-config no-such-file.json");
    assert!(
        missing.starts_with("--bucket-config: no-such-file.json: cannot be read: "),
        "{missing}"
    );
}
