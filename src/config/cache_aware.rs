//! The tuning of `cache_aware`. Defaults and ranges: policy-semantics §16.
//!
//! The single values have been checked by `policy` when these functions run.

use crate::config::reader::{Fields, Place, Problems};
use crate::config::scalars::{boolean, positive, real, unsigned};
use crate::policies::{CacheAwareParams, PowerOfTwoParams};

/// The parameters as written, defaults where nothing is; `null` is the default too. No floor on
/// matched tokens is written 0.
pub(super) fn params(problems: &mut Problems, fields: &Fields<'_>) -> Option<CacheAwareParams> {
    let default = CacheAwareParams::default();
    let number =
        |problems: &mut Problems, key, default| problems.setting(fields, key, unsigned, default);
    let any = || real("", |_| true);
    let choices = number(problems, "min_load_choices", 2)?;
    let limit = problems.optional(fields, "worker_queue_limit", unsigned)?;
    let floor = problems.optional(fields, "saturation_queue_floor", unsigned)?;
    let params = CacheAwareParams {
        min_matched_tokens: Some(number(problems, "min_matched_tokens", 1024)?),
        min_match_ratio: problems.optional(fields, "min_match_ratio", any())?,
        candidate_min_workers: number(
            problems,
            "candidate_min_workers",
            default.candidate_min_workers,
        )?,
        candidate_ratio: problems.setting(
            fields,
            "candidate_ratio",
            any(),
            default.candidate_ratio,
        )?,
        candidate_max_workers: number(
            problems,
            "candidate_max_workers",
            default.candidate_max_workers,
        )?,
        switch_margin_tokens: number(
            problems,
            "switch_margin_tokens",
            default.switch_margin_tokens,
        )?,
        pressure_guard: problems.setting(
            fields,
            "pressure_guard",
            boolean,
            default.pressure_guard,
        )?,
        pressure_abs_threshold_tokens: number(
            problems,
            "pressure_abs_threshold_tokens",
            default.pressure_abs_threshold_tokens,
        )?,
        pressure_abs_threshold_ms: problems.optional(fields, "pressure_abs_threshold_ms", any())?,
        pressure_rel_threshold: problems.setting(
            fields,
            "pressure_rel_threshold",
            any(),
            default.pressure_rel_threshold,
        )?,
        worker_queue_limit: limit,
        saturation_queue_floor: floor,
        min_load_choices: PowerOfTwoParams::try_new(usize::try_from(choices).ok()?).ok()?,
    };
    match params.check() {
        Ok(params) => Some(params),
        Err(error) => {
            problems.add(&fields.place_of(error.parameter), error.rule);
            None
        }
    }
}

/// Pairs of `cache_aware` keys. Defaults: policy-semantics §16.
pub(super) fn together(problems: &mut Problems, fields: &Fields<'_>) {
    let mut number = |key, default| {
        problems
            .optional(fields, key, positive)
            .flatten()
            .or(default)
    };
    let least = number("candidate_min_workers", Some(8));
    let most = number("candidate_max_workers", Some(32));
    let floor = number("saturation_queue_floor", None);
    let limit = number("worker_queue_limit", None);
    let place = |keys: [&str; 2]| -> Place {
        let set = keys.into_iter().find(|key| fields.get(key).is_some());
        fields.place_of(set.unwrap_or(keys[0]))
    };
    if let (Some(least), Some(most)) = (least, most)
        && least > most
    {
        let problem =
            format!("candidate_min_workers {least} is above candidate_max_workers {most}");
        problems.add(
            &place(["candidate_min_workers", "candidate_max_workers"]),
            problem,
        );
    }
    if let Some(floor) = floor {
        let at = fields.place_of("saturation_queue_floor");
        match limit {
            None => problems.add(&at, "needs `worker_queue_limit`"),
            Some(limit) if floor > limit => {
                problems.add(
                    &at,
                    format_args!("{floor} is above worker_queue_limit {limit}"),
                );
            }
            Some(_) => {}
        }
    }
}
