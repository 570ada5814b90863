//! sgl-router's flags: policy-semantics §20 and §21. Each row is a command line.

mod buckets;
mod dependencies;
mod values;

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
    let rows: [(&str, &str, Value); 27] = [
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
            "--tokenizer-path conf/tokenizers/demo",
            "/models/0/forward_input_ids",
            json!(true),
        ),
        (
            "--tokenizer-path conf/tokenizers/demo --disable-input-ids-forwarding",
            "/models/0/forward_input_ids",
            Value::Null,
        ),
        ("", "/models/0/forward_input_ids", Value::Null),
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
