//! How a pick can fail, and what the bucket loop does about it.

use thiserror::Error;

use crate::ids::WorkerId;
use crate::policies::Rejection;

/// One variant per outcome of design §4. The texts are for logs; clients get other words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PickError {
    /// No bucket supports the requested length. Only the bucket loop creates it.
    #[error("no bucket supports the requested length")]
    NoMatchingBucket,
    /// No eligible member, or a policy found nothing to choose.
    #[error("no candidates")]
    NoCandidates,
    /// A policy exhausted its candidates; every refusal it met, possibly none.
    #[error("no admissible engine ({})", list(.0))]
    NoAdmissibleEngine(Vec<Rejection>),
    /// The chosen engine failed its admission check.
    #[error("admission rejected ({0})")]
    AdmissionRejected(Rejection),
    /// A fact given to the resolver or a policy contradicts itself.
    #[error("invalid signal: {0}")]
    InvalidSignal(&'static str),
    /// A policy is attached where it cannot work.
    #[error("invalid configuration: {0}")]
    InvalidConfiguration(&'static str),
    /// A policy returned an engine that was not among its candidates.
    #[error("policy returned `{0}`, which is outside its candidates")]
    OutsideCandidates(WorkerId),
}

/// What the bucket loop does after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Try the next compatible bucket.
    Advance,
    /// End routing of this request at once.
    Stop,
}

impl PickError {
    /// What the bucket loop does with this error. Source: design §1 principle 5, policy-semantics §6.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::NoCandidates | Self::NoAdmissibleEngine(_) | Self::AdmissionRejected(_) => {
                Disposition::Advance
            }
            Self::NoMatchingBucket
            | Self::InvalidSignal(_)
            | Self::InvalidConfiguration(_)
            | Self::OutsideCandidates(_) => Disposition::Stop,
        }
    }
}

fn list(rejections: &[Rejection]) -> String {
    let shown: Vec<String> = rejections.iter().map(ToString::to_string).collect();
    shown.join(", ")
}
