//! Preference among compatible buckets by latency targets.
//!
//! Only reorders: no bucket is dropped, a pair stays whole, and a bucket that cannot serve is
//! passed over as before. `penalty = [slo_first and the target is given and missed] + [best_effort
//! and the target is given and met]`, summed over both targets; buckets of lower penalty come
//! first. Source: policy-semantics §19, bucket-first form.

/// What a target does to the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SloPreference {
    /// Nothing.
    #[default]
    Disabled,
    /// Buckets that meet the target come first.
    SloFirst,
    /// Buckets that do not meet it come first, so that the others stay free.
    BestEffort,
}

/// The preferences of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SloOrder {
    /// By time to first token.
    pub ttft: SloPreference,
    /// By tokens per second.
    pub tps: SloPreference,
}

/// What an operator expects of a bucket; `None` meets no target.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SloEstimates {
    /// Time to first token, milliseconds, finite and above zero.
    pub ttft_ms: Option<f64>,
    /// Generation speed, tokens per second, finite and above zero.
    pub tokens_per_second: Option<f64>,
}

/// What one request asks for; `None` changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SloTargets {
    /// Longest time to first token, milliseconds, finite and above zero.
    pub ttft_ms: Option<f64>,
    /// Lowest generation speed, tokens per second, finite and above zero.
    pub tokens_per_second: Option<f64>,
}

/// Whether a number can be a target or an estimate.
fn usable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

impl SloPreference {
    fn penalty(self, met: bool) -> usize {
        usize::from(match self {
            Self::Disabled => false,
            Self::SloFirst => !met,
            Self::BestEffort => met,
        })
    }
}

impl SloTargets {
    /// Whether an enabled target is no number above zero.
    pub(super) fn invalid(&self, order: SloOrder) -> bool {
        let wrong = |preference, target: Option<f64>| {
            preference != SloPreference::Disabled && target.is_some_and(|value| !usable(value))
        };
        wrong(order.ttft, self.ttft_ms) || wrong(order.tps, self.tokens_per_second)
    }
}

impl SloOrder {
    /// The highest penalty that these targets can give.
    pub(super) fn most(self, targets: &SloTargets) -> usize {
        let counts = |preference, target: Option<f64>| {
            usize::from(preference != SloPreference::Disabled && target.is_some())
        };
        counts(self.ttft, targets.ttft_ms) + counts(self.tps, targets.tokens_per_second)
    }

    /// How far a bucket with these estimates moves back.
    pub(super) fn penalty(self, estimates: &SloEstimates, targets: &SloTargets) -> usize {
        let known = |estimate: Option<f64>| estimate.filter(|value| usable(*value));
        let ttft = targets.ttft_ms.map_or(0, |target| {
            let met = known(estimates.ttft_ms).is_some_and(|value| value <= target);
            self.ttft.penalty(met)
        });
        let tps = targets.tokens_per_second.map_or(0, |target| {
            let met = known(estimates.tokens_per_second).is_some_and(|value| value >= target);
            self.tps.penalty(met)
        });
        ttft + tps
    }
}
