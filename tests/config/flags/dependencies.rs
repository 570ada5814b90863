//! What must fit together, and flags that nothing uses.

use sgl_edge::policies::PolicyKind;

use super::{SOUND, built, problem, problems, translate};

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
    let found = problems(
        "--session-idle-secs 0 --sticky-idle-secs 5 --max-in-flight 0 --stable-pair --shutdown-drain-secs 9999 --log-level loud --override-sampling-params {\"n\":0}",
    );
    let flags: Vec<_> = found
        .iter()
        .filter_map(|line| line.split(':').next())
        .collect();
    let wanted = [
        "--stable-pair",
        "--shutdown-drain-secs",
        "--log-level",
        "--override-sampling-params",
        "--max-in-flight",
        "--session-idle-secs",
    ];
    assert_eq!(flags, wanted);
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
            "--model-id m --service-discovery --selector a=b,-c",
            "--selector: `-c` is no term of a label selector",
        ),
        (
            "--model-id m --service-discovery --prefill-selector a=c --decode-selector a!=c",
            "--decode-selector: `a!=c` is not LABEL=VALUE",
        ),
        (
            "--model-id m --service-discovery --service-discovery-namespace Prod --selector a=b",
            "--service-discovery-namespace: `Prod` is no namespace",
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
    let found = problems("--model-id m --service-discovery");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("--service-discovery: write selector"),
        "{found:?}"
    );
}

#[test]
fn selectors_become_maps_where_a_map_can_say_it() {
    let kubernetes = |more: &str| {
        let line = format!("--model-id m --service-discovery {more}");
        let config = translate(&line).expect("right").config;
        config.models[0]
            .engines_kubernetes
            .clone()
            .expect("a source")
            .to_string()
    };
    let rows = [
        (
            "--selector app=engines",
            "all namespaces, plain by app=engines",
        ),
        (
            "--service-discovery-namespace prod --selector b==1 a=2",
            "namespace prod, plain by a=2,b=1",
        ),
        ("--selector a=1,!b c", "all namespaces, plain by a=1,!b,c"),
        ("--selector a=1 a=2", "all namespaces, plain by a=1,a=2"),
        (
            "--prefill-selector app=e role=p --decode-selector app=e role=d",
            "all namespaces, prefill by app=e,role=p, decode by app=e,role=d",
        ),
    ];
    for (more, wanted) in rows {
        assert_eq!(kubernetes(more), wanted);
    }
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
