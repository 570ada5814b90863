//! Making and registering series.

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

use crate::series::{Counters, Histograms};
use crate::server::metrics::WORK_BOUNDS;

/// Makes series and registers each of them once.
pub(super) struct Registrar(pub(super) Registry);

impl Registrar {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        self.0
            .register(Box::new(collector.clone()))
            .expect("every name is registered once");
        collector
    }

    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Counters {
        let counter = IntCounterVec::new(Opts::new(name, help), labels);
        self.add(counter.expect("names and labels are valid"))
            .into()
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> Histograms {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.add(HistogramVec::new(options, labels).expect("names and bounds are valid"))
            .into()
    }

    pub(super) fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(WORK_BOUNDS.to_vec());
        self.add(Histogram::with_opts(options).expect("names and bounds are valid"))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help).expect("the name is valid"))
    }
}
