//! What cache-aware picks count, over all policy objects and reloads. Registered and rendered by
//! the server, which adds the prefix; explained picks count nothing.
//! Names: policy-semantics §22.

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter};

use crate::policies::pressure::Source;
use crate::series::Counters;
use crate::state::prefix::{PrefixAnswer, Unavailable};

/// The counters.
#[derive(Debug, Clone)]
pub struct CacheCounters {
    /// Hard checks of prefix holders.
    pub(super) admission_evaluated: IntCounter,
    /// Those that refused.
    pub(super) admission_rejected: IntCounter,
    /// Pairs that the pressure guard compared.
    pub(super) guard_compared: IntCounter,
    /// Pairs whose outcome it changed.
    pub(super) guard_overrode: IntCounter,
    /// By `source`: what the pressure of holders was read from.
    monitor_decisions: Counters,
    /// By `result`: how prefix lookups ended.
    lookups: Counters,
    /// Hashing and looking up, or the remote query, seconds.
    pub(super) lookup_seconds: Histogram,
}

/// From a microsecond to the usual deadline of a remote index, seconds.
const SECONDS: [f64; 13] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 5e-2, 1e-1,
];

impl Default for CacheCounters {
    fn default() -> Self {
        let counter = |name: &str, help: &str| IntCounter::new(name, help).expect("a valid name");
        let family = |name: &str, help: &str, label: &str| Counters::new(name, help, &[label]);
        let seconds = HistogramOpts::new("cache_lookup_seconds", "hashing and looking up a prompt")
            .buckets(SECONDS.to_vec());
        let counters = Self {
            admission_evaluated: counter(
                "cache_admission_evaluated_total",
                "hard admission checks of prefix holders",
            ),
            admission_rejected: counter(
                "cache_admission_rejected_total",
                "prefix holders that hard admission refused",
            ),
            guard_compared: counter(
                "cache_pressure_guard_compared_total",
                "pairs of prefix holders that the pressure guard compared",
            ),
            guard_overrode: counter(
                "cache_pressure_guard_override_total",
                "pairs of prefix holders whose order the pressure guard changed",
            ),
            monitor_decisions: family(
                "cache_monitor_decisions_total",
                "what the pressure of prefix holders was read from",
                "source",
            ),
            lookups: family(
                "cache_lookups_total",
                "prefix lookups by how they ended",
                "result",
            ),
            lookup_seconds: Histogram::with_opts(seconds).expect("valid bounds"),
        };
        let results = ["match", "miss", "no_signal", "rejected"];
        for result in results
            .into_iter()
            .chain(Unavailable::ALL.map(Unavailable::as_str))
        {
            counters.lookups.inc_by(&[result], 0);
        }
        for source in Source::ALL {
            counters.monitor_decisions.inc_by(&[source.as_str()], 0);
        }
        counters
    }
}

impl CacheCounters {
    /// Everything, to be registered.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![
            Box::new(self.admission_evaluated.clone()),
            Box::new(self.admission_rejected.clone()),
            Box::new(self.guard_compared.clone()),
            Box::new(self.guard_overrode.clone()),
            self.monitor_decisions.collector(),
            self.lookups.collector(),
            Box::new(self.lookup_seconds.clone()),
        ]
    }

    pub(super) fn looked_up(&self, answer: Option<&PrefixAnswer>) {
        let result = match answer {
            None => "rejected",
            Some(PrefixAnswer::NoSignal) => "no_signal",
            Some(PrefixAnswer::Unavailable(why)) => why.as_str(),
            Some(PrefixAnswer::Matches(matches)) if matches.is_empty() => "miss",
            Some(PrefixAnswer::Matches(_)) => "match",
        };
        self.lookups.inc(&[result]);
    }

    pub(super) fn compared_by(&self, source: Source) {
        self.monitor_decisions.inc(&[source.as_str()]);
    }
}
