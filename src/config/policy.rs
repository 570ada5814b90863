//! The policy of one group: its type, its tuning keys and its admission caps.
//!
//! Every tuning key of every type is known and checked, so that a misplaced one is explained and a
//! wrong value is reported whatever the type is. Types the program does not have yet are refused
//! by name. Ranges: policy-semantics §16 and §20.

use crate::config::cache_aware;
use crate::config::reader::{At, Fields, Problems, Read, short};
use crate::config::scalars::{alternatives, boolean, positive, real, string, unsigned};
use crate::config::tree::Node;
use crate::ids::Stage;
use crate::policies::{
    AdmissionLimits, PolicyKind, PolicyParams, PowerOfTwoParams, StickyFallback, StickyParams,
};

const KEYS: [&str; 17] = [
    "type",
    "admission",
    "choices",
    "fallback",
    "min_matched_tokens",
    "min_match_ratio",
    "candidate_min_workers",
    "candidate_ratio",
    "candidate_max_workers",
    "switch_margin_tokens",
    "pressure_guard",
    "pressure_abs_threshold_tokens",
    "pressure_abs_threshold_ms",
    "pressure_rel_threshold",
    "worker_queue_limit",
    "saturation_queue_floor",
    "min_load_choices",
];

/// The policy and caps of a `stage` group.
pub(super) fn policy(
    problems: &mut Problems,
    group: &Fields<'_>,
    stage: Stage,
) -> Option<(PolicyParams, AdmissionLimits)> {
    let fields = problems.section(group, "policy", &KEYS)?;
    let kind = problems.setting(&fields, "type", kind, PolicyKind::PowerOfTwo);
    let sound = tuning(problems, &fields, kind);
    let admission = admission(problems, &fields);
    let params = params(problems, &fields, kind?, stage, sound)?;
    Some((params, admission?))
}

/// The type with this label; a dropped one is refused with its replacement.
pub(super) fn kind(node: &Node) -> Read<PolicyKind> {
    let label = string(node)?;
    if let Some(kind) = PolicyKind::parse(&label) {
        return Ok(kind);
    }
    let shown = short(&label);
    Err(match PolicyKind::replacement_of_dropped(&label) {
        Some(advice) => format!("`{shown}` is not a policy: {advice}"),
        None => {
            let labels = PolicyKind::ALL.map(PolicyKind::as_str);
            format!(
                "unknown policy `{shown}`, expected {}",
                alternatives(&labels)
            )
        }
    })
}

/// The parameters of a kind that the program has; the others are refused. `sound` says that the
/// tuning keys hold nothing wrong.
fn params(
    problems: &mut Problems,
    fields: &Fields<'_>,
    kind: PolicyKind,
    stage: Stage,
    sound: bool,
) -> Option<PolicyParams> {
    match kind {
        PolicyKind::RoundRobin => Some(PolicyParams::RoundRobin),
        PolicyKind::Random => Some(PolicyParams::Random),
        PolicyKind::PowerOfTwo => {
            let Some(at) = fields.get("choices") else {
                return Some(PolicyParams::default());
            };
            let choices = problems.value(&at, choices)?;
            Some(PolicyParams::PowerOfTwo(choices))
        }
        PolicyKind::LeastLoad => Some(PolicyParams::LeastLoad),
        PolicyKind::SessionAware => Some(PolicyParams::SessionAware),
        PolicyKind::Sticky => sticky(problems, fields),
        PolicyKind::CacheAware if stage == Stage::Decode => {
            let problem =
                "cache_aware serves plain and prefill groups only: use power_of_two for decode";
            problems.add(&fields.place_of("type"), problem);
            None
        }
        PolicyKind::CacheAware => sound
            .then(|| cache_aware::params(problems, fields))
            .flatten()
            .map(PolicyParams::CacheAware),
    }
}

fn sticky(problems: &mut Problems, fields: &Fields<'_>) -> Option<PolicyParams> {
    let default = StickyFallback::default();
    let fallback = problems.setting(fields, "fallback", fallback, default)?;
    Some(PolicyParams::Sticky(StickyParams { fallback }))
}

fn choices(node: &Node) -> Read<PowerOfTwoParams> {
    let choices = usize::try_from(unsigned(node)?).map_err(|error| error.to_string())?;
    PowerOfTwoParams::try_new(choices).map_err(|error| error.rule.to_owned())
}

/// The only type that reads `key`; `None` for keys of every type.
pub(super) fn owner(key: &str) -> Option<PolicyKind> {
    match key {
        "type" | "admission" => None,
        "choices" => Some(PolicyKind::PowerOfTwo),
        "fallback" => Some(PolicyKind::Sticky),
        _ => Some(PolicyKind::CacheAware),
    }
}

/// Checks the value of every tuning key, then whether the type reads it, then what must fit
/// together. Order: policy-semantics §20, "Check value errors before policy-dependency errors".
/// True when nothing was wrong.
fn tuning(problems: &mut Problems, fields: &Fields<'_>, kind: Option<PolicyKind>) -> bool {
    let before = problems.count();
    for (key, at) in fields.iter() {
        let Some(owner) = owner(key).filter(|_| KEYS.contains(&key)) else {
            continue;
        };
        // Read where the parameters are made.
        if kind == Some(owner) && matches!(key, "choices" | "fallback") {
            continue;
        }
        if !value(problems, key, &at) {
            continue;
        }
        if let Some(kind) = kind.filter(|kind| *kind != owner) {
            let problem = format!("`{key}` applies to {owner}, not to {kind}");
            problems.add(&at.place, problem);
        }
    }
    if kind == Some(PolicyKind::CacheAware) && problems.count() == before {
        cache_aware::together(problems, fields);
    }
    problems.count() == before
}

/// Whether the value of one tuning key is in range.
fn value(problems: &mut Problems, key: &str, at: &At<'_>) -> bool {
    problems.value(at, |node| tuning_value(key, node)).is_some()
}

/// Checks the range of one tuning key; says nothing of whether the policy uses it.
pub(super) fn tuning_value(key: &str, node: &Node) -> Read<()> {
    let share = "it must be from 0 to 1";
    match key {
        "min_matched_tokens" | "switch_margin_tokens" | "pressure_abs_threshold_tokens" => {
            unsigned(node).map(drop)
        }
        "min_match_ratio" | "candidate_ratio" => {
            real(share, |number| (0.0..=1.0).contains(&number))(node).map(drop)
        }
        "pressure_abs_threshold_ms" => {
            real("it must be at least 0", |number| number >= 0.0)(node).map(drop)
        }
        "pressure_rel_threshold" => {
            real("it must be above 1", |number| number > 1.0)(node).map(drop)
        }
        "pressure_guard" => boolean(node).map(drop),
        "fallback" => fallback(node).map(drop),
        _ => positive(node).map(drop),
    }
}

fn fallback(node: &Node) -> Read<StickyFallback> {
    let wanted = kind(node)?;
    StickyFallback::of(wanted).ok_or_else(|| {
        let allowed = PolicyKind::ALL.into_iter();
        let allowed = allowed.filter(|kind| StickyFallback::of(*kind).is_some());
        let labels: Vec<&str> = allowed.map(PolicyKind::as_str).collect();
        format!(
            "{wanted} cannot be a fallback, expected {}",
            alternatives(&labels)
        )
    })
}

fn admission(problems: &mut Problems, policy: &Fields<'_>) -> Option<AdmissionLimits> {
    let known = [
        "max_running_requests",
        "max_waiting_requests",
        "max_kv_tokens",
        "max_pending_prefill_tokens",
        "max_inflight_requests",
    ];
    let fields = problems.section(policy, "admission", &known)?;
    let caps = known.map(|key| problems.optional(&fields, key, unsigned));
    let [running, waiting, kv, pending, inflight] = caps;
    let limits = AdmissionLimits {
        max_running_requests: running.flatten(),
        max_waiting_requests: waiting.flatten(),
        max_kv_tokens: kv.flatten(),
        max_pending_prefill_tokens: pending.flatten(),
        max_inflight_requests: inflight.flatten(),
    };
    let zeros = limits.problems();
    for zero in &zeros {
        problems.add(&fields.place_of(zero.parameter), zero.rule);
    }
    (caps.iter().all(Option::is_some) && zeros.is_empty()).then_some(limits)
}
