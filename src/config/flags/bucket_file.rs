//! The file of `--bucket-config`: buckets in their own JSON, in the shape of the flags' time.
//!
//! Takes bucket-first entries (`min_input_tokens`, `max_input_tokens`, and `plain` or `prefill` and
//! `decode` beside them) and entries as in our own file (`limits`, `groups`). Specs of one role each
//! are refused: which prefill spec belongs to which decode spec is not written in them and is never
//! guessed. Checks names only; ranges are checked in the file that comes out.
//! Source: design §7, policy-semantics §4 and §21.

use std::fs::File;
use std::io::Read as _;

use serde_json::{Map, Value, json};

use crate::config::MAX_FILE_BYTES;
use crate::config::flags::document::Groups;
use crate::config::flags::{Complaints, Flags};
use crate::config::reader::{At, Fields, Place, Problems};
use crate::config::tree::{self, Node, Value as Tree};

/// Keys of an entry in either spelling.
const COMMON: [&str; 5] = [
    "id",
    "rank",
    "max_context_tokens",
    "ttft_ms",
    "tokens_per_second",
];
const GROUPS: [&str; 3] = ["plain", "prefill", "decode"];

/// The buckets of the file, if one is given and it can be read.
pub(super) fn read(flags: &Flags, complaints: &mut Complaints) -> Option<Groups> {
    let path = flags.one("bucket-config")?;
    let text = match text(path) {
        Ok(text) => text,
        Err(problem) => {
            complaints.add("bucket-config", format!("{path}: {problem}"));
            return None;
        }
    };
    let mut problems = Problems::new(path);
    let groups = tree::build(&text, &mut problems).and_then(|node| {
        let root = At {
            place: Place::root(node.line),
            node: &node,
        };
        file(&mut problems, &root)
    });
    complaints.0.extend(problems.into_list());
    groups
}

fn text(path: &str) -> Result<String, String> {
    let most = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let read = file.take(most.saturating_add(1)).read_to_string(&mut text);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > MAX_FILE_BYTES {
        return Err(format!("is larger than {} MiB", MAX_FILE_BYTES >> 20));
    }
    Ok(text)
}

fn file(problems: &mut Problems, root: &At<'_>) -> Option<Groups> {
    let fields = problems.map(root, &["buckets", "ttft_slo", "tps_slo"])?;
    let mut slo = Map::new();
    for (key, target) in [("ttft_slo", "ttft"), ("tps_slo", "tps")] {
        if let Some(at) = fields.get(key) {
            slo.insert(target.to_owned(), value(at.node));
        }
    }
    let Some(at) = fields.get("buckets") else {
        problems.add(
            &fields.place_of("buckets"),
            "missing: write a list of buckets",
        );
        return None;
    };
    let items = problems.list(&at)?;
    let buckets = items.iter().filter_map(|item| bucket(problems, item));
    let buckets: Vec<Value> = buckets.collect();
    Some(Groups { buckets, slo })
}

fn bucket(problems: &mut Problems, at: &At<'_>) -> Option<Value> {
    let ours = matches!(&at.node.value, Tree::Map(entries)
        if entries.iter().any(|(key, _)| key == "groups" || key == "limits"));
    if ours {
        problems.map(at, &[&COMMON[..], &["limits", "groups"]].concat())?;
        return Some(value(at.node));
    }
    let bounds = ["min_input_tokens", "max_input_tokens"];
    let fields = problems.map(at, &[&COMMON[..], &bounds, &GROUPS].concat())?;
    let mut bucket = Map::new();
    for key in COMMON {
        if let Some(at) = fields.get(key) {
            bucket.insert(key.to_owned(), value(at.node));
        }
    }
    let bound = |key| fields.get(key).map_or(Value::Null, |at| value(at.node));
    let [min, max] = bounds.map(bound);
    bucket.insert("limits".to_owned(), json!({"min": min, "max": max}));
    let [plain, prefill, decode] = GROUPS.map(|key| group(problems, &fields, key));
    let groups = match (plain, prefill, decode) {
        (Some(plain), None, None) => json!({"plain": plain}),
        (None, Some(prefill), Some(decode)) => {
            json!({"pd": {"prefill": prefill, "decode": decode}})
        }
        _ => {
            let problem = "needs `plain`, or `prefill` and `decode`, and not both kinds";
            problems.add(&at.place, problem);
            return None;
        }
    };
    bucket.insert("groups".to_owned(), groups);
    Some(Value::Object(bucket))
}

/// A group in the spelling of our file: caps stand inside the policy.
fn group(problems: &mut Problems, bucket: &Fields<'_>, key: &str) -> Option<Value> {
    let at = bucket.get(key)?;
    let fields = problems.map(&at, &["worker_ids", "policy", "admission"])?;
    let mut policy = match fields.get("policy").map(|at| value(at.node)) {
        None => Map::new(),
        Some(Value::Object(policy)) => policy,
        Some(kind) => Map::from_iter([("type".to_owned(), kind)]),
    };
    if let Some(at) = fields.get("admission") {
        if policy.contains_key("admission") {
            problems.add(&at.place, "is given twice: also inside `policy`");
        }
        policy.insert("admission".to_owned(), value(at.node));
    }
    let mut group = Map::from_iter([("policy".to_owned(), Value::Object(policy))]);
    if let Some(at) = fields.get("worker_ids") {
        group.insert("worker_ids".to_owned(), value(at.node));
    }
    Some(Value::Object(group))
}

/// What a node says.
fn value(node: &Node) -> Value {
    match &node.value {
        Tree::Scalar { text, plain: true } => serde_json::from_str(text).unwrap_or_else(|_| {
            if node.is_null() {
                Value::Null
            } else {
                json!(text)
            }
        }),
        Tree::Scalar { text, plain: false } => json!(text),
        Tree::List(items) => items.iter().map(value).collect(),
        Tree::Map(entries) => {
            let entries = entries.iter().map(|(key, node)| (key.clone(), value(node)));
            Value::Object(entries.collect())
        }
    }
}
