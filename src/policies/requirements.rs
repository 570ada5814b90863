//! What must be prepared for a request so that its policies can work.
//!
//! Collected over every group of a model, their admission caps and nested fallbacks, so that
//! nobody prepares what nobody reads and no override goes without. Source: design §6
//! "Requirements come from all configured policies".

use crate::policies::{AdmissionLimits, PolicyParams};

/// The needs of a policy, a group or a whole model; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requirements {
    /// Token ids of the prompt, not only their number.
    pub token_ids: bool,
    /// The value of the session header.
    pub session_key: bool,
    /// The value of the routing-key header.
    pub routing_key: bool,
    /// Engine reports.
    pub loads: bool,
    /// Who holds which prefix.
    pub prefixes: bool,
    /// Guards that remember when they were taken.
    pub dispatch_timestamps: bool,
}

impl Requirements {
    /// What either needs.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            token_ids: self.token_ids || other.token_ids,
            session_key: self.session_key || other.session_key,
            routing_key: self.routing_key || other.routing_key,
            loads: self.loads || other.loads,
            prefixes: self.prefixes || other.prefixes,
            dispatch_timestamps: self.dispatch_timestamps || other.dispatch_timestamps,
        }
    }

    /// What one group needs: its policy with the nested fallback, and its caps.
    #[must_use]
    pub const fn of(policy: &PolicyParams, admission: &AdmissionLimits) -> Self {
        of_policy(policy).and(of_admission(admission))
    }
}

const fn of_policy(policy: &PolicyParams) -> Requirements {
    let none = Requirements {
        token_ids: false,
        session_key: false,
        routing_key: false,
        loads: false,
        prefixes: false,
        dispatch_timestamps: false,
    };
    match policy {
        PolicyParams::RoundRobin | PolicyParams::Random => none,
        PolicyParams::PowerOfTwo(_) => Requirements {
            loads: true,
            ..none
        },
        PolicyParams::LeastLoad => Requirements {
            loads: true,
            dispatch_timestamps: true,
            ..none
        },
        // Its fallback is power_of_two.
        PolicyParams::SessionAware => Requirements {
            session_key: true,
            loads: true,
            ..none
        },
        PolicyParams::Sticky(sticky) => Requirements {
            routing_key: true,
            ..of_policy(&sticky.fallback.params())
        },
        PolicyParams::CacheAware(_) => Requirements {
            token_ids: true,
            loads: true,
            prefixes: true,
            ..none
        },
    }
}

/// The in-flight cap reads a counter of this router; the others read reports.
const fn of_admission(limits: &AdmissionLimits) -> Requirements {
    Requirements {
        token_ids: false,
        session_key: false,
        routing_key: false,
        loads: limits.max_running_requests.is_some()
            || limits.max_waiting_requests.is_some()
            || limits.max_kv_tokens.is_some()
            || limits.max_pending_prefill_tokens.is_some(),
        prefixes: false,
        dispatch_timestamps: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::PowerOfTwoParams;

    #[test]
    fn caps_on_reports_need_reports_and_the_inflight_cap_does_not() {
        let of = |limits| Requirements::of(&PolicyParams::Random, &limits);
        let inflight = AdmissionLimits {
            max_inflight_requests: Some(1),
            ..AdmissionLimits::default()
        };
        assert_eq!(of(inflight), Requirements::default());
        let capped: [fn(&mut AdmissionLimits) -> &mut Option<u64>; 4] = [
            |limits| &mut limits.max_running_requests,
            |limits| &mut limits.max_waiting_requests,
            |limits| &mut limits.max_kv_tokens,
            |limits| &mut limits.max_pending_prefill_tokens,
        ];
        for cap in capped {
            let mut limits = inflight;
            *cap(&mut limits) = Some(1);
            assert!(of(limits).loads, "{limits:?}");
        }
    }

    #[test]
    fn needs_add_up() {
        let power = PolicyParams::PowerOfTwo(PowerOfTwoParams::default());
        let ids = Requirements {
            token_ids: true,
            ..Requirements::default()
        };
        let both = Requirements::of(&power, &AdmissionLimits::default()).and(ids);
        assert!(
            both.token_ids && both.loads && !both.session_key,
            "{both:?}"
        );
    }
}
