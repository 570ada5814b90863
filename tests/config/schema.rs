//! The JSON Schema against the parser: the same keys in every map, the same verdict where a schema
//! can give one.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use sgl_edge::config::{parse, schema, to_yaml};

use crate::{MINIMAL, files, repository};

fn schema_value() -> Value {
    serde_json::from_str(schema()).expect("JSON")
}

fn validator() -> jsonschema::Validator {
    jsonschema::validator_for(&schema_value()).expect("a valid schema")
}

/// A file as editors see it; `None` where it is no plain YAML.
fn instance(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).ok()?;
    serde_yaml::from_str(&text).ok()
}

fn assert_accepted(path: &Path) {
    let file = instance(path).unwrap_or_else(|| panic!("{}", path.display()));
    let errors: Vec<String> = validator()
        .iter_errors(&file)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "{}\n{}",
        path.display(),
        errors.join("\n")
    );
}

#[test]
fn every_example_and_every_good_fixture_is_accepted() {
    let mut paths = files("conf", "yaml");
    paths.extend(files("tests/fixtures/config/good", "yaml"));
    paths.push(repository("docker/edge.yaml"));
    let sets = ["plain", "pd", "all-namespaces"];
    paths.extend(sets.map(|set| repository(&format!("docker/kubernetes/{set}/edge.yaml"))));
    for path in paths {
        assert_accepted(&path);
    }
}

#[test]
fn bad_fixtures_are_refused_where_a_schema_can_see_why() {
    // The others break rules between values, or hold what editors do not pass on.
    let seen = [
        "admin_unknown_key",
        "admission_unknown_key",
        "admission_wrong_type",
        "admission_zero",
        "affinity_wrong",
        "bootstrap_port",
        "breaker_ranges",
        "bucket_context_zero",
        "bucket_id_blank",
        "bucket_id_missing",
        "bucket_limits_unknown",
        "bucket_rank_range",
        "bucket_targets_range",
        "buckets_empty",
        "cache_wrong",
        "dropped_affinity_mode",
        "dropped_bucket_groups",
        "dropped_bucket_keys",
        "dropped_group_admission",
        "dropped_model_keys",
        "dropped_policy_fused_score",
        "dropped_policy_least_load",
        "dropped_root_keys",
        "dropped_sticky_fallback",
        "durations_without_unit",
        "durations_wrong",
        "durations_zero",
        "engine_id_blank",
        "engine_keys_missing",
        "engine_role_wrong",
        "engine_unknown_key",
        "engines_empty",
        "engines_is_a_list",
        "engines_missing",
        "forward_input_ids_word",
        "group_unknown_key",
        "groups_empty",
        "groups_lone_decode",
        "groups_lone_prefill",
        "groups_missing",
        "groups_pd_half",
        "groups_unknown_key",
        "health_path_characters",
        "health_ranges",
        "kv_events_word",
        "limits_ranges",
        "listen_empty",
        "listen_is_a_map",
        "listen_twice",
        "log_words",
        "many_at_once",
        "model_id_blank",
        "model_id_is_a_number",
        "model_id_missing",
        "models_empty",
        "models_is_a_map",
        "models_missing",
        "policy_choices_zero",
        "policy_is_a_word",
        "policy_ranges",
        "policy_sticky_fallback_cache_aware",
        "policy_unknown",
        "policy_unknown_key",
        "root_is_a_list",
        "root_is_a_word",
        "sampling_conflict_word",
        "sampling_domains",
        "slo_words",
        "threads_range",
        "threads_zero",
        "tls_incomplete",
        "tokenizer_wrong",
        "unknown_root_keys",
        "worker_ids_is_a_word",
        "wrong_types",
    ];
    let validator = validator();
    let mut accepted = Vec::new();
    for name in seen {
        let path = repository("tests/fixtures/config/bad").join(format!("{name}.yaml"));
        let file = instance(&path).unwrap_or_else(|| panic!("{name} is no YAML"));
        if validator.is_valid(&file) {
            accepted.push(name);
        }
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
}

/// One step from a map or list to what it holds.
type Steps = Vec<String>;

/// Every map of the schema with fixed keys: where it stands, and its keys.
fn maps(schema: &Value) -> Vec<(Steps, BTreeSet<String>)> {
    let mut found = Vec::new();
    let mut open = vec![(Steps::new(), schema.clone())];
    while let Some((steps, node)) = open.pop() {
        let step = |more: &str| [&steps[..], &[more.to_owned()]].concat();
        if let Some(target) = node["$ref"].as_str() {
            let target = schema.pointer(&target[1..]).expect("a target").clone();
            open.push((steps.clone(), target));
        }
        for choice in node["anyOf"].as_array().into_iter().flatten() {
            open.push((steps.clone(), choice.clone()));
        }
        if let Some(properties) = node["properties"].as_object() {
            assert_eq!(
                node["additionalProperties"],
                json!(false),
                "{steps:?} is open"
            );
            found.push((steps.clone(), properties.keys().cloned().collect()));
            for (key, node) in properties {
                open.push((step(key), node.clone()));
            }
        }
        if node["items"].is_object() {
            open.push((step("0"), node["items"].clone()));
        }
        if node["additionalProperties"].is_object() && !steps.ends_with(&["selector".into()]) {
            open.push((step("E1"), node["additionalProperties"].clone()));
        }
    }
    found
}

/// A file with an unknown key in the map at `steps`.
fn with_unknown_key(steps: &[String]) -> Value {
    let inner = json!({"zz_zz": 1});
    steps
        .iter()
        .rev()
        .fold(inner, |inner, step| match step.as_str() {
            "0" => json!([inner]),
            key => json!({key: inner}),
        })
}

#[test]
fn every_map_has_exactly_the_keys_that_the_parser_knows() {
    let schema = schema_value();
    let maps = maps(&schema);
    assert!(maps.len() > 25, "{}", maps.len());
    for (steps, keys) in maps {
        // A band of a sampling parameter is told by its shape, not by its keys.
        let band = steps.iter().any(|step| step == "override") && keys.contains("min");
        if band {
            continue;
        }
        let errors = parse(&to_yaml(&with_unknown_key(&steps)), "t").unwrap_err();
        let told = errors.iter().find(|error| error.path.ends_with("zz_zz"));
        let told = told.unwrap_or_else(|| panic!("{steps:?}: {errors}"));
        let (_, list) = told
            .problem
            .split_once("expected ")
            .unwrap_or_else(|| panic!("{told}"));
        let known: BTreeSet<String> = list
            .split(", ")
            .flat_map(|word| word.split(" or "))
            .map(str::to_owned)
            .collect();
        assert_eq!(keys, known, "{steps:?}");
    }
}

#[test]
fn the_smallest_file_is_accepted_and_an_empty_one_is_not() {
    let validator = validator();
    let minimal: Value = serde_yaml::from_str(MINIMAL).expect("YAML");
    assert!(validator.is_valid(&minimal));
    assert!(!validator.is_valid(&json!({})));
    assert!(!validator.is_valid(&Value::Null));
}
