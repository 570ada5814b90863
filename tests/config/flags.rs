//! sgl-router's flags: policy-semantics §20 and §21. Each row is a command line.

use std::path::Path;

use clap::{Args, FromArgMatches};
use serde_json::{Value, json};
use sgl_edge::config::{Flags, Translated, load, parse};
use sgl_edge::policies::PolicyKind;

use crate::only_path;

/// A command line that is right, without what a row adds.
const SOUND: &str = "--model-id m --worker-urls http://10.0.0.1:30000";

fn parsed(line: &[&str]) -> Result<Flags, String> {
    let command = Flags::augment_args(clap::Command::new("t").no_binary_name(true));
    let matches = command.try_get_matches_from(line);
    let matches = matches.map_err(|error| error.to_string())?;
    Flags::from_arg_matches(&matches).map_err(|error| error.to_string())
}

fn translate(line: &str) -> Result<Translated, Vec<String>> {
    translate_all(&line.split_whitespace().collect::<Vec<_>>())
}

fn translate_all(line: &[&str]) -> Result<Translated, Vec<String>> {
    let flags = parsed(line).map_err(|error| vec![error])?;
    flags.translate().map_err(|errors| {
        let lines = errors.iter().map(ToString::to_string);
        let lines = lines.map(|line| line.trim_start_matches("command line: ").to_owned());
        lines.collect()
    })
}

/// The file of [`SOUND`] and `more`.
fn file(more: &str) -> Value {
    let line = format!("{SOUND} {more}");
    let translated = translate(&line).unwrap_or_else(|problems| panic!("{line}: {problems:?}"));
    serde_yaml::from_str(&translated.yaml).expect("YAML")
}

fn problems(line: &str) -> Vec<String> {
    match translate(line) {
        Ok(translated) => panic!("{line}: accepted:\n{}", translated.yaml),
        Err(problems) => problems,
    }
}

/// The only problem of [`SOUND`] and `more`.
fn problem(more: &str) -> String {
    let found = problems(&format!("{SOUND} {more}"));
    assert_eq!(found.len(), 1, "{more}: {found:?}");
    found.into_iter().next().expect("one")
}

/// Every policy that the program has and flags can tune.
fn built(kind: PolicyKind) -> bool {
    translate(&format!("{SOUND} --policy {kind}")).is_ok()
}

#[test]
fn the_smallest_command_line_is_two_catch_all_buckets_in_rotation() {
    let wanted = json!({
        "listen": ["127.0.0.1:30000"],
        "models": [{
            "id": "m",
            "engines": {"static": [{"url": "http://10.0.0.1:30000", "role": "plain"}]},
            "buckets": [
                {"id": "plain", "rank": 0, "groups": {"plain": {"policy": {"type": "round_robin"}}}},
                {"id": "pd", "rank": 1, "groups": {"pd": {
                    "prefill": {"policy": {"type": "round_robin"}},
                    "decode": {"policy": {"type": "power_of_two"}},
                }}},
            ],
        }],
    });
    assert_eq!(file(""), wanted);
}

#[test]
fn every_flag_writes_its_setting() {
    let model = "/models/0";
    let rows: [(&str, &str, Value); 24] = [
        ("--host 0.0.0.0", "/listen/0", json!("0.0.0.0:30000")),
        ("--host ::1 --port 80", "/listen/0", json!("[::1]:80")),
        (
            "--host localhost --port 1",
            "/listen/0",
            json!("127.0.0.1:1"),
        ),
        (
            "--admin-listen 127.0.0.1:7",
            "/admin/listen",
            json!("127.0.0.1:7"),
        ),
        ("--shutdown-drain-secs 0", "/shutdown/drain", json!("0s")),
        (
            "--shutdown-drain-secs 1800",
            "/shutdown/drain",
            json!("1800s"),
        ),
        ("--request-timeout-secs 7", "/timeouts/request", json!("7s")),
        (
            "--request-timeout-secs 7",
            "/timeouts/first_byte",
            Value::Null,
        ),
        (
            "--request-timeout-secs 400",
            "/timeouts/first_byte",
            json!("400s"),
        ),
        (
            "--stream-idle-timeout-secs 9",
            "/timeouts/stream_idle",
            json!("9s"),
        ),
        (
            "--stale-request-timeout-secs 900",
            "/timeouts/lifetime",
            json!("900s"),
        ),
        ("--log-level debug", "/log/level", json!("debug")),
        ("--log-format json", "/log/format", json!("json")),
        (
            "--tokenizer-path conf/tokenizers/demo",
            "/models/0/tokenizer",
            json!("conf/tokenizers/demo"),
        ),
        (
            "--cb-threshold 5",
            "/circuit_breaker",
            json!({"failures": 5}),
        ),
        (
            "--cb-threshold 5 --cb-cool-down-secs 9",
            "/circuit_breaker",
            json!({"failures": 5, "cool_down": "9s"}),
        ),
        (
            "--override-sampling-params {\"temperature\":1,\"top_p\":{\"min\":0.5,\"max\":1}}",
            "/models/0/sampling/override",
            json!({"temperature": 1, "top_p": {"min": 0.5, "max": 1}}),
        ),
        (
            "--override-sampling-params {\"n\":1} --sampling-param-conflict allow",
            "/models/0/sampling",
            json!({"override": {"n": 1}, "conflict": "allow"}),
        ),
        (
            "--policy session_aware --session-id-header X-User --session-idle-secs 90 --session-eviction-interval-secs 5 --affinity-mode strict --session-affinity-mode bucket",
            "/models/0/affinity",
            json!({"session_id_header": "x-user", "session_idle": "90s", "session_eviction_interval": "5s"}),
        ),
        (
            "--policy sticky --routing-key-header x-tenant --sticky-idle-secs 90 --sticky-eviction-interval-secs 5",
            "/models/0/affinity",
            json!({"routing_key_header": "x-tenant", "sticky_idle": "90s", "sticky_eviction_interval": "5s"}),
        ),
        (
            "--policy sticky --sticky-fallback-policy random",
            "/models/0/buckets/0/groups/plain/policy",
            json!({"type": "sticky", "fallback": "random"}),
        ),
        (
            "--policy random --filter overloaded --max-in-flight 8",
            "/models/0/buckets/1/groups/pd",
            json!({
                "prefill": {"policy": {"type": "random", "admission": {"max_inflight_requests": 8}}},
                "decode": {"policy": {"type": "power_of_two", "admission": {"max_inflight_requests": 8}}},
            }),
        ),
        (
            "--worker-urls http://b:1/ http://c:2,http://d:3",
            "/models/0/engines/static/3/url",
            json!("http://d:3"),
        ),
        (
            "--policy power_of_two --decode-policy power_of_two",
            "/models/0/buckets/0/groups/plain/policy/type",
            json!("power_of_two"),
        ),
    ];
    for (more, path, wanted) in rows {
        let file = file(more);
        assert_eq!(
            *file.pointer(path).unwrap_or(&Value::Null),
            wanted,
            "{more}"
        );
    }
    assert!(file("").pointer(model).is_some());
}

#[test]
fn the_printed_file_is_accepted_and_means_what_the_flags_do() {
    for more in [
        "",
        "--policy sticky --sticky-fallback-policy power_of_two --sticky-idle-secs 1",
        "--filter overloaded --max-in-flight 3 --port 0 --log-level off",
        "--override-sampling-params {\"n\":1}",
    ] {
        let translated = translate(&format!("{SOUND} {more}")).expect("right");
        let mut read = parse(&translated.yaml, "t").unwrap_or_else(|errors| panic!("{errors}"));
        read.warnings.clear();
        assert_eq!(read, translated.config, "{more}");
    }
}

#[test]
fn every_dropped_flag_is_refused_with_its_replacement_or_reason() {
    let rows = [
        (
            "--fuse cache:0.5 load:0.5",
            "--fuse: score composition was removed",
        ),
        (
            "--fuse-weights 1,2",
            "--fuse-weights: score composition was removed",
        ),
        ("--weights 1,2", "--weights: score composition was removed"),
        (
            "--stable-pair",
            "--stable-pair: primary and backup pairs were removed",
        ),
        (
            "--prefix-cache-min-share 0.5",
            "is not the same: remove the flag",
        ),
        ("--cache-threshold 0.5", "use --policy cache_aware"),
        ("--balance-abs-threshold 3", "use --policy cache_aware"),
        ("--balance-rel-threshold 1.5", "use --policy cache_aware"),
        ("--chat-routing reorg", "bucket first: remove the flag"),
        (
            "--power-of-n-choices 3",
            "write `choices` of power_of_two in a file",
        ),
        (
            "--policy fused_score",
            "--policy: `fused_score` is not a policy: score composition was removed",
        ),
        (
            "--policy score_policy",
            "--policy: `score_policy` is not a policy: score composition was removed",
        ),
        ("--policy cache_aware_zmq", "use cache_aware"),
        ("--policy power_of_n", "use power_of_two with `choices`"),
        (
            "--decode-policy legacy_host_affinity",
            "same-host preference was removed",
        ),
        (
            "--affinity-mode soft",
            "an admitted binding is always reused",
        ),
        (
            "--session-affinity-mode global-rebind",
            "global-rebind has no counterpart",
        ),
        (
            "--session-affinity-mode global-preserve",
            "global-preserve has no counterpart",
        ),
        (
            "--filter prefix_cache",
            "--filter: the prefix_cache filter was removed",
        ),
    ];
    for (more, wanted) in rows {
        let found = problem(more);
        assert!(found.contains(wanted), "{more}: {found}");
    }
}

#[test]
fn every_value_out_of_range_is_refused_whether_or_not_its_policy_is_used() {
    let rows = [
        (
            "--host example.com",
            "--host: `example.com` is not an IP address",
        ),
        ("--port 65536", "--port: 65536 is too large"),
        ("--port x", "--port: expected a whole number, found `x`"),
        (
            "--admin-listen 9090",
            "--admin-listen: `9090` is not IP:PORT",
        ),
        (
            "--shutdown-drain-secs 1801",
            "--shutdown-drain-secs: 1801s is above 1800s",
        ),
        (
            "--shutdown-drain-secs -1",
            "--shutdown-drain-secs: expected a whole number",
        ),
        (
            "--termination-grace-secs 0",
            "--termination-grace-secs: must be above zero",
        ),
        (
            "--request-timeout-secs 0",
            "--request-timeout-secs: must be above zero",
        ),
        (
            "--request-timeout-secs 99999999",
            "--request-timeout-secs: `99999999s` is above 720h",
        ),
        (
            "--stream-idle-timeout-secs 0",
            "--stream-idle-timeout-secs: must be above zero",
        ),
        (
            "--stale-request-timeout-secs 1.5",
            "--stale-request-timeout-secs: expected a whole number",
        ),
        ("--log-level loud", "--log-level: expected trace, debug"),
        ("--log-format xml", "--log-format: expected text or json"),
        (
            "--sampling-param-conflict maybe --override-sampling-params {}",
            "--sampling-param-conflict",
        ),
        (
            "--override-sampling-params [1]",
            "--override-sampling-params: expected a map of settings, found a list",
        ),
        (
            "--override-sampling-params {\"n\":1,\"n\":2}",
            "--override-sampling-params: n: duplicate key",
        ),
        (
            "--override-sampling-params {\"heat\":1}",
            "--override-sampling-params: heat: unknown key",
        ),
        ("--worker-urls ftp://a", "--worker-urls:"),
        (
            "--worker-urls http://10.0.0.1:30000/",
            "--worker-urls: `http://10.0.0.1:30000/` is given twice",
        ),
        ("--policy fastest", "--policy: unknown policy `fastest`"),
        (
            "--decode-policy random",
            "--decode-policy: random is not a decode policy of these flags",
        ),
        ("--filter slow", "--filter: `slow` is not a filter"),
        (
            "--filter overloaded overloaded --max-in-flight 1",
            "--filter: `overloaded` is given twice",
        ),
        ("--max-in-flight 0", "--max-in-flight: 0 is too small"),
        ("--cb-threshold 0", "--cb-threshold: 0 is too small"),
        (
            "--cb-threshold 1 --cb-cool-down-secs 0",
            "--cb-cool-down-secs: must be above zero",
        ),
        ("--kv-indexer-endpoint nowhere", "--kv-indexer-endpoint:"),
        (
            "--kv-indexer-query-timeout-ms 0",
            "--kv-indexer-query-timeout-ms: must be above zero",
        ),
        (
            "--kv-indexer-query-max-inflight 0",
            "--kv-indexer-query-max-inflight: 0 is too small",
        ),
        (
            "--cache-affinity-min-matched-tokens -1",
            "--cache-affinity-min-matched-tokens: expected a whole",
        ),
        (
            "--cache-affinity-min-match-ratio 1.1",
            "--cache-affinity-min-match-ratio: 1.1 is out of range",
        ),
        (
            "--cache-affinity-min-match-ratio nan",
            "--cache-affinity-min-match-ratio: expected a number",
        ),
        (
            "--cache-candidate-min-workers 0",
            "--cache-candidate-min-workers: 0 is too small",
        ),
        (
            "--cache-candidate-ratio -0.1",
            "--cache-candidate-ratio: -0.1 is out of range",
        ),
        (
            "--cache-candidate-max-workers 0",
            "--cache-candidate-max-workers: 0 is too small",
        ),
        (
            "--cache-switch-margin-tokens x",
            "--cache-switch-margin-tokens: expected a whole number",
        ),
        (
            "--worker-queue-limit 0",
            "--worker-queue-limit: 0 is too small",
        ),
        (
            "--saturation-queue-floor 0",
            "--saturation-queue-floor: 0 is too small",
        ),
        ("--min-load-choices 0", "--min-load-choices: 0 is too small"),
        (
            "--session-id-header a:b",
            "--session-id-header: `a:b` is not the name of a header",
        ),
        (
            "--session-idle-secs 0",
            "--session-idle-secs: must be above zero",
        ),
        (
            "--session-eviction-interval-secs 0",
            "--session-eviction-interval-secs: must be above zero",
        ),
        (
            "--affinity-mode loose",
            "--affinity-mode: `loose` is not a mode",
        ),
        (
            "--session-affinity-mode x",
            "--session-affinity-mode: `x` is not a mode",
        ),
        (
            "--routing-key-header é",
            "--routing-key-header: `é` is not the name of a header",
        ),
        (
            "--sticky-fallback-policy cache_aware",
            "--sticky-fallback-policy: cache_aware cannot be a fallback",
        ),
        (
            "--sticky-fallback-policy session_aware",
            "--sticky-fallback-policy: session_aware cannot be",
        ),
        (
            "--sticky-fallback-policy sticky",
            "--sticky-fallback-policy: sticky cannot be",
        ),
        (
            "--sticky-fallback-policy fused_score",
            "--sticky-fallback-policy: `fused_score` is not",
        ),
        (
            "--sticky-idle-secs 0",
            "--sticky-idle-secs: must be above zero",
        ),
        (
            "--sticky-eviction-interval-secs 0",
            "--sticky-eviction-interval-secs: must be above zero",
        ),
        (
            "--pressure-abs-threshold-tokens -5",
            "--pressure-abs-threshold-tokens: expected a whole",
        ),
        (
            "--pressure-abs-threshold-ms -1",
            "--pressure-abs-threshold-ms: -1 is out of range",
        ),
        (
            "--pressure-rel-threshold 1",
            "--pressure-rel-threshold: 1 is out of range",
        ),
    ];
    for (more, wanted) in rows {
        let found = problem(more);
        assert!(found.contains(wanted), "{more}: {found}");
    }
}

#[test]
fn a_flag_that_nothing_uses_is_an_error() {
    let rows = [
        (
            "--sampling-param-conflict allow",
            "needs --override-sampling-params",
        ),
        (
            "--service-discovery-namespace n",
            "needs --service-discovery",
        ),
        ("--selector a=b", "needs --service-discovery"),
        ("--filter overloaded", "needs --max-in-flight"),
        ("--max-in-flight 3", "needs --filter"),
        ("--cb-cool-down-secs 3", "needs --cb-threshold"),
        (
            "--cache-prefix-provider radix_tree",
            "applies to cache_aware",
        ),
        (
            "--kv-indexer-endpoint http://10.0.0.9:1",
            "applies to cache_aware",
        ),
        (
            "--cache-affinity-min-matched-tokens 0",
            "applies to cache_aware",
        ),
        (
            "--cache-affinity-min-match-ratio 0.5",
            "applies to cache_aware",
        ),
        ("--cache-candidate-min-workers 1", "applies to cache_aware"),
        ("--cache-candidate-ratio 0.5", "applies to cache_aware"),
        ("--cache-candidate-max-workers 9", "applies to cache_aware"),
        ("--cache-switch-margin-tokens 1", "applies to cache_aware"),
        ("--worker-queue-limit 4", "applies to cache_aware"),
        ("--saturation-queue-floor 2", "applies to cache_aware"),
        ("--min-load-choices 2", "applies to cache_aware"),
        (
            "--session-id-header x-session-id",
            "applies to session_aware",
        ),
        ("--session-idle-secs 600", "applies to session_aware"),
        (
            "--session-eviction-interval-secs 60",
            "applies to session_aware",
        ),
        ("--affinity-mode strict", "applies to session_aware"),
        ("--session-affinity-mode bucket", "applies to session_aware"),
        ("--routing-key-header x-k", "applies to sticky"),
        ("--sticky-fallback-policy random", "applies to sticky"),
        ("--sticky-idle-secs 600", "applies to sticky"),
        ("--sticky-eviction-interval-secs 60", "applies to sticky"),
        ("--disable-pressure-guard", "applies to cache_aware"),
        (
            "--pressure-abs-threshold-tokens 1",
            "applies to cache_aware",
        ),
        ("--pressure-abs-threshold-ms 1", "applies to cache_aware"),
        ("--pressure-rel-threshold 2", "applies to cache_aware"),
        // The pressure guard belongs to cache_aware alone, sessions have none.
        (
            "--policy session_aware --pressure-rel-threshold 2",
            "applies to cache_aware",
        ),
        (
            "--policy session_aware --disable-pressure-guard",
            "applies to cache_aware",
        ),
        (
            "--policy sticky --session-idle-secs 1",
            "applies to session_aware",
        ),
    ];
    for (more, wanted) in rows {
        let found = problem(more);
        let flag = more
            .rsplit(" --")
            .next()
            .expect("a flag")
            .trim_start_matches("--");
        let flag = flag.split(' ').next().expect("its name");
        assert!(found.starts_with(&format!("--{flag}: ")), "{more}: {found}");
        assert!(found.contains(wanted), "{more}: {found}");
    }
    for more in [
        "--kv-indexer-query-timeout-ms 5",
        "--kv-indexer-query-max-inflight 5",
    ] {
        assert!(
            problem(more).contains("needs --kv-indexer-endpoint"),
            "{more}"
        );
    }
}

#[test]
fn values_are_complained_about_before_what_does_not_fit_and_all_at_once() {
    let found =
        problems("--session-idle-secs 0 --sticky-idle-secs 5 --max-in-flight 0 --stable-pair");
    let flags: Vec<_> = found
        .iter()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(
        flags,
        ["--stable-pair", "--max-in-flight", "--session-idle-secs"]
    );
    let found = problems("--session-idle-secs 1 --sticky-idle-secs 5 --max-in-flight 2");
    let flags: Vec<_> = found
        .iter()
        .filter_map(|line| line.split(':').next())
        .collect();
    let wanted = [
        "--model-id",
        "--worker-urls",
        "--max-in-flight",
        "--session-idle-secs",
        "--sticky-idle-secs",
    ];
    assert_eq!(flags, wanted);
}

#[test]
fn engines_come_from_exactly_one_place_and_labels_tell_roles_apart() {
    let rows = [
        ("--model-id m", "--worker-urls: missing"),
        ("--worker-urls http://a:1", "--model-id: missing"),
        (
            "--model-id m --worker-urls http://a:1 --service-discovery --selector a=b",
            "excludes --worker-urls",
        ),
        (
            "--model-id m --service-discovery --prefill-selector a=b",
            "--prefill-selector: needs --decode-selector",
        ),
        (
            "--model-id m --service-discovery --decode-selector a=b",
            "--decode-selector: needs --prefill-selector",
        ),
        (
            "--model-id m --service-discovery --selector tier",
            "--selector: `tier` is not LABEL=VALUE",
        ),
        (
            "--model-id m --service-discovery --selector a=b --prefill-selector a=c --decode-selector a=d",
            "--selector: excludes --prefill-selector",
        ),
    ];
    for (line, wanted) in rows {
        let found = problems(line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(found[0].contains(wanted), "{line}: {found:?}");
    }
}

#[test]
fn what_the_file_refuses_is_told_by_the_name_of_the_flag() {
    for kind in [PolicyKind::LeastLoad, PolicyKind::CacheAware] {
        if !built(kind) {
            let found = problem(&format!("--policy {kind}"));
            assert_eq!(
                found,
                format!("--policy: policy {kind} is not supported yet")
            );
        }
    }
    if built(PolicyKind::CacheAware) {
        let more =
            "--policy cache_aware --cache-candidate-min-workers 9 --cache-candidate-max-workers 8";
        assert!(
            problem(more).starts_with("--cache-candidate-m"),
            "{}",
            problem(more)
        );
        let more = "--policy cache_aware --saturation-queue-floor 2";
        assert!(
            problem(more).starts_with("--saturation-queue-floor: "),
            "{}",
            problem(more)
        );
    }
    let found = problems("--model-id m --service-discovery --selector app=engines");
    assert!(
        found
            .iter()
            .all(|line| line.starts_with("--service-discovery")),
        "{found:?}"
    );
}

#[test]
fn cache_settings_belong_together() {
    let cache = "--policy cache_aware";
    let rows = [
        (
            "--cache-prefix-provider indexer",
            "--cache-prefix-provider: indexer needs",
        ),
        (
            "--cache-prefix-provider radix_tree --kv-indexer-endpoint http://10.0.0.9:1",
            "--kv-indexer-endpoint: applies to --cache-prefix-provider indexer",
        ),
        (
            "--kv-indexer-query-timeout-ms 5",
            "--kv-indexer-query-timeout-ms: needs",
        ),
    ];
    for (more, wanted) in rows {
        let found = problem(&format!("{cache} {more}"));
        assert!(found.starts_with(wanted), "{more}: {found}");
    }
}

#[test]
fn notes_say_what_may_surprise() {
    let notes = |more: &str| translate(&format!("{SOUND} {more}")).expect("right").notes;
    assert!(notes("")[0].contains("estimated from bytes"));
    assert!(notes("--tokenizer-path conf/tokenizers/demo").is_empty());
    let drains = |more: &str| {
        let notes = notes(&format!("--tokenizer-path conf/tokenizers/demo {more}"));
        notes
            .iter()
            .any(|note| note.contains("killed while draining"))
    };
    assert!(drains("--shutdown-drain-secs 30"));
    assert!(!drains("--shutdown-drain-secs 29"));
    assert!(drains(
        "--shutdown-drain-secs 60 --termination-grace-secs 60"
    ));
    assert!(!drains(
        "--shutdown-drain-secs 60 --termination-grace-secs 61"
    ));
    assert!(drains("--termination-grace-secs 5"));
}

#[test]
fn a_flag_given_twice_or_unknown_is_refused_by_name() {
    for line in ["--port 1 --port 2", "--prot 1"] {
        let error = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap_err();
        assert!(
            error.contains("--port") || error.contains("--prot"),
            "{error}"
        );
    }
    assert!(parsed(&[]).expect("nothing").is_empty());
    let given = parsed(&["--stable-pair", "--port", "1"]).expect("parses");
    assert_eq!(given.names(), ["--port", "--stable-pair"]);
}

// === --bucket-config ===

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

#[test]
fn the_migration_of_the_readme_is_what_the_program_prints() {
    let readme = std::fs::read_to_string(crate::repository("README.md")).expect("README");
    let section = readme
        .split("## Coming from sgl-router")
        .nth(1)
        .expect("a migration section");
    let block = |kind: &str| {
        let start = section.split(kind).nth(1).expect(kind);
        start.split("```").next().expect("an end").to_owned()
    };
    let shell = block("```sh\n").replace("\\\n", " ");
    let flags = shell.split("sgl-edge config ").nth(1).expect("a flag line");
    let flags = flags.split('>').next().expect("up to the file");
    let translated = translate(flags).unwrap_or_else(|lines| panic!("{lines:?}"));
    assert_eq!(translated.yaml, block("```yaml\n"));
    let path = only_path("migrated.yaml");
    std::fs::write(&path, &translated.yaml).expect("a writable folder");
    load(Path::new(&path)).unwrap_or_else(|errors| panic!("{errors}"));
}
