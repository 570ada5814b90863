use prometheus::{Registry, TextEncoder};

use super::*;

fn text(collector: Box<dyn Collector>) -> String {
    let registry = Registry::new_custom(Some("p".into()), None).unwrap();
    registry.register(collector).unwrap();
    TextEncoder::new()
        .encode_to_string(&registry.gather())
        .unwrap()
}

#[test]
fn threads_count_into_one_series_and_labels_and_metrics_are_told_apart() {
    let first = Counters::new("first", "help", &["a", "b"]);
    let second = Counters::new("second", "help", &["a", "b"]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..1000 {
                    first.inc(&["x", "y"]);
                    first.inc_by(&["xy", ""], 2);
                    second.inc(&["x", &(round % 100).to_string()]);
                }
            });
        }
    });
    assert_eq!(
        text(first.collector()),
        "# HELP p_first help\n# TYPE p_first counter\n\
         p_first{a=\"x\",b=\"y\"} 4000\np_first{a=\"xy\",b=\"\"} 8000\n"
    );
    assert_eq!(second.0.0.of(&["x", "42"]).get(), 40);
    assert_eq!(second.0.0.of(&["x", "y"]).get(), 0);
}

#[test]
fn histograms_have_their_bounds_and_labels() {
    let histograms = Histograms::new("seconds", "help", &["a"], &[1.0, 2.0]);
    for value in [0.5, 1.5, 9.0] {
        histograms.observe(&["x"], value);
    }
    let text = text(histograms.collector());
    for line in [
        "p_seconds_bucket{a=\"x\",le=\"1\"} 1",
        "p_seconds_bucket{a=\"x\",le=\"2\"} 2",
        "p_seconds_bucket{a=\"x\",le=\"+Inf\"} 3",
        "p_seconds_sum{a=\"x\"} 11",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}
