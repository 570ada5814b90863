//! `cargo bench --bench load`: sgl-edge under load beside other proxies on the same engines.
//!
//! Starts mock engines, sgl-edge and, where installed, nginx and HAProxy, and a bare Pingora proxy,
//! all on loopback; runs `wrk` or `oha` against one after the other and prints medians and ratios.
//! A round measures every proxy once per scenario, neighbours within seconds, and the order turns:
//! ratios are taken inside a round, because a machine's speed drifts more than proxies differ. All
//! proxies but the one on turn are stopped. Where there are two cores or more, the proxy has core 0
//! for itself and everything else runs on the others.
//!
//! It refuses to judge: nothing here passes or fails by a time. It ends what it started, however it
//! ends itself.

mod bare;
mod children;
mod contender;
mod loader;
mod machine;
mod measure;
mod options;
mod report;
mod scenario;
mod scratch;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use options::Options;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, listen, engines @ ..] = arguments.as_slice()
        && first == bare::WORD
    {
        bare::run(listen, engines);
    }
    let options = Options::parse();
    if !options.wanted() {
        return ExitCode::SUCCESS;
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            eprintln!("load: no handler for signal {signal}: {error}");
        }
    }
    match measure::run(&options, &interrupted) {
        Ok(report) => {
            println!("{report}");
            match report.failures() {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(problem) => {
            eprintln!("load: {problem}");
            ExitCode::FAILURE
        }
    }
}
