//! What an operator may tune in a policy: one place per knob for default, unit and range.

use crate::policies::{CacheAwareParams, ParamsError, PolicyKind};

/// A policy type with its checked parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyParams {
    /// `round_robin`, nothing to tune.
    RoundRobin,
    /// `random`, nothing to tune.
    Random,
    /// `power_of_two`.
    PowerOfTwo(PowerOfTwoParams),
    /// `load_based`, nothing to tune.
    LeastLoad,
    /// `session_aware`, nothing to tune.
    SessionAware,
    /// `sticky`.
    Sticky(StickyParams),
    /// `cache_aware`.
    CacheAware(CacheAwareParams),
}

impl PolicyParams {
    /// The type these parameters belong to.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Self::RoundRobin => PolicyKind::RoundRobin,
            Self::Random => PolicyKind::Random,
            Self::PowerOfTwo(_) => PolicyKind::PowerOfTwo,
            Self::LeastLoad => PolicyKind::LeastLoad,
            Self::SessionAware => PolicyKind::SessionAware,
            Self::Sticky(_) => PolicyKind::Sticky,
            Self::CacheAware(_) => PolicyKind::CacheAware,
        }
    }
}

impl Default for PolicyParams {
    /// `power_of_two` with its defaults: contract §2, "buckets omitted".
    fn default() -> Self {
        Self::PowerOfTwo(PowerOfTwoParams::default())
    }
}

/// Parameters of `power_of_two`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerOfTwoParams {
    choices: usize,
}

impl PowerOfTwoParams {
    /// The default. Source: policy-semantics §10.
    pub const TWO: Self = Self { choices: 2 };

    /// * `choices`: engines sampled per pick, at least 1 (1 is a uniform draw plus admission).
    ///
    /// # Errors
    /// [`ParamsError`] when `choices` is 0.
    pub const fn try_new(choices: usize) -> Result<Self, ParamsError> {
        if choices == 0 {
            return Err(ParamsError {
                parameter: "choices",
                rule: "must be at least 1",
            });
        }
        Ok(Self { choices })
    }

    /// Engines sampled per pick.
    #[must_use]
    pub const fn choices(self) -> usize {
        self.choices
    }
}

impl Default for PowerOfTwoParams {
    fn default() -> Self {
        Self::TWO
    }
}

/// Parameters of `sticky`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StickyParams {
    /// Places new and moved keys, and requests without a key.
    pub fallback: StickyFallback,
}

/// What may place keys for `sticky`; each with its own defaults and without caps.
///
/// Source: policy-semantics §15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StickyFallback {
    /// The default.
    #[default]
    RoundRobin,
    /// A uniform draw.
    Random,
    /// Two choices.
    PowerOfTwo,
    /// The least loaded engine.
    LeastLoad,
}

impl StickyFallback {
    /// The fallback of this kind; `None` for a kind that cannot be one.
    #[must_use]
    pub const fn of(kind: PolicyKind) -> Option<Self> {
        match kind {
            PolicyKind::RoundRobin => Some(Self::RoundRobin),
            PolicyKind::Random => Some(Self::Random),
            PolicyKind::PowerOfTwo => Some(Self::PowerOfTwo),
            PolicyKind::LeastLoad => Some(Self::LeastLoad),
            PolicyKind::SessionAware | PolicyKind::Sticky | PolicyKind::CacheAware => None,
        }
    }

    /// The policy it stands for.
    #[must_use]
    pub const fn params(self) -> PolicyParams {
        match self {
            Self::RoundRobin => PolicyParams::RoundRobin,
            Self::Random => PolicyParams::Random,
            Self::PowerOfTwo => PolicyParams::PowerOfTwo(PowerOfTwoParams { choices: 2 }),
            Self::LeastLoad => PolicyParams::LeastLoad,
        }
    }
}
