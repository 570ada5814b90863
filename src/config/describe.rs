//! A configuration for people: what `sgl-edge check` prints of a file that is right.
//!
//! Buckets stand in the order in which requests try them. The text is not an interface; nothing
//! parses it.

use std::fmt::Write as _;

use crate::config::types::{
    Affinity, Bucket, Cache, Config, Group, Groups, KvEvents, Model, Sampling, Slo,
};
use crate::config::units::show_duration;
use crate::ids::Stage;
use crate::policies::{AdmissionLimits, CacheAwareParams, PolicyKind, PolicyParams};

/// `config` as text: models, buckets in resolution order, groups, policies, then warnings.
#[must_use]
pub fn describe(config: &Config) -> String {
    let mut lines = Vec::new();
    let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
    lines.push(format!(
        "listen {}, admin {}",
        listen.join(", "),
        config.admin.listen
    ));
    for model in &config.models {
        describe_model(&mut lines, model);
    }
    for warning in &config.warnings {
        lines.push(format!("warning: {warning}"));
    }
    lines.join("\n") + "\n"
}

fn describe_model(lines: &mut Vec<String>, model: &Model) {
    let mut head = format!("model {}", model.id);
    if !model.aliases.is_empty() {
        let _ = write!(head, ", also {}", model.aliases.join(", "));
    }
    match &model.tokenizer {
        Some(path) => {
            let _ = write!(head, ", tokenizer {}", path.display());
        }
        None => head.push_str(", no tokenizer (tokens are estimated from bytes)"),
    }
    if model.forward_input_ids {
        head.push_str(", token ids forwarded");
    }
    lines.push(head);
    lines.extend(sampling(&model.sampling));
    lines.extend(affinity(model));
    lines.extend(slo(model.slo));
    lines.extend(cache(&model.cache));
    lines.extend(kv_events(&model.kv_events));
    if let Some(file) = &model.engines_file {
        lines.push(format!("  engines of the file {}", file.display()));
    }
    if let Some(source) = &model.engines_kubernetes {
        lines.push(format!("  engines from Kubernetes: {source}"));
    }
    for stage in Stage::ALL {
        let engines = model.engines.iter().filter(|engine| engine.role == stage);
        let ids: Vec<&str> = engines.map(|engine| engine.id.as_str()).collect();
        if !ids.is_empty() {
            lines.push(format!("  {stage} engines: {}", ids.join(", ")));
        }
    }
    let mut buckets: Vec<&Bucket> = model.buckets.iter().collect();
    buckets.sort_by_key(|bucket| (bucket.input_capacity(), bucket.rank, bucket.id.clone()));
    for (index, bucket) in buckets.into_iter().enumerate() {
        describe_bucket(lines, index + 1, bucket);
    }
}

/// The contract in one line; `None` without one.
fn sampling(contract: &Sampling) -> Option<String> {
    let rows = contract.overrides.iter();
    let rules: Vec<String> = rows
        .map(|(param, allowed)| format!("{} {allowed}", param.as_str()))
        .collect();
    let conflict = contract.conflict.as_str();
    (!rules.is_empty()).then(|| format!("  sampling: {}, conflict {conflict}", rules.join(", ")))
}

/// Headers and times of the keys that some group reads; `None` if none does.
fn affinity(model: &Model) -> Option<String> {
    let needs = model.requirements();
    let Affinity { session, sticky } = &model.affinity;
    let rows = [
        (needs.session_key, "session", session),
        (needs.routing_key, "sticky", sticky),
    ];
    let rows: Vec<String> = rows
        .iter()
        .filter(|(needed, _, _)| *needed)
        .map(|(_, kind, keys)| {
            let (idle, interval) = (keys.idle, keys.eviction_interval);
            format!(
                "{kind} by header {}, idle {}, removal every {}",
                keys.header,
                show_duration(idle),
                show_duration(interval)
            )
        })
        .collect();
    (!rows.is_empty()).then(|| format!("  affinity: {}", rows.join("; ")))
}

/// The preferences in one line; `None` when both are disabled.
fn slo(slo: Slo) -> Option<String> {
    let (ttft, tps) = (slo.ttft.as_str(), slo.tps.as_str());
    (slo != Slo::default()).then(|| format!("  slo: ttft {ttft}, tps {tps}"))
}

/// The remote index; `None` for the local one.
fn cache(setting: &Cache) -> Option<String> {
    let Cache::Indexer(indexer) = setting else {
        return None;
    };
    Some(format!(
        "  prefixes from {}, at most {} queries at once, {} each",
        indexer.endpoint,
        indexer.query_max_inflight,
        show_duration(indexer.query_timeout)
    ))
}

/// Where events and reports come from; `None` for the default.
fn kv_events(setting: &KvEvents) -> Option<String> {
    match setting {
        KvEvents::Auto => None,
        KvEvents::Off => Some("  KV events off".to_owned()),
        KvEvents::Explicit(named) => {
            let rows = named.iter().map(|(engine, publishers)| {
                let load = publishers.load.as_ref();
                let load = load.map_or_else(|| "none".to_owned(), ToString::to_string);
                format!("{engine} from {}, load from {load}", publishers.events)
            });
            let rows: Vec<String> = rows.collect();
            Some(format!("  KV events: {}", rows.join("; ")))
        }
    }
}

fn describe_bucket(lines: &mut Vec<String>, number: usize, bucket: &Bucket) {
    let capacity = match bucket.input_capacity() {
        u64::MAX => "unbounded".to_owned(),
        tokens => format!("{tokens} tokens"),
    };
    let input = match (bucket.min_input_tokens, bucket.max_input_tokens) {
        (None, None) => "any".to_owned(),
        (Some(min), None) => format!("from {min}"),
        (None, Some(max)) => format!("up to {max}"),
        (Some(min), Some(max)) => format!("{min} to {max}"),
    };
    let context = bucket
        .max_context_tokens
        .map_or_else(|| "any".to_owned(), |tokens| format!("up to {tokens}"));
    let mut head = format!(
        "  {number}. bucket {}: capacity {capacity}, rank {}, input {input}, context {context}",
        bucket.id, bucket.rank
    );
    if let Some(ms) = bucket.ttft_ms {
        let _ = write!(head, ", ttft {ms} ms");
    }
    if let Some(tokens) = bucket.tokens_per_second {
        let _ = write!(head, ", {tokens} tokens/s");
    }
    lines.push(head);
    match &bucket.groups {
        Groups::Plain(group) => describe_group(lines, Stage::Plain, group),
        Groups::Pd { prefill, decode } => {
            describe_group(lines, Stage::Prefill, prefill);
            describe_group(lines, Stage::Decode, decode);
        }
    }
}

fn describe_group(lines: &mut Vec<String>, stage: Stage, group: &Group) {
    let members = match &group.worker_ids {
        None => format!("every {stage} engine"),
        Some(ids) if ids.is_empty() => "no engine".to_owned(),
        Some(ids) => ids
            .iter()
            .map(|id| id.as_str())
            .collect::<Vec<_>>()
            .join(", "),
    };
    lines.push(format!(
        "     {stage}: {}, {}, members: {members}",
        policy(&group.policy),
        admission(&group.admission)
    ));
}

fn policy(params: &PolicyParams) -> String {
    match params {
        PolicyParams::RoundRobin
        | PolicyParams::Random
        | PolicyParams::LeastLoad
        | PolicyParams::SessionAware => params.kind().to_string(),
        PolicyParams::PowerOfTwo(tuning) => {
            format!("{} (choices {})", params.kind(), tuning.choices())
        }
        PolicyParams::Sticky(tuning) => {
            let fallback = tuning.fallback.params().kind();
            format!("{} (fallback {fallback})", params.kind())
        }
        PolicyParams::CacheAware(tuning) => cache_aware(tuning),
    }
}

fn admission(limits: &AdmissionLimits) -> String {
    let rows = [
        ("max_running_requests", limits.max_running_requests),
        ("max_waiting_requests", limits.max_waiting_requests),
        ("max_kv_tokens", limits.max_kv_tokens),
        (
            "max_pending_prefill_tokens",
            limits.max_pending_prefill_tokens,
        ),
        ("max_inflight_requests", limits.max_inflight_requests),
    ];
    let caps: Vec<String> = rows
        .iter()
        .filter_map(|(name, cap)| cap.map(|cap| format!("{name} {cap}")))
        .collect();
    if caps.is_empty() {
        "no caps".to_owned()
    } else {
        caps.join(", ")
    }
}

/// The type, and every knob that is not at its default.
fn cache_aware(tuning: &CacheAwareParams) -> String {
    let shown = tuning.settings();
    let default = CacheAwareParams::default().settings();
    let changed: Vec<String> = shown
        .into_iter()
        .zip(default)
        .filter(|(shown, default)| shown != default)
        .map(|((name, value), _)| format!("{name} {value}"))
        .collect();
    match changed.is_empty() {
        true => PolicyKind::CacheAware.to_string(),
        false => format!("{} ({})", PolicyKind::CacheAware, changed.join(", ")),
    }
}
