//! The policy names an operator may write, and those the design dropped.

use std::fmt;

/// One of the seven policies of design §5, spelled as in files, flags and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Rotation.
    RoundRobin,
    /// Uniform draw.
    Random,
    /// Sample a few, take the one under less pressure.
    PowerOfTwo,
    /// Least loaded engine (`load_based`, the one historical name: design §7).
    LeastLoad,
    /// Session bindings.
    SessionAware,
    /// Routing-key bindings.
    Sticky,
    /// Prefix holders.
    CacheAware,
}

impl PolicyKind {
    /// All kinds, in the order in which errors list them.
    pub const ALL: [Self; 7] = [
        Self::RoundRobin,
        Self::Random,
        Self::PowerOfTwo,
        Self::LeastLoad,
        Self::SessionAware,
        Self::Sticky,
        Self::CacheAware,
    ];

    /// The label used in files, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::LeastLoad => "load_based",
            Self::SessionAware => "session_aware",
            Self::Sticky => "sticky",
            Self::CacheAware => "cache_aware",
        }
    }

    /// The kind with this label, exactly as written.
    #[must_use]
    pub fn parse(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == label)
    }

    /// What replaces a policy that the design dropped; `None` for a name it never had.
    ///
    /// Source: design §7 "Reject these dropped options", policy-semantics §21.
    #[must_use]
    pub fn replacement_of_dropped(label: &str) -> Option<&'static str> {
        match label {
            "fused_score" | "score_policy" => Some(
                "score composition was removed: attach cache_aware, load_based or power_of_two to the group",
            ),
            "legacy_host_affinity" => {
                Some("same-host preference was removed: use power_of_two for decode groups")
            }
            "cache_aware_zmq" => Some("it was renamed: use cache_aware"),
            "power_of_n" => Some("use power_of_two with `choices`"),
            "least_load" => Some("it is spelled load_based"),
            _ => None,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
