//! Values out of range and flags that no longer exist.

use super::{parsed, problem};

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
