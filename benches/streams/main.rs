//! `cargo bench --bench streams`: what sgl-edge holds, and ten thousand streams through it.
//!
//! Starts the program and mock engines on loopback and asks
//! * what an engine that is configured, a client connection that idles and a stream in flight take of
//!   its memory: resident pages, so neither sockets' buffers nor anything else the kernel keeps;
//! * whether ten thousand concurrent streams of one event a second each all come to their end, how even
//!   their events arrive beside the same load on the engines themselves, and how even those of the
//!   worst single stream; what an event costs; that memory is bounded, and comes back; that nothing is
//!   counted as in flight when all are over.
//!
//! Huge pages count whole, touched or not; `MIMALLOC_ALLOW_THP=0` in the environment does without them,
//! which is nearer to what is used and further from what a machine gives.
//!
//! Gaps count from a stream's first token on, so also while others begin. In the first round of a process
//! its memory grows meanwhile; later rounds find it grown.
//!
//! Client, engines and program share the cores, so gaps contain the others' turns: the direct run shows
//! how much of them is not the program's, but its machine is less busy. No tokenizer, no access log,
//! no TLS, no network. It fails when a stream breaks off or something stays counted, never by a time or
//! a size. It ends what it started, however it ends itself.

mod client;
mod descriptors;
mod edge;
mod engines;
mod gaps;
mod idle;
mod load;
#[path = "../load/machine.rs"]
mod machine;
mod options;
mod ports;
mod process;
mod report;
mod rounds;
#[path = "../load/scratch.rs"]
mod scratch;

use std::process::ExitCode;

use clap::Parser;
use options::Options;
use report::Report;
use scratch::Scratch;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What every part needs.
struct Rig {
    options: Options,
    scratch: Scratch,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.wanted() {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let measured = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(until_interrupted(options)));
    let report = match measured {
        Ok(report) => report,
        Err(problem) => {
            eprintln!("streams: {problem}");
            return ExitCode::FAILURE;
        }
    };
    println!("{report}");
    let problems = report.problems();
    for problem in &problems {
        eprintln!("streams: {problem}");
    }
    ExitCode::from(u8::from(!problems.is_empty()))
}

/// A signal drops the work, and with it the processes.
async fn until_interrupted(options: Options) -> Result<Report, String> {
    let listen = |kind| signal(kind).map_err(|error| error.to_string());
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    tokio::select! {
        report = measure(options) => report,
        _ = interrupt.recv() => Err("interrupted".to_owned()),
        _ = terminate.recv() => Err("interrupted".to_owned()),
    }
}

async fn measure(options: Options) -> Result<Report, String> {
    descriptors::ensure(&options)?;
    let rig = Rig {
        options,
        scratch: Scratch::new("streams")?,
    };
    let held = idle::measure(&rig).await?;
    let (direct, rounds) = rounds::measure(&rig).await?;
    Ok(Report {
        held,
        direct,
        rounds,
        options: rig.options,
    })
}
