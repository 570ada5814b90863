//! Medians and ratios as Markdown.

use std::fmt;
use std::time::Duration;

use crate::loader::Counted;
use crate::machine;
use crate::machine::Cpu;
use crate::scenario::Scenario;

/// One run of one proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Requests a second.
    rate: f64,
    /// Processor time per request, microseconds.
    user: f64,
    system: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Share of its core that the proxy used.
    busy: f64,
    failed: f64,
}

impl Sample {
    /// * `before`, `after`: what the proxy had cost around the load, which took `took`.
    pub(crate) fn new(counted: Counted, before: Cpu, after: Cpu, took: Duration) -> Self {
        let (user, system) = (after.user - before.user, after.system - before.system);
        let requests = counted.requests.max(1.0);
        Self {
            rate: counted.requests / counted.seconds,
            user: user * 1e6 / requests,
            system: system * 1e6 / requests,
            p50_ms: counted.p50_ms,
            p99_ms: counted.p99_ms,
            busy: (user + system) / took.as_secs_f64(),
            failed: counted.failed,
        }
    }

    fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, cpu, failed) = (self.rate, self.cpu(), self.failed);
        write!(f, "{rate:.0} req/s, {cpu:.1} µs CPU, {failed} failed")
    }
}

/// All runs.
#[derive(Debug)]
pub(crate) struct Report {
    names: Vec<&'static str>,
    scenarios: Vec<&'static Scenario>,
    /// Round, scenario, proxy, sample.
    samples: Vec<(usize, usize, usize, Sample)>,
}

impl Report {
    pub(crate) const fn new(names: Vec<&'static str>, scenarios: Vec<&'static Scenario>) -> Self {
        Self {
            names,
            scenarios,
            samples: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, round: usize, scenario: usize, who: usize, sample: Sample) {
        self.samples.push((round, scenario, who, sample));
    }

    /// Requests that were not answered with 200, over all runs.
    pub(crate) fn failures(&self) -> u64 {
        let failed = self.samples.iter().map(|(.., sample)| sample.failed);
        failed.sum::<f64>() as u64
    }

    fn of(&self, scenario: usize, who: usize) -> impl Iterator<Item = (usize, &Sample)> {
        let wanted =
            move |entry: &&(usize, usize, usize, Sample)| (entry.1, entry.2) == (scenario, who);
        let samples = self.samples.iter().filter(wanted);
        samples.map(|(round, .., sample)| (*round, sample))
    }

    fn median(&self, scenario: usize, who: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        let values = self.of(scenario, who).map(|(_, sample)| value(sample));
        spread(values.collect()).1
    }

    /// Least, median and most of the first proxy's value over another's in the same round.
    fn ratio(
        &self,
        scenario: usize,
        other: usize,
        value: impl Fn(&Sample) -> f64,
    ) -> (f64, f64, f64) {
        let pairs = self.of(scenario, 0).filter_map(|(round, ours)| {
            let theirs = self.of(scenario, other).find(|(at, _)| *at == round)?.1;
            Some(value(ours) / value(theirs))
        });
        spread(pairs.collect())
    }

    fn medians(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, scenario) in self.scenarios.iter().enumerate() {
            writeln!(
                f,
                "\n| {} | req/s | CPU µs/request | user | system | p50 ms | p99 ms | proxy core busy |",
                scenario.title
            )?;
            writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
            for (who, name) in self.names.iter().enumerate() {
                let median = |value: fn(&Sample) -> f64| self.median(at, who, value);
                writeln!(
                    f,
                    "| {name} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.0} % |",
                    median(|sample| sample.rate),
                    median(Sample::cpu),
                    median(|sample| sample.user),
                    median(|sample| sample.system),
                    median(|sample| sample.p50_ms),
                    median(|sample| sample.p99_ms),
                    median(|sample| sample.busy * 100.0),
                )?;
            }
        }
        Ok(())
    }

    fn ratios(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        value: fn(&Sample) -> f64,
    ) -> fmt::Result {
        let first = self.names[0];
        write!(f, "\n| {title}, {first} ÷ other |")?;
        for scenario in &self.scenarios {
            write!(f, " {} |", scenario.title)?;
        }
        writeln!(f, "\n| --- |{}", " --- |".repeat(self.scenarios.len()))?;
        for (other, name) in self.names.iter().enumerate().skip(1) {
            write!(f, "| {name} |")?;
            for scenario in 0..self.scenarios.len() {
                let (least, median, most) = self.ratio(scenario, other, value);
                write!(f, " {median:.2} ({least:.2} to {most:.2}) |")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.samples.iter().map(|(round, ..)| round + 1).max();
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let arguments = arguments.iter().filter(|word| *word != "--bench");
        let arguments: Vec<&str> = arguments.map(String::as_str).collect();
        let build = if cfg!(debug_assertions) {
            " Debug build: figures say nothing."
        } else {
            ""
        };
        writeln!(
            f,
            "\n{}; `cargo bench --bench load -- {}`; medians of {} rounds.{build}",
            machine::describe(),
            arguments.join(" "),
            rounds.unwrap_or(0)
        )?;
        writeln!(
            f,
            "Where the proxy core is not busy, engines and loader were the limit: read the CPU column."
        )?;
        self.medians(f)?;
        if self.names.len() > 1 {
            self.ratios(f, "req/s (above 1: faster)", |sample| sample.rate)?;
            self.ratios(f, "CPU per request (below 1: cheaper)", Sample::cpu)?;
        }
        match self.failures() {
            0 => Ok(()),
            failed => writeln!(
                f,
                "\n{failed} requests failed: the figures are worth nothing."
            ),
        }
    }
}

/// Least, median and most; not a number without values.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else {
        return (f64::NAN, f64::NAN, f64::NAN);
    };
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    };
    (*least, median, *most)
}
