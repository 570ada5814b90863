//! Series of a metric by their labels: told apart exactly, and found without a lock.
//!
//! The `prometheus` crate finds a series under a lock that every request would share, by a hash of
//! its label values one after the other, so that `("E1", "1b")` and `("E11", "b")` are one series to
//! it. Here every series is a metric of its own with constant labels, known by its whole labels;
//! and each thread remembers the counters and histograms it has met, so that a busy thread counts
//! with a hash and one atomic addition. Label values must be a closed set: what a thread remembers
//! is never forgotten, as a metric keeps every series it ever had. It defines no metric.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::LocalKey;

use hashbrown::{DefaultHashBuilder, HashTable};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc, Metric};
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Histogram, HistogramOpts, IntCounter, Opts};

type Labels = Box<[Box<str>]>;

/// All series of one metric.
struct Family<M> {
    /// What no other metric of this process has.
    number: u64,
    kind: MetricType,
    desc: Desc,
    names: Vec<String>,
    make: Box<dyn Fn(Opts) -> M + Send + Sync>,
    series: Mutex<HashMap<Labels, M>>,
}

impl<M: Clone> Family<M> {
    /// The series of `labels`, made when it is the first time.
    fn of(&self, labels: &[&str]) -> M {
        assert_eq!(
            labels.len(),
            self.names.len(),
            "labels of {}",
            self.desc.fq_name
        );
        let mut series = self.series.lock();
        let key: Labels = labels.iter().map(|label| Box::from(*label)).collect();
        let made = series.entry(key).or_insert_with(|| {
            let options = Opts::new(&self.desc.fq_name, &self.desc.help);
            let pairs = self.names.iter().zip(labels);
            (self.make)(pairs.fold(options, |all, (name, value)| all.const_label(name, *value)))
        });
        made.clone()
    }
}

/// A family to be registered and to be counted in.
struct Shared<M>(Arc<Family<M>>);

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.desc.fq_name)
    }
}

impl<M> Shared<M> {
    fn new(
        kind: MetricType,
        (name, help): (&str, &str),
        labels: &[&str],
        make: impl Fn(Opts) -> M + Send + Sync + 'static,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let names: Vec<String> = labels.iter().map(|name| (*name).to_owned()).collect();
        let desc = Desc::new(name.into(), help.into(), names.clone(), HashMap::new());
        Self(Arc::new(Family {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            kind,
            desc: desc.expect("names and labels are valid"),
            names,
            make: Box::new(make),
            series: Mutex::default(),
        }))
    }
}

impl<M: Metric> Collector for Shared<M> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(self.0.desc.fq_name.clone());
        family.set_help(self.0.desc.help.clone());
        family.set_field_type(self.0.kind);
        family.set_metric(self.0.series.lock().values().map(Metric::metric).collect());
        vec![family]
    }
}

/// One series that a thread has met.
struct Met<M> {
    metric: u64,
    labels: Labels,
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

/// Shows the series of `labels` to `observe`.
fn with<M: Clone>(
    known: &'static LocalKey<Known<M>>,
    family: &Family<M>,
    labels: &[&str],
    observe: impl FnOnce(&M),
) {
    known.with(|known| {
        let metric = family.number;
        let hash = known.hasher.hash_one((metric, labels));
        let mut series = known.series.borrow_mut();
        let same = |met: &Met<M>| {
            let met_labels = met.labels.iter().map(AsRef::as_ref);
            met.metric == metric && met_labels.eq(labels.iter().copied())
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
            series: family.of(labels),
        };
        observe(&series.insert_unique(hash, met, rehash).get().series);
    });
}

/// Counters by labels.
#[derive(Debug, Clone)]
pub struct Counters(Shared<IntCounter>);

impl Counters {
    /// A metric without any series yet.
    ///
    /// # Panics
    /// When the name or a label is not a valid one.
    #[must_use]
    pub fn new(name: &str, help: &str, labels: &[&str]) -> Self {
        let make = |options| IntCounter::with_opts(options).expect("a valid name");
        Self(Shared::new(MetricType::COUNTER, (name, help), labels, make))
    }

    /// The metric, to be registered.
    #[must_use]
    pub fn collector(&self) -> Box<dyn Collector> {
        Box::new(self.0.clone())
    }

    /// Adds one to the series of `labels`, in the order of the metric's label names.
    ///
    /// # Panics
    /// When the number of labels is not the metric's.
    pub fn inc(&self, labels: &[&str]) {
        self.inc_by(labels, 1);
    }

    /// Adds `count` to the series of `labels`, in the order of the metric's label names.
    ///
    /// # Panics
    /// When the number of labels is not the metric's.
    pub fn inc_by(&self, labels: &[&str], count: u64) {
        with(&COUNTERS, &self.0.0, labels, |series| series.inc_by(count));
    }
}

/// Histograms by labels.
#[derive(Debug, Clone)]
pub struct Histograms(Shared<Histogram>);

impl Histograms {
    /// A metric without any series yet; `bounds` are the upper bounds of its buckets.
    ///
    /// # Panics
    /// When the name, a label or the bounds are not valid.
    #[must_use]
    pub fn new(name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> Self {
        let bounds = bounds.to_vec();
        let make = move |options| {
            let options = HistogramOpts::from(options).buckets(bounds.clone());
            Histogram::with_opts(options).expect("a valid name and bounds")
        };
        let shared = Shared::new(MetricType::HISTOGRAM, (name, help), labels, make);
        Self(shared)
    }

    /// The metric, to be registered.
    #[must_use]
    pub fn collector(&self) -> Box<dyn Collector> {
        Box::new(self.0.clone())
    }

    /// Books `value` in the series of `labels`, in the order of the metric's label names.
    ///
    /// # Panics
    /// When the number of labels is not the metric's.
    pub fn observe(&self, labels: &[&str], value: f64) {
        with(&HISTOGRAMS, &self.0.0, labels, |series| {
            series.observe(value)
        });
    }
}

#[cfg(test)]
mod tests;
