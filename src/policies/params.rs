//! What an operator may tune in a policy: one place per knob for default, unit and range.

use crate::policies::{ParamsError, PolicyKind};

/// A policy type with its checked parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyParams {
    /// `round_robin`, nothing to tune.
    RoundRobin,
    /// `random`, nothing to tune.
    Random,
    /// `power_of_two`.
    PowerOfTwo(PowerOfTwoParams),
}

impl PolicyParams {
    /// The type these parameters belong to.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Self::RoundRobin => PolicyKind::RoundRobin,
            Self::Random => PolicyKind::Random,
            Self::PowerOfTwo(_) => PolicyKind::PowerOfTwo,
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
    /// Two. Source: policy-semantics §10.
    fn default() -> Self {
        Self { choices: 2 }
    }
}
