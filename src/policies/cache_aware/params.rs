//! The knobs of `cache_aware`: default, unit and range of each. Source: policy-semantics §16.

use crate::policies::{ParamsError, PowerOfTwoParams};

/// Checked parameters of `cache_aware`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheAwareParams {
    /// Floor on matched tokens, inclusive; `None` is no floor.
    pub min_matched_tokens: Option<u64>,
    /// Floor on matched divided by prompt tokens, inclusive, 0 to 1.
    pub min_match_ratio: Option<f64>,
    /// Least number of hits that are looked at, engines, at least 1.
    pub candidate_min_workers: u64,
    /// Share of the group's engines that are looked at, 0 to 1.
    pub candidate_ratio: f64,
    /// Largest number of hits that are looked at, engines, at least `candidate_min_workers`.
    pub candidate_max_workers: u64,
    /// Gap in uncached work within which the guard may act, tokens.
    pub switch_margin_tokens: u64,
    /// Whether the pressure guard acts at all.
    pub pressure_guard: bool,
    /// More waiting uncached tokens than this is materially more, tokens.
    pub pressure_abs_threshold_tokens: u64,
    /// More estimated queue time than this is materially more, milliseconds; used only where both
    /// engines have an estimate.
    pub pressure_abs_threshold_ms: Option<f64>,
    /// And more than this times the other, above 1.
    pub pressure_rel_threshold: f64,
    /// Soft gate: an engine with as many waiting requests is passed over, requests over all ranks,
    /// at least 1; `None` is no gate.
    pub worker_queue_limit: Option<u64>,
    /// When nobody waits less than this, gated holders are taken after all; at least 1, at most
    /// `worker_queue_limit`.
    pub saturation_queue_floor: Option<u64>,
    /// Engines that the fallback samples, at least 1.
    pub min_load_choices: PowerOfTwoParams,
}

/// Every number is finite ([`CacheAwareParams::check`]), so equality is an equivalence.
impl Eq for CacheAwareParams {}

impl Default for CacheAwareParams {
    fn default() -> Self {
        Self {
            min_matched_tokens: Some(1024),
            min_match_ratio: None,
            candidate_min_workers: 8,
            candidate_ratio: 0.05,
            candidate_max_workers: 32,
            switch_margin_tokens: 1024,
            pressure_guard: true,
            pressure_abs_threshold_tokens: 1024,
            pressure_abs_threshold_ms: None,
            pressure_rel_threshold: 1.5,
            worker_queue_limit: None,
            saturation_queue_floor: None,
            min_load_choices: PowerOfTwoParams::default(),
        }
    }
}

impl CacheAwareParams {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The first [`ParamsError`].
    pub fn check(self) -> Result<Self, ParamsError> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let rules = [
            (
                self.min_match_ratio.is_none_or(share),
                "min_match_ratio",
                "must be from 0 to 1",
            ),
            (
                self.candidate_min_workers >= 1,
                "candidate_min_workers",
                "must be at least 1",
            ),
            (
                share(self.candidate_ratio),
                "candidate_ratio",
                "must be from 0 to 1",
            ),
            (
                self.candidate_max_workers >= self.candidate_min_workers,
                "candidate_max_workers",
                "must be at least candidate_min_workers",
            ),
            (
                self.pressure_abs_threshold_ms
                    .is_none_or(|ms| ms.is_finite() && ms >= 0.0),
                "pressure_abs_threshold_ms",
                "must be at least 0",
            ),
            (
                self.pressure_rel_threshold.is_finite() && self.pressure_rel_threshold > 1.0,
                "pressure_rel_threshold",
                "must be above 1",
            ),
            (
                self.worker_queue_limit != Some(0),
                "worker_queue_limit",
                "must be at least 1",
            ),
            (
                self.saturation_queue_floor.is_none_or(|floor| {
                    floor >= 1 && self.worker_queue_limit.is_some_and(|limit| floor <= limit)
                }),
                "saturation_queue_floor",
                "must be from 1 to worker_queue_limit",
            ),
        ];
        match rules.into_iter().find(|(kept, ..)| !kept) {
            None => Ok(self),
            Some((_, parameter, rule)) => Err(ParamsError { parameter, rule }),
        }
    }

    /// Every setting under the name it has in a file, with its value as written there.
    #[must_use]
    pub fn settings(&self) -> [(&'static str, String); 13] {
        fn or_null<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "null".to_owned(), |value| value.to_string())
        }
        [
            (
                "min_matched_tokens",
                self.min_matched_tokens.unwrap_or(0).to_string(),
            ),
            ("min_match_ratio", or_null(self.min_match_ratio)),
            (
                "candidate_min_workers",
                self.candidate_min_workers.to_string(),
            ),
            ("candidate_ratio", self.candidate_ratio.to_string()),
            (
                "candidate_max_workers",
                self.candidate_max_workers.to_string(),
            ),
            (
                "switch_margin_tokens",
                self.switch_margin_tokens.to_string(),
            ),
            ("pressure_guard", self.pressure_guard.to_string()),
            (
                "pressure_abs_threshold_tokens",
                self.pressure_abs_threshold_tokens.to_string(),
            ),
            (
                "pressure_abs_threshold_ms",
                or_null(self.pressure_abs_threshold_ms),
            ),
            (
                "pressure_rel_threshold",
                self.pressure_rel_threshold.to_string(),
            ),
            ("worker_queue_limit", or_null(self.worker_queue_limit)),
            (
                "saturation_queue_floor",
                or_null(self.saturation_queue_floor),
            ),
            (
                "min_load_choices",
                self.min_load_choices.choices().to_string(),
            ),
        ]
    }

    /// How many of the hits of a group of `engines` engines are looked at: the share, within the
    /// two bounds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a group has far fewer engines than a double can count"
    )]
    pub fn candidates(&self, engines: usize) -> usize {
        let share = (self.candidate_ratio * engines as f64).ceil() as u64;
        let bound = share
            .max(self.candidate_min_workers)
            .min(self.candidate_max_workers);
        usize::try_from(bound).unwrap_or(usize::MAX).min(engines)
    }
}
