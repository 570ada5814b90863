//! What one engine reports, and the sum over its ranks.
//!
//! Pure arithmetic; freshness belongs to the table. What is not known is `None`, never zero.
//! Source: policy-semantics §7, engine-wire §2.4.

use tokio::time::Instant;

/// One report of one rank, as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Requests in the running batch.
    pub running_requests: u64,
    /// Requests in the waiting queue.
    pub waiting_requests: u64,
    /// KV tokens in use.
    pub used_tokens: u64,
    /// KV capacity, tokens; 0 is unknown.
    pub max_total_tokens: u64,
    /// The extension of newer engines.
    pub native: Option<NativeReport>,
}

/// The extension of one report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeReport {
    /// Prompt tokens that wait for prefill, cache hits excluded.
    pub waiting_uncached_tokens: u64,
    /// KV tokens used plus those of queued requests.
    pub total_tokens: u64,
    /// The scheduler's limit on running requests; 0 is unknown.
    pub max_running_requests: u64,
    /// Prompt tokens computed since the engine started.
    pub prefilled_tokens: u64,
    /// Time that took, microseconds.
    pub prefill_busy_us: u64,
}

/// The last report of one rank, with what the one before it tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankLoad {
    /// The report.
    pub report: Report,
    /// When it arrived here.
    pub at: Instant,
    /// Prefill tokens per second since the report before; `None` unless both counters grew.
    pub prefill_rate: Option<f64>,
}

impl RankLoad {
    /// `report`, which arrived at `at` after `previous`.
    #[must_use]
    pub fn after(previous: Option<&Self>, report: Report, at: Instant) -> Self {
        let before = previous.and_then(|previous| previous.report.native);
        let grown = report.native.zip(before).and_then(|(now, before)| {
            let tokens = now.prefilled_tokens.checked_sub(before.prefilled_tokens)?;
            let busy = now.prefill_busy_us.checked_sub(before.prefill_busy_us)?;
            (tokens > 0 && busy > 0).then(|| 1e6 * tokens as f64 / busy as f64)
        });
        Self {
            report,
            at,
            prefill_rate: grown,
        }
    }

    /// The extension, if the capacities beside it are known.
    const fn native(&self) -> Option<&NativeReport> {
        match &self.report.native {
            Some(native) if self.report.max_total_tokens > 0 && native.max_running_requests > 0 => {
                Some(native)
            }
            Some(_) | None => None,
        }
    }
}

/// One engine's load, summed over its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineLoad {
    /// Requests in the running batch.
    pub running_requests: u64,
    /// Requests in the waiting queue.
    pub waiting_requests: u64,
    /// KV tokens in use.
    pub used_tokens: u64,
    /// KV capacity, tokens.
    pub max_total_tokens: u64,
    /// The extension, when every rank sends it with valid capacities.
    pub native: Option<NativeLoad>,
    /// Local arrival time of the oldest rank's report.
    pub captured_at: Instant,
}

/// The extension, summed over the ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeLoad {
    /// Prompt tokens that wait for prefill, cache hits excluded.
    pub waiting_uncached_tokens: u64,
    /// KV tokens used plus those of queued requests.
    pub total_tokens: u64,
    /// The scheduler's limit on running requests.
    pub max_running_requests: u64,
    /// Time the waiting tokens need at the measured prefill rate, milliseconds.
    pub estimated_prefill_queue_ms: Option<f64>,
}

impl EngineLoad {
    /// The sum over all ranks of an engine; `None` of none. Sums saturate.
    #[must_use]
    pub fn sum<'a>(ranks: impl Iterator<Item = &'a RankLoad> + Clone) -> Option<Self> {
        let sum = |of: fn(&Report) -> u64| {
            let numbers = ranks.clone().map(|rank| of(&rank.report));
            numbers.fold(0, u64::saturating_add)
        };
        Some(Self {
            running_requests: sum(|report| report.running_requests),
            waiting_requests: sum(|report| report.waiting_requests),
            used_tokens: sum(|report| report.used_tokens),
            max_total_tokens: sum(|report| report.max_total_tokens),
            native: NativeLoad::sum(ranks.clone()),
            captured_at: ranks.map(|rank| rank.at).min()?,
        })
    }
}

impl NativeLoad {
    fn sum<'a>(ranks: impl Iterator<Item = &'a RankLoad> + Clone) -> Option<Self> {
        if !ranks.clone().all(|rank| rank.native().is_some()) {
            return None;
        }
        let sum = |of: fn(&NativeReport) -> u64| {
            let numbers = ranks.clone().filter_map(|rank| rank.native().map(of));
            numbers.fold(0, u64::saturating_add)
        };
        let waiting_uncached_tokens = sum(|native| native.waiting_uncached_tokens);
        let rates = ranks.clone().map(|rank| rank.prefill_rate);
        let rate: Option<f64> = rates.sum();
        Some(Self {
            waiting_uncached_tokens,
            total_tokens: sum(|native| native.total_tokens),
            max_running_requests: sum(|native| native.max_running_requests),
            estimated_prefill_queue_ms: rate
                .map(|rate| 1000.0 * waiting_uncached_tokens as f64 / rate),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn native(tokens: u64, busy_us: u64) -> NativeReport {
        NativeReport {
            waiting_uncached_tokens: 2400,
            total_tokens: 6000,
            max_running_requests: 64,
            prefilled_tokens: tokens,
            prefill_busy_us: busy_us,
        }
    }

    fn report(native: Option<NativeReport>) -> Report {
        Report {
            running_requests: 2,
            waiting_requests: 3,
            used_tokens: 4096,
            max_total_tokens: 100_000,
            native,
        }
    }

    fn two(before: Report, now: Report) -> RankLoad {
        let at = Instant::now();
        RankLoad::after(Some(&RankLoad::after(None, before, at)), now, at)
    }

    #[test]
    fn the_worked_estimate_of_the_reference() {
        let before = report(Some(native(5000, 1_000_000)));
        let now = report(Some(native(17_000, 2_500_000)));
        let rank = two(before, now);
        assert_eq!(rank.prefill_rate, Some(8000.0));
        let load = EngineLoad::sum([rank].iter()).unwrap();
        assert_eq!(load.native.unwrap().estimated_prefill_queue_ms, Some(300.0));
    }

    #[test]
    fn there_is_no_rate_unless_both_counters_grew() {
        let rows = [
            ((5000, 100), (5000, 100)), // a heartbeat
            ((5000, 100), (5000, 200)),
            ((5000, 100), (6000, 100)),
            ((5000, 100), (4000, 200)), // counters of a new process
            ((5000, 100), (6000, 50)),
        ];
        for ((tokens, busy), (later, busier)) in rows {
            let before = report(Some(native(tokens, busy)));
            let rank = two(before, report(Some(native(later, busier))));
            assert_eq!(rank.prefill_rate, None, "{later} {busier}");
        }
        let full = report(Some(native(6000, 200)));
        assert_eq!(two(report(None), full).prefill_rate, None);
        assert_eq!(
            RankLoad::after(None, full, Instant::now()).prefill_rate,
            None
        );
        assert!(two(report(Some(native(0, 0))), full).prefill_rate.is_some());
    }

    #[test]
    fn ranks_are_summed_and_the_oldest_gives_the_time() {
        let at = Instant::now();
        let older = RankLoad::after(None, report(Some(native(0, 0))), at);
        let newer = RankLoad::after(None, older.report, at + Duration::from_secs(1));
        let load = EngineLoad::sum([newer, older].iter()).unwrap();
        assert_eq!(load.captured_at, at);
        let basic = (load.running_requests, load.waiting_requests);
        assert_eq!(basic, (4, 6));
        assert_eq!((load.used_tokens, load.max_total_tokens), (8192, 200_000));
        let native = load.native.unwrap();
        assert_eq!(native.waiting_uncached_tokens, 4800);
        assert_eq!(
            (native.total_tokens, native.max_running_requests),
            (12_000, 128)
        );
        assert_eq!(EngineLoad::sum([].iter()), None);
    }

    #[test]
    fn one_rank_without_a_valid_extension_takes_it_from_the_engine_and_basic_survives() {
        let good = RankLoad::after(None, report(Some(native(0, 0))), Instant::now());
        let mut no_capacity = good;
        no_capacity.report.max_total_tokens = 0;
        let mut no_limit = good;
        no_limit.report.native = Some(NativeReport {
            max_running_requests: 0,
            ..native(0, 0)
        });
        let mut basic = good;
        basic.report.native = None;
        for bad in [no_capacity, no_limit, basic] {
            let load = EngineLoad::sum([good, bad].iter()).unwrap();
            assert_eq!(load.native, None);
            assert_eq!(load.running_requests, 4);
        }
    }

    #[test]
    fn one_rank_without_a_rate_takes_the_estimate_from_the_engine() {
        let at = Instant::now();
        let with = two(report(Some(native(0, 0))), report(Some(native(100, 100))));
        let without = RankLoad::after(None, with.report, at);
        let estimate = |ranks: &[RankLoad]| {
            let native = EngineLoad::sum(ranks.iter()).unwrap().native.unwrap();
            native.estimated_prefill_queue_ms
        };
        assert_eq!(estimate(&[with, with]), Some(2.4));
        assert_eq!(estimate(&[with, without]), None);
    }

    #[test]
    fn sums_of_the_ends_of_the_range_saturate() {
        let most = Report {
            running_requests: u64::MAX,
            ..report(Some(NativeReport {
                total_tokens: u64::MAX,
                ..native(0, 0)
            }))
        };
        let rank = RankLoad::after(None, most, Instant::now());
        let load = EngineLoad::sum([rank, rank].iter()).unwrap();
        assert_eq!(load.running_requests, u64::MAX);
        assert_eq!(load.native.unwrap().total_tokens, u64::MAX);
    }
}
