//! The figures as Markdown.

use std::fmt;
use std::time::Duration;

use crate::gaps::Gaps;
use crate::idle::{Held, WARM};
use crate::machine;
use crate::options::Options;
use crate::rounds::{Round, Run};

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) held: Vec<Held>,
    pub(crate) direct: Run,
    pub(crate) rounds: Vec<Round>,
    pub(crate) options: Options,
}

impl Report {
    /// Why the run is a failure.
    pub(crate) fn problems(&self) -> Vec<String> {
        let runs = self
            .rounds
            .iter()
            .map(|round| (round.name.as_str(), &round.run));
        let mut problems = Vec::new();
        for (name, run) in runs.chain([("directly", &self.direct)]) {
            for (failure, count) in &run.gaps.failures {
                problems.push(format!("{name}: {count} streams: {failure}"));
            }
            if run.window.is_none() {
                problems.push(format!("{name}: never were all streams open"));
            }
        }
        for round in self.rounds.iter().filter(|round| !round.left.is_nothing()) {
            problems.push(format!("{}: left over: {:?}", round.name, round.left));
        }
        problems
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| resident, KiB | count | without | with | each | gone again |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for held in &self.held {
            let after = held
                .after
                .map_or_else(|| "-".to_owned(), |after| after.to_string());
            let Held {
                what,
                count,
                without,
                with,
                ..
            } = held;
            let each = each(*without, *with, *count);
            writeln!(
                f,
                "| {what} | {count} | {without} | {with} | {each:.2} | {after} |"
            )?;
        }
        for round in self.rounds.iter().filter(|round| round.fresh) {
            let Some((open, _)) = round.open else {
                continue;
            };
            let Round {
                name,
                before,
                after,
                ..
            } = round;
            let count = self.options.streams;
            let each = each(*before, open, count);
            writeln!(
                f,
                "| stream in flight, {name} | {count} | {before} | {open} | {each:.2} | {after} |"
            )?;
        }
        Ok(())
    }

    fn evenness(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| ms | complete | first token p50 | p99 | gap p50 | p99 | max | worst stream's p50 | its p99 |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        evenness(f, "engines directly", &self.direct.gaps)?;
        for round in &self.rounds {
            evenness(f, &round.name, &round.run.gaps)?;
        }
        Ok(())
    }

    fn cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| all streams open | s | events/s | sgl-edge CPU µs/event | cores: sgl-edge | engines | clients |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        let rounds = self
            .rounds
            .iter()
            .map(|round| (round.name.as_str(), &round.run));
        for (name, run) in [("engines directly", &self.direct)]
            .into_iter()
            .chain(rounds)
        {
            let Some(window) = run.window else {
                continue;
            };
            let rate = window.tokens / window.seconds;
            let event = window.cpu[0] * 1e6 / window.tokens;
            let [edge, engines, clients] = window.cpu.map(|cpu| cpu / window.seconds);
            writeln!(
                f,
                "| {name} | {:.1} | {rate:.0} | {event:.1} | {edge:.2} | {engines:.2} | {clients:.2} |",
                window.seconds
            )?;
        }
        Ok(())
    }

    fn bounds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| resident, KiB | before | all open | peak | after | after {WARM} short requests more |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for round in &self.rounds {
            let Some((open, _)) = round.open else {
                continue;
            };
            let Round {
                name,
                before,
                peak,
                after,
                later,
                ..
            } = round;
            writeln!(
                f,
                "| {name} | {before} | {open} | {peak} | {after} | {later} |"
            )?;
        }
        Ok(())
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| counted, all open, afterwards | requests | charged to engines | client connections | bytes of bodies |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- |")?;
        for round in &self.rounds {
            let Some((_, open)) = round.open else {
                continue;
            };
            write!(f, "| {} |", round.name)?;
            for (open, left) in open.each().into_iter().zip(round.left.each()) {
                write!(f, " {open:.0}, {left:.0} |")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        let build = if cfg!(debug_assertions) {
            " Debug build: figures say nothing."
        } else {
            ""
        };
        let engines = if options.http2 { "HTTP/2" } else { "HTTP/1.1" };
        writeln!(
            f,
            "\n{}; {} streams of {} tokens, one every {} ms, begun within {} ms; {engines} to engines.{build}",
            machine::describe(),
            options.streams,
            options.tokens(),
            options.interval().as_millis(),
            options.ramp().as_millis()
        )?;
        self.memory(f)?;
        self.evenness(f)?;
        self.cost(f)?;
        self.bounds(f)?;
        self.counts(f)
    }
}

fn evenness(f: &mut fmt::Formatter<'_>, name: &str, gaps: &Gaps) -> fmt::Result {
    write!(f, "| {name} | {} of {} |", gaps.complete, gaps.streams)?;
    for time in gaps.first.iter().chain(&gaps.all).chain(&gaps.worst) {
        write!(f, " {:.1} |", milliseconds(*time))?;
    }
    writeln!(f)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Memory of one of `count`, KiB.
fn each(without: u64, with: u64, count: u32) -> f64 {
    (with as f64 - without as f64) / f64::from(count)
}
