//! The sampling contract of a model: which values its requests may ask for.
//!
//! Plain data, like everything in [`types`](crate::config): every number is inside the domain of
//! its parameter, no band is empty, and bands stand under [`Conflict::Reject`] only. What it does
//! to a request is `server::sampling`. Source: http-and-operations §8.

use std::collections::BTreeMap;
use std::fmt;

/// What a model fixes. Empty by default, and then no request is looked at.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// The allowed values, by parameter.
    pub overrides: BTreeMap<SamplingParam, Allowed>,
    /// What happens to a request that asks for something else. Never `Allow` without overrides.
    pub conflict: Conflict,
}

/// A body field that a contract can fix. Ordered as in the table of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SamplingParam {
    /// 0 to 2.
    Temperature,
    /// Above 0, up to 1.
    TopP,
    /// A whole number from 1 on; -1, the whole vocabulary, only outside a band.
    TopK,
    /// 0 to 1.
    MinP,
    /// Above 0, up to 2.
    RepetitionPenalty,
    /// -2 to 2.
    FrequencyPenalty,
    /// -2 to 2.
    PresencePenalty,
    /// A whole number of answers, 1 to 128.
    N,
}

/// The values a contract allows for one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowed {
    /// This one, which is also the value of requests that give none.
    Exactly(Number),
    /// Any from `min` to `max`, both inclusive, `min` not above `max`. Requests that give none
    /// stay without.
    Between {
        /// The least.
        min: Number,
        /// The greatest.
        max: Number,
    },
}

/// A finite number that remembers whether it was written as an integer.
///
/// Shown as JSON: an integer without a point, anything else in the shortest form that reads back
/// as the same double.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Within ±(2^53 - 1), where doubles are exact.
    Whole(i64),
    /// Finite.
    Real(f64),
}

/// What happens to a request that contradicts a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conflict {
    /// It is refused with 400.
    #[default]
    Reject,
    /// Its value goes to the engine as sent.
    Allow,
}

// === impl SamplingParam ===

impl SamplingParam {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Temperature,
        Self::TopP,
        Self::TopK,
        Self::MinP,
        Self::RepetitionPenalty,
        Self::FrequencyPenalty,
        Self::PresencePenalty,
        Self::N,
    ];

    /// The body field, the key in a file and the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::TopK => "top_k",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::N => "n",
        }
    }

    /// The parameter with this name, compared exactly.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|param| param.as_str() == name)
    }
}

// === impl Allowed ===

impl Allowed {
    /// Whether `value` is one of them. Never for NaN.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        match self {
            Self::Exactly(number) => value == number.value(),
            Self::Between { min, max } => min.value() <= value && value <= max.value(),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(number) => number.fmt(f),
            Self::Between { min, max } => write!(f, "from {min} to {max}"),
        }
    }
}

// === impl Number ===

impl Number {
    /// As a double, exactly.
    #[must_use]
    pub const fn value(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            // `Debug` keeps the point of 1.0 and uses exponents: JSON either way.
            Self::Real(number) => write!(f, "{number:?}"),
        }
    }
}

// === impl Conflict ===

impl Conflict {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Reject, Self::Allow];

    /// As written in a file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Allow => "allow",
        }
    }
}
