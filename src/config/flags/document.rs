//! From values to the file: one model, its engines, and its groups with what applies to each.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::config::flags::table::{FLAGS, To};
use crate::config::flags::values::{Values, equality};
use crate::config::units;
use crate::policies::PolicyKind;

/// `timeouts.first_byte` of a file that does not say otherwise, seconds.
const FIRST_BYTE_SECS: u64 = 300;

/// The buckets and targets of the model, every group with its policy's type.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) buckets: Vec<Value>,
    pub(super) slo: Map<String, Value>,
}

impl Groups {
    /// The policy of every group.
    pub(super) fn kinds(&self) -> BTreeSet<&str> {
        let groups = self.buckets.iter().flat_map(groups_of);
        groups
            .filter_map(|(_, group)| group["policy"]["type"].as_str())
            .collect()
    }
}

/// The groups of a bucket with their roles.
fn groups_of(bucket: &Value) -> Vec<(&'static str, &Value)> {
    let groups = &bucket["groups"];
    let all = [
        ("plain", &groups["plain"]),
        ("prefill", &groups["pd"]["prefill"]),
        ("decode", &groups["pd"]["decode"]),
    ];
    all.into_iter()
        .filter(|(_, group)| !group.is_null())
        .collect()
}

/// The same, to be changed.
fn groups_mut(bucket: &mut Value, mut change: impl FnMut(&str, &mut Map<String, Value>)) {
    for path in ["/groups/plain", "/groups/pd/prefill", "/groups/pd/decode"] {
        let role = path.rsplit('/').next().unwrap_or_default();
        if let Some(Value::Object(group)) = bucket.pointer_mut(path) {
            change(role, group);
        }
    }
}

/// The buckets of the bucket file, or the two that catch everything, with the policies of the
/// flags where a group names none.
pub(super) fn groups(values: &Values, file: Option<Groups>) -> Groups {
    let mut groups = file.unwrap_or_else(|| Groups {
        buckets: vec![
            json!({"id": "plain", "rank": 0, "groups": {"plain": {}}}),
            json!({"id": "pd", "rank": 1, "groups": {"pd": {"prefill": {}, "decode": {}}}}),
        ],
        slo: Map::new(),
    });
    let main = values.word("policy", PolicyKind::RoundRobin.as_str());
    let decode = values.word("decode-policy", PolicyKind::PowerOfTwo.as_str());
    for bucket in &mut groups.buckets {
        groups_mut(bucket, |role, group| {
            let kind = if role == "decode" { decode } else { main };
            let policy = group.entry("policy").or_insert_with(|| json!({}));
            if let Value::Object(policy) = policy {
                policy.entry("type").or_insert_with(|| json!(kind));
            }
        });
    }
    groups
}

/// The whole file.
pub(super) fn document(values: &Values, groups: Groups) -> Value {
    let (mut root, mut model) = (Map::new(), Map::new());
    root.insert("listen".to_owned(), json!([listen(values)]));
    for flag in FLAGS {
        let (tree, path) = match flag.to {
            To::Root(path) => (&mut root, path),
            To::Model(path) => (&mut model, path),
            To::Tuning(_) | To::Other(_) => continue,
        };
        if let Some(value) = values.get(flag.name) {
            put(tree, path, value.clone());
        }
    }
    first_byte(values, &mut root);
    // On by default, as in sgl-router; without a tokenizer there are no ids.
    let forwarded = values.get("disable-input-ids-forwarding").is_none();
    if forwarded && values.get("tokenizer-path").is_some() {
        put(&mut model, "forward_input_ids", json!(true));
    }
    if values.get("kv-indexer-endpoint").is_some() {
        put(&mut model, "cache.provider", json!("indexer"));
    }
    if !groups.slo.is_empty() {
        model.insert("slo".to_owned(), Value::Object(groups.slo));
    }
    engines(values, &mut model);
    let mut buckets = groups.buckets;
    for bucket in &mut buckets {
        groups_mut(bucket, |_, group| tune(values, group));
    }
    model.insert("buckets".to_owned(), Value::Array(buckets));
    root.insert("models".to_owned(), json!([model]));
    Value::Object(root)
}

fn listen(values: &Values) -> String {
    let (host, port) = (
        values.word("host", "127.0.0.1"),
        values.number("port", 30000),
    );
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// sgl-router bounds a whole answer alone; the time to its first byte must not end it earlier.
fn first_byte(values: &Values, root: &mut Map<String, Value>) {
    let request = values.word("request-timeout-secs", "");
    let above = units::duration(request)
        .is_ok_and(|request| request > std::time::Duration::from_secs(FIRST_BYTE_SECS));
    if above {
        put(root, "timeouts.first_byte", json!(request));
    }
}

fn engines(values: &Values, model: &mut Map<String, Value>) {
    let urls = values.all("worker-urls");
    if !urls.is_empty() {
        let engines = urls.iter().map(|url| json!({"url": url, "role": "plain"}));
        put(model, "engines.static", engines.collect());
    }
    if values.get("service-discovery").is_none() {
        return;
    }
    let path = "engines.kubernetes";
    if values.get("service-discovery-namespace").is_none() {
        put(model, path, json!({}));
    }
    for (flag, key) in [
        ("selector", "selector"),
        ("prefill-selector", "prefill_selector"),
        ("decode-selector", "decode_selector"),
    ] {
        let terms: Vec<&str> = values.all(flag).iter().filter_map(Value::as_str).collect();
        if !terms.is_empty() {
            put(model, &format!("{path}.{key}"), labels(&terms));
        }
    }
}

/// The terms as a map where all of them say what a label is, else in one line.
fn labels(terms: &[&str]) -> Value {
    let pairs: Option<Map<String, Value>> = terms
        .iter()
        .map(|term| equality(term).map(|(label, value)| (label.to_owned(), json!(value))))
        .collect();
    match pairs {
        Some(pairs) if pairs.len() == terms.len() => Value::Object(pairs),
        // One label twice can only be said in words.
        Some(_) | None => json!(terms.join(",")),
    }
}

/// Gives a group the tuning of its policy and the common cap, unless it has its own.
fn tune(values: &Values, group: &mut Map<String, Value>) {
    let Some(Value::Object(policy)) = group.get_mut("policy") else {
        return;
    };
    let kind = policy
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let kind = PolicyKind::parse(kind);
    for flag in FLAGS {
        let (To::Tuning(key), Some(value)) = (flag.to, values.get(flag.name)) else {
            continue;
        };
        if crate::config::policy::owner(key) == kind {
            // A switch has no value: it switches off what is on by itself.
            let value = if value.is_null() {
                json!(false)
            } else {
                value.clone()
            };
            policy.entry(key).or_insert(value);
        }
    }
    if let Some(cap) = values.get("max-in-flight") {
        let admission = policy.entry("admission").or_insert_with(|| json!({}));
        if let Value::Object(admission) = admission {
            admission
                .entry("max_inflight_requests")
                .or_insert_with(|| cap.clone());
        }
    }
}

/// Writes the setting at a dotted path.
fn put(tree: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            tree.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let section = tree.entry(section).or_insert_with(|| json!({}));
            if let Value::Object(section) = section {
                put(section, rest, value);
            }
        }
    }
}
