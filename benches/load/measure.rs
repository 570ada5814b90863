//! The rounds.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::contender::{Contender, Engines, Running};
use crate::loader::{self, Load, Loader};
use crate::options::Options;
use crate::report::{Report, Sample};
use crate::scenario::Scenario;
use crate::scratch::Scratch;

/// What all runs share.
struct Rig<'a> {
    options: &'a Options,
    scratch: &'a Scratch,
    loader: Loader,
    interrupted: &'a AtomicBool,
}

/// Starts everything, measures, and ends everything.
///
/// # Errors
/// Something does not start or ends early, or `interrupted` was set.
pub(crate) fn run(options: &Options, interrupted: &AtomicBool) -> Result<Report, String> {
    let scenarios = options.scenarios()?;
    let kinds = options.kinds()?;
    let scratch = Scratch::new("load")?;
    let rig = Rig {
        options,
        scratch: &scratch,
        loader: Loader::find(scratch.path())?,
        interrupted,
    };
    let mut bodies = Vec::new();
    for scenario in &scenarios {
        bodies.push(Loader::bodies(scratch.path(), scenario)?);
    }
    let largest = scenarios.iter().max_by_key(|scenario| scenario.bytes);
    let largest = largest.map_or_else(Vec::new, |scenario| scenario.bodies());
    let probe = largest.first().map_or("", String::as_str);
    let engines = Engines::start(scratch.path(), probe)?;
    let tokenized = scenarios.iter().any(|scenario| scenario.tokenized);
    let mut contenders = Vec::new();
    for kind in &kinds {
        let contender = Contender::start(kind, &engines, tokenized, scratch.path(), probe)?;
        contenders.push(contender);
    }
    let runs = options.rounds as usize * scenarios.len() * contenders.len();
    eprintln!(
        "load: {runs} runs of {} s, about {} s",
        options.seconds,
        runs * (options.seconds as usize * 10 + 3) / 10
    );
    let names = contenders.iter().map(|contender| contender.name);
    let mut report = Report::new(names.collect(), scenarios.clone());
    for round in 0..options.rounds as usize {
        for (at, scenario) in scenarios.iter().enumerate() {
            for who in order(contenders.len(), round) {
                let running = contenders[who].running(scenario.tokenized);
                let sample = rig.turn(running, scenario, &bodies[at])?;
                eprintln!(
                    "load: round {}, {}, {}: {}",
                    round + 1,
                    scenario.title,
                    contenders[who].name,
                    sample
                );
                report.add(round, at, who, sample);
            }
        }
    }
    Ok(report)
}

/// Who is on turn one after the other: another first in every round, and backwards every second.
fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|at| (at + round) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

impl Rig<'_> {
    /// Wakes a proxy, loads it, and lets it sleep again.
    fn turn(
        &self,
        running: &Running,
        scenario: &Scenario,
        bodies: &Path,
    ) -> Result<Sample, String> {
        running.process.signal("CONT")?;
        // Connections that ran out while it slept are noticed before the clock runs.
        let probe = &scenario.bodies()[0];
        let mut ready = loader::post(running.address, probe);
        for _ in 0..20 {
            if ready.is_ok() {
                break;
            }
            sleep(Duration::from_millis(50));
            ready = loader::post(running.address, probe);
        }
        ready?;
        let load = Load {
            address: running.address,
            bodies,
            different: scenario.tokenized,
            seconds: self.options.seconds,
            connections: self.options.connections,
        };
        let (before, started) = (running.process.cpu()?, Instant::now());
        let counted = self
            .loader
            .run(&load, self.scratch.path(), self.interrupted)?;
        let (after, took) = (running.process.cpu()?, started.elapsed());
        running.process.signal("STOP")?;
        Ok(Sample::new(counted, before, after, took))
    }
}
