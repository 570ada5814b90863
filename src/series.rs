//! Series of a metric by their labels, found without a lock.
//!
//! The `prometheus` crate looks a series up under a lock that every request would share. Here each
//! thread remembers the series it has met, so that a busy thread counts with a hash of the labels
//! and one atomic addition. Label values must be a closed set: what a thread remembers is never
//! forgotten, as the metric itself keeps every series it ever had. It defines no metric.

use std::cell::RefCell;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::LocalKey;

use hashbrown::{DefaultHashBuilder, HashTable};
use prometheus::core::Collector;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

/// One series that a thread has met.
struct Met<M> {
    metric: u64,
    labels: Box<[Box<str>]>,
    series: M,
}

/// What one thread has met.
struct Known<M> {
    hasher: DefaultHashBuilder,
    series: RefCell<HashTable<Met<M>>>,
}

impl<M> Default for Known<M> {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            series: RefCell::default(),
        }
    }
}

thread_local! {
    static COUNTERS: Known<IntCounter> = Known::default();
    static HISTOGRAMS: Known<Histogram> = Known::default();
}

/// A number that no other metric of this process has.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn with<M>(
    known: &'static LocalKey<Known<M>>,
    (metric, labels): (u64, &[&str]),
    make: impl FnOnce() -> M,
    observe: impl FnOnce(&M),
) {
    known.with(|known| {
        let hash = known.hasher.hash_one((metric, labels));
        let mut series = known.series.borrow_mut();
        let same = |met: &Met<M>| {
            met.metric == metric
                && met
                    .labels
                    .iter()
                    .map(AsRef::as_ref)
                    .eq(labels.iter().copied())
        };
        if let Some(met) = series.find(hash, same) {
            return observe(&met.series);
        }
        let rehash = |met: &Met<M>| {
            let labels: Vec<&str> = met.labels.iter().map(AsRef::as_ref).collect();
            known.hasher.hash_one((met.metric, labels.as_slice()))
        };
        let met = Met {
            metric,
            labels: labels.iter().map(|label| Box::from(*label)).collect(),
            series: make(),
        };
        observe(&series.insert_unique(hash, met, rehash).get().series);
    });
}

/// Counters by labels.
#[derive(Debug, Clone)]
pub struct Counters {
    all: IntCounterVec,
    number: u64,
}

impl From<IntCounterVec> for Counters {
    fn from(all: IntCounterVec) -> Self {
        Self {
            all,
            number: number(),
        }
    }
}

impl Counters {
    /// The metric, to be registered.
    #[must_use]
    pub fn collector(&self) -> Box<dyn Collector> {
        Box::new(self.all.clone())
    }

    /// Adds one to the series of `labels`, in the order of the metric's label names.
    pub fn inc(&self, labels: &[&str]) {
        self.inc_by(labels, 1);
    }

    /// Adds `count` to the series of `labels`, in the order of the metric's label names.
    ///
    /// # Panics
    /// When the number of labels is not the metric's.
    pub fn inc_by(&self, labels: &[&str], count: u64) {
        let make = || self.all.with_label_values(labels);
        with(&COUNTERS, (self.number, labels), make, |series| {
            series.inc_by(count);
        });
    }
}

/// Histograms by labels.
#[derive(Debug)]
pub struct Histograms {
    all: HistogramVec,
    number: u64,
}

impl From<HistogramVec> for Histograms {
    fn from(all: HistogramVec) -> Self {
        Self {
            all,
            number: number(),
        }
    }
}

impl Histograms {
    /// Books `value` in the series of `labels`, in the order of the metric's label names.
    ///
    /// # Panics
    /// When the number of labels is not the metric's.
    pub fn observe(&self, labels: &[&str], value: f64) {
        let make = || self.all.with_label_values(labels);
        with(&HISTOGRAMS, (self.number, labels), make, |series| {
            series.observe(value);
        });
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, Opts};

    use super::*;

    fn counters(name: &str) -> Counters {
        IntCounterVec::new(Opts::new(name, "help"), &["a", "b"])
            .unwrap()
            .into()
    }

    #[test]
    fn threads_count_into_one_series_and_labels_and_metrics_are_told_apart() {
        let (first, second) = (counters("first"), counters("second"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..1000 {
                        first.inc(&["x", "y"]);
                        first.inc_by(&["x", "z"], 2);
                        second.inc(&["x", &(round % 100).to_string()]);
                    }
                });
            }
        });
        let of =
            |counters: &Counters, labels: &[&str]| counters.all.with_label_values(labels).get();
        assert_eq!(of(&first, &["x", "y"]), 4000);
        assert_eq!(of(&first, &["x", "z"]), 8000);
        assert_eq!(of(&second, &["x", "42"]), 40);
        assert_eq!(of(&second, &["x", "y"]), 0);
    }

    #[test]
    fn histograms_are_remembered_too() {
        let options = HistogramOpts::new("seconds", "help");
        let all = HistogramVec::new(options, &["a"]).unwrap();
        let histograms = Histograms::from(all);
        for value in [0.5, 1.5, 2.0] {
            histograms.observe(&["x"], value);
        }
        let series = histograms.all.with_label_values(&["x"]);
        assert_eq!(
            (series.get_sample_count(), series.get_sample_sum()),
            (3, 4.0)
        );
    }
}
