//! Unknown keys: what to say of one, and the names that once meant something.
//!
//! An option that the design dropped is refused with its replacement, or with the reason why there
//! is none; it is never mapped to something similar. Source: design §7 "Reject these dropped
//! options", policy-semantics §4 and §21.

use crate::config::reader::short;
use crate::config::scalars::alternatives;

const NO_PAIRS: &str = "prefill and decode specs of one role each were removed, and pairs are never inferred from rank or name: write one bucket with `groups: {pd: {prefill: {…}, decode: {…}}}`";
const RANGES: &str = "ranges per role were removed: write `limits: {min, max}` and `max_context_tokens` of the bucket, which count prompt tokens and prompt plus output";
const SCORES: &str =
    "score composition was removed: attach cache_aware, load_based or power_of_two to the group";
const UNDER_GROUPS: &str = "engine groups stand under `groups`: write `groups: {plain: {…}}` or `groups: {pd: {prefill: {…}, decode: {…}}}`";
const UNDER_POLICY: &str = "it belongs to a group: write it under `groups`, in `policy` of the plain, prefill or decode group";
const BINDINGS: &str = "only admitted-binding reuse remains (formerly `strict`), scoped by bucket and stage; remove the key";
const PREFIX_FILTER: &str = "the prefix_cache filter was removed, and the minimum-hit gate of cache_aware (`min_matched_tokens`) is not the same: remove the key";
const ZMQ: &str = "it belonged to cache_aware_zmq, which was removed: use cache_aware, whose pressure guard is tuned by `switch_margin_tokens` and the `pressure_…` keys";

/// Keys with a past, and what to do instead.
const DROPPED: [(&str, &str); 35] = [
    (
        "buckets",
        "it belongs to a model: write it inside an entry of `models`",
    ),
    ("stage", NO_PAIRS),
    ("min_extend_tokens", RANGES),
    ("max_extend_tokens", RANGES),
    ("min_sequence_tokens", RANGES),
    ("max_sequence_tokens", RANGES),
    ("min_input_tokens", "it is spelled `limits: {min: …}`"),
    ("max_input_tokens", "it is spelled `limits: {max: …}`"),
    (
        "ttft_p95_at_capacity_ms",
        "it was renamed: write `ttft_ms` of the bucket",
    ),
    (
        "tps_p05_at_capacity",
        "it was renamed: write `tokens_per_second` of the bucket",
    ),
    (
        "max_pending_prefill_tokens",
        "it is a cap per engine now: write it in `policy: {admission: {…}}` of the prefill group",
    ),
    (
        "worker_ids",
        "it belongs to a group: write it under `groups`, beside `policy`",
    ),
    ("plain", UNDER_GROUPS),
    ("prefill", UNDER_GROUPS),
    ("decode", UNDER_GROUPS),
    ("policy", UNDER_POLICY),
    ("decode_policy", UNDER_POLICY),
    (
        "admission",
        "it belongs to a policy: write it inside `policy`",
    ),
    (
        "ttft_slo_policy",
        "it is spelled `slo: {ttft: …}` of the model",
    ),
    (
        "tps_slo_policy",
        "it is spelled `slo: {tps: …}` of the model",
    ),
    ("fused_score", SCORES),
    ("score_policy", SCORES),
    ("fuse", SCORES),
    ("weights", SCORES),
    (
        "legacy_host_affinity",
        "same-host preference was removed: use power_of_two for decode groups",
    ),
    (
        "stable_pair",
        "primary and backup pairs were removed, every policy returns one engine: remove the key",
    ),
    ("mode", BINDINGS),
    ("affinity_mode", BINDINGS),
    ("session_affinity_mode", BINDINGS),
    (
        "filter",
        "filters were removed: `overloaded` is `admission: {max_inflight_requests: …}` of a policy now, and `prefix_cache` has no replacement",
    ),
    ("prefix_cache", PREFIX_FILTER),
    ("prefix_cache_min_share", PREFIX_FILTER),
    ("cache_threshold", ZMQ),
    ("balance_abs_threshold", ZMQ),
    ("balance_rel_threshold", ZMQ),
];

/// What to say of `key`, which is none of `known`. `parent` is the path of the map it stands in.
pub(super) fn unknown_key(key: &str, parent: &str, known: &[&str]) -> String {
    if let Some((_, advice)) = DROPPED
        .iter()
        .find(|(name, _)| *name == key && misplaced(key, parent))
    {
        return format!("`{key}` is not a setting here: {advice}");
    }
    if matches!(key, "prefill" | "decode") && parent.ends_with(".groups") {
        return format!("{key} cannot stand alone: write `pd: {{prefill: {{…}}, decode: {{…}}}}`");
    }
    let key_shown = short(key);
    let near = known.iter().map(|name| (distance(key, name), *name)).min();
    match near {
        Some((distance, name)) if distance <= 2 && distance < name.len() / 2 => {
            format!("unknown key `{key_shown}`, did you mean `{name}`?")
        }
        _ => format!(
            "unknown key `{key_shown}`, expected {}",
            alternatives(known)
        ),
    }
}

/// Words that are plain typos elsewhere carry advice only in the map where they once stood.
fn misplaced(key: &str, parent: &str) -> bool {
    match key {
        "stage"
        | "plain"
        | "prefill"
        | "decode"
        | "worker_ids"
        | "max_pending_prefill_tokens"
        | "min_input_tokens"
        | "max_input_tokens" => parent.contains("buckets[") && !parent.contains(".groups"),
        "buckets" => parent.is_empty(),
        "mode" => parent.ends_with(".affinity") || parent.ends_with(".policy"),
        _ => true,
    }
}

/// Number of single-letter edits between two names; 3 stands for "far".
fn distance(a: &str, b: &str) -> usize {
    const FAR: usize = 3;
    if a.len().abs_diff(b.len()) >= FAR {
        return FAR;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()].min(FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_two_edits_are_near_and_more_are_far() {
        let rows = [
            ("connect", "connect", 0),
            ("conect", "connect", 1),
            ("conenct", "connect", 2),
            ("max_runing_requests", "max_running_requests", 1),
            ("abc", "xyz", 3),
            ("", "abcdef", 3),
            ("ttft", "tps", 3),
        ];
        for (a, b, wanted) in rows {
            assert_eq!(distance(a, b), wanted, "{a} {b}");
            assert_eq!(distance(b, a), wanted, "{b} {a}");
        }
    }

    #[test]
    fn no_name_is_listed_twice() {
        for (index, (name, _)) in DROPPED.iter().enumerate() {
            assert!(
                DROPPED[..index].iter().all(|(other, _)| other != name),
                "{name}"
            );
        }
    }

    #[test]
    fn a_dropped_name_is_explained_only_where_it_once_stood() {
        let bucket = unknown_key("stage", "models[0].buckets[0]", &["id"]);
        assert!(bucket.contains("never inferred"), "{bucket}");
        let root = unknown_key("stage", "", &["listen"]);
        assert_eq!(root, "unknown key `stage`, expected listen");
    }
}
