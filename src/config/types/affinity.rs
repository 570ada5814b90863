//! Where keys are read and how long their bindings last; what latency targets do.

use std::time::Duration;

/// Settings of `session_aware` and `sticky`. Source: contract §2 `affinity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// Of sessions. Default header `x-session-id`.
    pub session: AffinityKeys,
    /// Of routing keys. Default header `x-sgl-routing-key`.
    pub sticky: AffinityKeys,
}

/// Settings of one kind of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityKeys {
    /// The header that holds a key, a valid name in lower case.
    pub header: String,
    /// Age since the last use above which a binding is removed; above zero. Default 600 s.
    pub idle: Duration,
    /// From one removal to the next; above zero. Default 60 s.
    pub eviction_interval: Duration,
}

/// What the latency targets of requests do to the order of buckets. Source: contract §2 `slo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slo {
    /// Of time to first token, header `x-sgl-ttft-slo-ms`.
    pub ttft: SloMode,
    /// Of tokens per second, header `x-sgl-tps-slo`.
    pub tps: SloMode,
}

/// What one target does. Source: policy-semantics §19.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SloMode {
    /// Nothing; its header is not read.
    #[default]
    Disabled,
    /// Buckets that meet it come first.
    SloFirst,
    /// Buckets that do not meet it come first.
    BestEffort,
}

impl SloMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Disabled, Self::SloFirst, Self::BestEffort];

    /// As written in a file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::SloFirst => "slo_first",
            Self::BestEffort => "best_effort",
        }
    }
}
