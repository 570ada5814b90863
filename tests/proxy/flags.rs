//! `run`, `config` and `schema` from a command line.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::body::small;
use crate::support::child::Proxy;
use crate::support::fleet::engine;

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sgl-edge"))
        .args(arguments)
        .output()
        .expect("the program of this package")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn run_takes_flags_instead_of_a_file() {
    let (first, second) = (engine("a").await, engine("b").await);
    let urls = [first.url(), second.url()];
    let proxy = Proxy::start_with_flags(&[
        "--model-id",
        "m",
        "--worker-urls",
        &urls[0],
        &urls[1],
        "--policy",
        "session_aware",
        "--session-idle-secs",
        "9",
        "--shutdown-drain-secs",
        "0",
    ])
    .await;
    for _ in 0..10 {
        let mut client = proxy.client().await;
        let answer = client.chat_with(&small(), "x-session-id: alice\r\n").await;
        answer.assert_engine(200);
    }
    let served = [first.stats().requests, second.stats().requests];
    assert!(served == [10, 0] || served == [0, 10], "{served:?}");
    let state = proxy.state().await;
    let ids: Vec<&str> = state["models"][0]["engines"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|engine| engine["id"].as_str())
        .collect();
    assert_eq!(ids.len(), 2);
    assert!(
        urls.iter()
            .all(|url| ids.contains(&url.trim_end_matches('/'))),
        "{ids:?}"
    );
    assert!(
        proxy.log().contains("estimated from bytes"),
        "{}",
        proxy.log()
    );
    // There is no file to read again: the signal is no end, and the admin call says so.
    proxy.signal("HUP");
    assert_ne!(proxy.admin("POST", "/admin/reload").await.status, 200);
    proxy.finish().await;
}

#[test]
fn a_file_and_flags_together_and_neither_are_errors() {
    let both = program(&[
        "run",
        "-c",
        "fleet.yaml",
        "--model-id",
        "m",
        "--stable-pair",
    ]);
    assert_eq!(both.status.code(), Some(2));
    assert!(text(&both.stderr).contains("remove --model-id, --stable-pair, or -c"));
    let neither = program(&["run"]);
    assert_eq!(neither.status.code(), Some(2));
    assert!(text(&neither.stderr).contains("give -c FILE, or --model-id and --worker-urls"));
}

#[test]
fn what_is_wrong_with_flags_ends_run_and_config_alike() {
    let flags = [
        "--model-id",
        "m",
        "--stable-pair",
        "--session-idle-secs",
        "0",
    ];
    for command in ["run", "config"] {
        let output = program(&[&[command], &flags[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{command}");
        let problems = text(&output.stderr);
        assert_eq!(problems.lines().count(), 2, "{command}: {problems}");
        assert!(
            problems.contains("command line: --stable-pair: "),
            "{problems}"
        );
        assert!(
            problems.contains("command line: --session-idle-secs: must be above zero"),
            "{problems}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn config_prints_a_file_that_check_accepts() {
    let printed = program(&[
        "config",
        "--model-id",
        "m",
        "--worker-urls",
        "http://10.0.0.1:30000,http://10.0.0.2:30000",
        "--policy",
        "sticky",
        "--sticky-fallback-policy",
        "random",
    ]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("printed.yaml");
    std::fs::write(&path, &printed.stdout).expect("a writable folder");
    let checked = program(&["check", "-c", path.to_str().expect("a plain path")]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("plain: sticky (fallback random)"));
}

#[test]
fn schema_prints_the_json_schema() {
    let printed = program(&["schema"]);
    assert!(printed.status.success());
    let schema: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
}
