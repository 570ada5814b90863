//! Making and registering series.

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntGauge, Registry};

use crate::series::{Counters, Histograms};
use crate::server::metrics::WORK_BOUNDS;

/// Makes series and registers each of them once.
pub(super) struct Registrar(pub(super) Registry);

impl Registrar {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        self.register(Box::new(collector.clone()));
        collector
    }

    fn register(&self, collector: Box<dyn Collector>) {
        let added = self.0.register(collector);
        added.expect("every name is registered once");
    }

    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Counters {
        let counters = Counters::new(name, help, labels);
        self.register(counters.collector());
        counters
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> Histograms {
        let histograms = Histograms::new(name, help, labels, bounds);
        self.register(histograms.collector());
        histograms
    }

    pub(super) fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(WORK_BOUNDS.to_vec());
        self.add(Histogram::with_opts(options).expect("names and bounds are valid"))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help).expect("the name is valid"))
    }
}
