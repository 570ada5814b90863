//! The files in `conf/` are what operators start from.

use sgl_edge::config::{Config, Groups, Model, load, parse};
use sgl_edge::policies::PolicyKind;

use crate::{MINIMAL, files, repository};

fn example(name: &str) -> Config {
    load(&repository("conf").join(name)).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Bucket ids in file order with the policies of their groups.
fn shape(model: &Model) -> Vec<(&str, Vec<PolicyKind>)> {
    let kinds = |groups: &Groups| match groups {
        Groups::Plain(group) => vec![group.policy.kind()],
        Groups::Pd { prefill, decode } => vec![prefill.policy.kind(), decode.policy.kind()],
    };
    let buckets = model.buckets.iter();
    buckets
        .map(|bucket| (bucket.id.as_str(), kinds(&bucket.groups)))
        .collect()
}

#[test]
fn every_example_loads_without_a_warning() {
    for path in files("conf", "yaml") {
        let config = load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
}

#[test]
fn the_file_of_the_compose_fleet_loads_without_a_warning() {
    let config = load(&repository("docker").join("edge.yaml"));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn the_worked_configuration_of_the_readme_loads_without_a_warning() {
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let start = readme.find("```yaml\n").expect("a worked configuration") + "```yaml\n".len();
    let yaml = readme[start..].split("```").next().unwrap();
    let config = parse(yaml, "README.md").unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn plain_has_two_buckets_of_plain_engines() {
    let config = example("plain.yaml");
    let [model] = &config.models[..] else {
        panic!("{config:?}")
    };
    let wanted = [
        ("short", vec![PolicyKind::PowerOfTwo]),
        ("long", vec![PolicyKind::RoundRobin]),
    ];
    assert_eq!(shape(model), wanted);
    assert_eq!(model.tokenizer, Some("conf/tokenizers/demo".into()));
    assert_eq!(model.engines.len(), 4);
    let short = &model.buckets[0];
    assert_eq!(short.input_capacity(), 4096);
    assert_eq!(short.max_context_tokens, Some(8192));
    let Groups::Plain(group) = &short.groups else {
        panic!("{short:?}")
    };
    assert_eq!(group.admission.max_inflight_requests, Some(64));
    assert_eq!(group.worker_ids.as_ref().map(|ids| ids.len()), Some(3));
}

#[test]
fn pd_has_two_buckets_of_pairs() {
    let config = example("pd.yaml");
    let [model] = &config.models[..] else {
        panic!("{config:?}")
    };
    let pair = vec![PolicyKind::PowerOfTwo, PolicyKind::PowerOfTwo];
    assert_eq!(shape(model), [("short", pair.clone()), ("long", pair)]);
    let ports: Vec<_> = model
        .engines
        .iter()
        .map(|engine| engine.bootstrap_port)
        .collect();
    assert_eq!(ports, [Some(8998), Some(8999), None, None]);
    let Groups::Pd { prefill, decode } = &model.buckets[0].groups else {
        panic!("{model:?}")
    };
    assert_eq!(prefill.admission.max_pending_prefill_tokens, Some(32768));
    assert_eq!(decode.admission.max_kv_tokens, Some(1_048_576));
}

#[test]
fn mixed_lengths_has_a_plain_and_a_pd_model() {
    let config = example("mixed-lengths.yaml");
    let [chat, pairs] = &config.models[..] else {
        panic!("{config:?}")
    };
    let wanted = [
        ("short", vec![PolicyKind::PowerOfTwo]),
        ("medium", vec![PolicyKind::PowerOfTwo]),
        ("long", vec![PolicyKind::Random]),
    ];
    assert_eq!(shape(chat), wanted);
    assert_eq!(chat.aliases, ["chat-latest"]);
    let capacities: Vec<u64> = chat
        .buckets
        .iter()
        .map(|bucket| bucket.input_capacity())
        .collect();
    assert_eq!(capacities, [2048, 16384, 131_072]);
    let wanted = [
        (
            "short",
            vec![PolicyKind::PowerOfTwo, PolicyKind::PowerOfTwo],
        ),
        ("long", vec![PolicyKind::RoundRobin, PolicyKind::PowerOfTwo]),
    ];
    assert_eq!(shape(pairs), wanted);
    assert_eq!(pairs.buckets[1].input_capacity(), u64::MAX);
    assert_eq!(config.limits.max_inflight_requests, Some(1024));
    assert!(config.response_headers);
}

#[test]
fn full_shows_the_true_defaults() {
    let mut full = example("full.yaml");
    let mut defaults = parse(MINIMAL, "t").unwrap();
    let group = |model: &Model| match &model.buckets[0].groups {
        Groups::Plain(group) => group.clone(),
        Groups::Pd { .. } => panic!("{model:?}"),
    };
    assert_eq!(group(&full.models[0]), group(&defaults.models[0]));
    full.models.clear();
    defaults.models.clear();
    assert_eq!(full, defaults);
}
