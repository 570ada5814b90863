//! Every flag: its name, its place in a file, its range and what it needs.
//!
//! Source of names, defaults and ranges: policy-semantics §20. `admin-listen` is ours: sgl-router
//! has no second listener.

use serde_json::Value;

use crate::config::flags::values::{
    address, affinity_mode, conflict, count, decode_kind, drain, filter, header, ip, label,
    log_format, log_level, millis, policy_kind, port, positive_secs, provider, sampling, selector,
    session_mode, text, url,
};
use crate::config::reader::Read;
use crate::policies::PolicyKind;

/// What stands behind a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    /// One value of this name.
    One(&'static str),
    /// One or more, also separated by commas.
    Many(&'static str),
}

/// Where a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// A setting of the file.
    Root(&'static str),
    /// A setting of the model.
    Model(&'static str),
    /// A key of the policy of every group that has the policy.
    Tuning(&'static str),
    /// Several settings, written by `document`; the path of the first.
    Other(&'static str),
}

/// What must be there beside a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A group with this policy.
    Policy(PolicyKind),
    Flag(&'static str),
}

/// One row.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    pub(super) to: To,
    pub(super) needs: Needs,
    /// The value in the spelling of a file, or what is wrong with it.
    pub(super) read: fn(&str) -> Read<Value>,
    pub(super) help: &'static str,
}

const fn flag(
    name: &'static str,
    takes: Takes,
    to: To,
    needs: Needs,
    read: fn(&str) -> Read<Value>,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        takes,
        to,
        needs,
        read,
        help,
    }
}

use Needs::Policy;
use PolicyKind::{CacheAware, SessionAware, Sticky};
use Takes::{Many, Nothing, One};
use To::{Model, Other, Root, Tuning};

const FREE: Needs = Needs::Nothing;
const CACHE: Needs = Policy(CacheAware);
const SESSION: Needs = Policy(SessionAware);
const STICKY: Needs = Policy(Sticky);

const fn tuned(
    name: &'static str,
    value: &'static str,
    key: &'static str,
    needs: Needs,
    help: &'static str,
) -> Flag {
    // The policy section's own reader is used, by key.
    flag(name, One(value), Tuning(key), needs, text, help)
}

/// All flags, in the order of the reference.
#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag("host", One("IP"), Other("listen"), FREE, ip, "Address of the data listener [127.0.0.1]"),
    flag("port", One("PORT"), Other("listen"), FREE, port, "Its port [30000]"),
    flag("admin-listen", One("ADDR"), Root("admin.listen"), FREE, address, "Metrics, state and reload [127.0.0.1:9090]"),
    flag("shutdown-drain-secs", One("SECS"), Root("shutdown.drain"), FREE, drain, "After SIGTERM, serve this long while not ready, 0 to 1800 [30]"),
    flag("termination-grace-secs", One("SECS"), Other("shutdown.drain"), FREE, positive_secs, "When the platform kills the process; only to warn of a drain that is longer [30]"),
    flag("request-timeout-secs", One("SECS"), Root("timeouts.request"), FREE, positive_secs, "Whole answer that is not streamed [300]"),
    flag("stream-idle-timeout-secs", One("SECS"), Root("timeouts.stream_idle"), FREE, positive_secs, "Silence between two chunks [180]"),
    flag("stale-request-timeout-secs", One("SECS"), Root("timeouts.lifetime"), FREE, positive_secs, "Any request, streaming included [600]"),
    flag("log-level", One("LEVEL"), Root("log.level"), FREE, log_level, "trace, debug, info, warn, error or off [info]"),
    flag("log-format", One("FORMAT"), Root("log.format"), FREE, log_format, "text or json [text]"),
    flag("model-id", One("ID"), Model("id"), FREE, text, "What requests give as `model`; required"),
    flag("tokenizer-path", One("PATH"), Model("tokenizer"), FREE, text, "Directory with tokenizer.json, or that file"),
    flag("disable-input-ids-forwarding", Nothing, Other("forward_input_ids"), FREE, text, "Send engines no token ids"),
    flag("override-sampling-params", One("JSON"), Model("sampling.override"), FREE, sampling, "Values or {min, max} bands of sampling parameters"),
    flag("sampling-param-conflict", One("MODE"), Model("sampling.conflict"), Needs::Flag("override-sampling-params"), conflict, "reject or allow [reject]"),
    flag("worker-urls", Many("URL"), Other("engines.static"), FREE, url, "Engines"),
    flag("service-discovery", Nothing, Other("engines.kubernetes"), FREE, text, "Find engines in Kubernetes"),
    flag("service-discovery-namespace", One("NAMESPACE"), Model("engines.kubernetes.namespace"), Needs::Flag("service-discovery"), text, "Of the engines [all]"),
    flag("selector", Many("SELECTOR"), Other("engines.kubernetes.selector"), Needs::Flag("service-discovery"), selector, "Labels of plain engines, such as app=engines"),
    flag("prefill-selector", Many("LABEL=VALUE"), Other("engines.kubernetes.prefill_selector"), Needs::Flag("service-discovery"), label, "Labels of prefill engines"),
    flag("decode-selector", Many("LABEL=VALUE"), Other("engines.kubernetes.decode_selector"), Needs::Flag("service-discovery"), label, "Labels of decode engines"),
    flag("policy", One("POLICY"), Other("policy"), FREE, policy_kind, "round_robin, random, power_of_two, load_based, cache_aware, session_aware or sticky [round_robin]"),
    flag("decode-policy", One("POLICY"), Other("decode.policy"), FREE, decode_kind, "power_of_two [power_of_two]"),
    flag("bucket-config", One("FILE"), Other("buckets"), FREE, text, "Buckets, as JSON"),
    flag("filter", Many("FILTER"), Other("filter"), Needs::Flag("max-in-flight"), filter, "overloaded, the only filter left"),
    flag("max-in-flight", One("N"), Other("admission.max_inflight_requests"), Needs::Flag("filter"), count, "Requests in flight per engine"),
    flag("cb-threshold", One("N"), Root("circuit_breaker.failures"), FREE, count, "Failures in a row that open a breaker [3]"),
    flag("cb-cool-down-secs", One("SECS"), Root("circuit_breaker.cool_down"), Needs::Flag("cb-threshold"), positive_secs, "Until an open breaker lets one request probe [30]"),
    flag("cache-prefix-provider", One("PROVIDER"), Model("cache.provider"), CACHE, provider, "radix_tree or indexer [indexer if an endpoint is given]"),
    flag("kv-indexer-endpoint", One("URL"), Model("cache.indexer.endpoint"), CACHE, url, "The remote prefix index"),
    flag("kv-indexer-query-timeout-ms", One("MS"), Model("cache.indexer.query_timeout"), Needs::Flag("kv-indexer-endpoint"), millis, "For one query [100]"),
    flag("kv-indexer-query-max-inflight", One("N"), Model("cache.indexer.query_max_inflight"), Needs::Flag("kv-indexer-endpoint"), count, "Queries at a time [32]"),
    tuned("cache-affinity-min-matched-tokens", "TOKENS", "min_matched_tokens", CACHE, "Smallest hit [1024]"),
    tuned("cache-affinity-min-match-ratio", "RATIO", "min_match_ratio", CACHE, "Smallest share of the prompt, 0 to 1"),
    tuned("cache-candidate-min-workers", "N", "candidate_min_workers", CACHE, "Candidates at least [8]"),
    tuned("cache-candidate-ratio", "RATIO", "candidate_ratio", CACHE, "Candidates as a share of the group, 0 to 1 [0.05]"),
    tuned("cache-candidate-max-workers", "N", "candidate_max_workers", CACHE, "Candidates at most [32]"),
    tuned("cache-switch-margin-tokens", "TOKENS", "switch_margin_tokens", CACHE, "Gap within which the pressure guard acts [1024]"),
    tuned("worker-queue-limit", "N", "worker_queue_limit", CACHE, "Soft limit of waiting requests"),
    tuned("saturation-queue-floor", "N", "saturation_queue_floor", CACHE, "From how many waiting requests on an engine counts as busy"),
    tuned("min-load-choices", "N", "min_load_choices", CACHE, "Engines sampled on a miss [2]"),
    flag("session-id-header", One("NAME"), Model("affinity.session_id_header"), SESSION, header, "Its value is the session [x-session-id]"),
    flag("session-idle-secs", One("SECS"), Model("affinity.session_idle"), SESSION, positive_secs, "Unused for longer, a binding is removed [600]"),
    flag("session-eviction-interval-secs", One("SECS"), Model("affinity.session_eviction_interval"), SESSION, positive_secs, "From one removal to the next [60]"),
    flag("affinity-mode", One("MODE"), Other("affinity.mode"), SESSION, affinity_mode, "strict, the only mode left"),
    flag("session-affinity-mode", One("MODE"), Other("affinity.mode"), SESSION, session_mode, "bucket, the only scope left"),
    flag("routing-key-header", One("NAME"), Model("affinity.routing_key_header"), STICKY, header, "Its value is the routing key [x-sgl-routing-key]"),
    tuned("sticky-fallback-policy", "POLICY", "fallback", STICKY, "round_robin, random, power_of_two or load_based [round_robin]"),
    flag("sticky-idle-secs", One("SECS"), Model("affinity.sticky_idle"), STICKY, positive_secs, "Unused for longer, a binding is removed [600]"),
    flag("sticky-eviction-interval-secs", One("SECS"), Model("affinity.sticky_eviction_interval"), STICKY, positive_secs, "From one removal to the next [60]"),
    flag("disable-pressure-guard", Nothing, Tuning("pressure_guard"), CACHE, text, "Keep the deepest hit whatever its load"),
    tuned("pressure-abs-threshold-tokens", "TOKENS", "pressure_abs_threshold_tokens", CACHE, "Gap of waiting tokens that counts [1024]"),
    tuned("pressure-abs-threshold-ms", "MS", "pressure_abs_threshold_ms", CACHE, "Gap of estimated waiting time that counts, from 0"),
    tuned("pressure-rel-threshold", "FACTOR", "pressure_rel_threshold", CACHE, "Factor that counts, above 1 [1.5]"),
];

/// The flag that writes the setting at `path` of the file, or something inside it; the closest.
pub(super) fn by_path(path: &str) -> Option<&'static Flag> {
    let found = FLAGS
        .iter()
        .filter_map(|flag| Some((closeness(flag, path)?, flag)));
    // Of equals the first, which `max_by_key` would not give.
    let closest = found.reduce(|best, other| if other.0 > best.0 { other } else { best });
    closest.map(|(_, flag)| flag)
}

/// How much of `path` a flag's place makes up, bytes.
fn closeness(flag: &Flag, path: &str) -> Option<usize> {
    let of_model = path.strip_prefix("models[0].");
    let inside = |path: &str, setting: &str| {
        let rest = path.strip_prefix(setting)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then_some(setting.len())
    };
    match flag.to {
        To::Root(setting) => inside(path, setting),
        To::Model(setting) => inside(of_model?, setting),
        To::Tuning(key) => path
            .ends_with(&format!(".policy.{key}"))
            .then_some(path.len()),
        To::Other(setting) => match flag.name {
            "decode-policy" => path.ends_with(".decode.policy.type").then_some(path.len()),
            "policy" => path.ends_with(".policy.type").then_some(path.len() - 1),
            "max-in-flight" => {
                let cap = path.ends_with(&format!(".policy.{setting}"));
                cap.then_some(path.len())
            }
            "filter" | "termination-grace-secs" | "bucket-config" => None,
            _ => inside(path, setting).or_else(|| inside(of_model?, setting)),
        },
    }
}

/// Whether a flag writes the setting at `path` into policies.
pub(super) fn is_policy(path: &str) -> bool {
    path.contains(".policy.") && by_path(path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_listed_twice_and_every_need_exists() {
        for (index, flag) in FLAGS.iter().enumerate() {
            assert!(FLAGS[..index].iter().all(|other| other.name != flag.name));
            if let Needs::Flag(other) = flag.needs {
                assert!(FLAGS.iter().any(|flag| flag.name == other), "{other}");
            }
        }
    }

    #[test]
    fn problems_of_the_file_are_traced_to_flags() {
        let rows = [
            ("timeouts.request", "request-timeout-secs"),
            ("listen", "host"),
            ("models[0].id", "model-id"),
            ("models[0].engines.static[3].url", "worker-urls"),
            ("models[0].engines.kubernetes", "service-discovery"),
            ("models[0].engines.kubernetes.selector.a", "selector"),
            ("models[0].cache.indexer.endpoint", "kv-indexer-endpoint"),
            ("models[0].cache.provider", "cache-prefix-provider"),
            (
                "models[0].sampling.override.heat",
                "override-sampling-params",
            ),
            (
                "models[0].buckets[1].groups.pd.decode.policy.type",
                "decode-policy",
            ),
            (
                "models[0].buckets[1].groups.pd.prefill.policy.type",
                "policy",
            ),
            (
                "models[0].buckets[0].groups.plain.policy.fallback",
                "sticky-fallback-policy",
            ),
            (
                "models[0].buckets[0].groups.plain.policy.admission.max_inflight_requests",
                "max-in-flight",
            ),
        ];
        for (path, name) in rows {
            assert_eq!(by_path(path).map(|flag| flag.name), Some(name), "{path}");
        }
        assert!(by_path("models[0].buckets[0].limits").is_none());
    }
}
