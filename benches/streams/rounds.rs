//! The streams: directly at the engines, then through the program with one thread and with its default.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Rig;
use crate::edge::{Counted, Edge, Idling};
use crate::engines::Engines;
use crate::gaps::Gaps;
use crate::idle::{WARM, warm};
use crate::load::{Board, Load};
use crate::options::ENGINES;
use crate::process::{Process, own_cpu};

/// A moment of a load.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    tokens: u64,
    /// Processor time of the program, the engines and the clients so far, seconds.
    cpu: [f64; 3],
}

/// What went on while all streams were open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    /// Tokens that arrived.
    pub(crate) tokens: f64,
    /// Processor time of the program, the engines and the clients, seconds.
    pub(crate) cpu: [f64; 3],
}

/// One load.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) gaps: Gaps,
    /// None if streams ended before all had begun.
    pub(crate) window: Option<Window>,
}

/// Memory of the program around one load, KiB, and what it counted.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) name: String,
    /// The first of its process.
    pub(crate) fresh: bool,
    pub(crate) run: Run,
    pub(crate) before: u64,
    /// While all streams were open.
    pub(crate) open: Option<(u64, Counted)>,
    pub(crate) peak: u64,
    pub(crate) after: u64,
    /// After some short requests more: a thread takes back what others freed of its memory only when it
    /// works.
    pub(crate) later: u64,
    pub(crate) left: Counted,
}

/// The load on the engines themselves, and all rounds through the program.
///
/// # Errors
/// Something does not start, or the program does not answer on its admin listener.
pub(crate) async fn measure(rig: &Rig) -> Result<(Run, Vec<Round>), String> {
    let engines = Engines::start(ENGINES, &rig.options, rig.scratch.path()).await?;
    let load = Load::new(&rig.options);
    eprintln!("streams: {} directly", load.streams);
    let (direct, _) = run(rig, &load, &engines, None).await?;
    let mut rounds = Vec::new();
    for (threads, name) in [(Some(1), "1 thread"), (None, "default threads")] {
        let edge = Edge::start(rig, threads, Idling::Quiet, &engines.addresses).await?;
        // It has learned by then what the engines speak.
        edge.settle().await?;
        for number in 1..=rig.options.rounds {
            let name = format!("{name}, round {number}");
            eprintln!("streams: {} through sgl-edge, {name}", load.streams);
            let round = round(rig, &load, &engines, &edge, name).await?;
            rounds.push(Round {
                fresh: number == 1,
                ..round
            });
        }
    }
    Ok((direct, rounds))
}

async fn round(
    rig: &Rig,
    load: &Load,
    engines: &Engines,
    edge: &Edge,
    name: String,
) -> Result<Round, String> {
    edge.process.forget_peak();
    let before = edge.process.resident()?;
    let (run, open) = run(rig, load, engines, Some(edge)).await?;
    let peak = edge.process.peak()?;
    let left = edge.settle().await?;
    let after = edge.process.resident()?;
    drop(warm(edge.data, WARM).await?);
    edge.settle().await?;
    Ok(Round {
        name,
        fresh: false,
        run,
        before,
        open,
        peak,
        after,
        later: edge.process.resident()?,
        left,
    })
}

/// Runs the load and watches it.
async fn run(
    rig: &Rig,
    load: &Load,
    engines: &Engines,
    edge: Option<&Edge>,
) -> Result<(Run, Option<(u64, Counted)>), String> {
    let board = Arc::new(Board::default());
    let targets: &[SocketAddr] =
        edge.map_or(&engines.addresses, |edge| std::slice::from_ref(&edge.data));
    let watch = watch(rig, load, &board, &engines.process, edge);
    let (streams, watched) = tokio::join!(load.run(targets, &board), watch);
    let (window, open) = watched?;
    let gaps = Gaps::of(streams);
    Ok((Run { gaps, window }, open))
}

/// Waits until all streams are open and sees what happens until one ends.
async fn watch(
    rig: &Rig,
    load: &Load,
    board: &Board,
    engines: &Process,
    edge: Option<&Edge>,
) -> Result<(Option<Window>, Option<(u64, Counted)>), String> {
    let tick = Duration::from_millis(20);
    let none_over = || board.over.load(Ordering::Relaxed) == 0;
    while board.begun.load(Ordering::Relaxed) < u64::from(load.streams) {
        if !none_over() {
            return Ok((None, None));
        }
        tokio::time::sleep(tick).await;
    }
    let first = mark(board, engines, edge)?;
    while none_over() && first.at.elapsed() < rig.options.window() {
        tokio::time::sleep(tick).await;
    }
    let last = mark(board, engines, edge)?;
    let open = match edge {
        Some(edge) => Some((edge.process.resident()?, edge.counted().await?)),
        None => None,
    };
    let cpu = [0, 1, 2].map(|place| last.cpu[place] - first.cpu[place]);
    let window = Window {
        seconds: (last.at - first.at).as_secs_f64(),
        tokens: (last.tokens - first.tokens) as f64,
        cpu,
    };
    Ok((Some(window), open))
}

fn mark(board: &Board, engines: &Process, edge: Option<&Edge>) -> Result<Mark, String> {
    let program = edge.map_or(Ok(0.0), |edge| edge.process.cpu());
    Ok(Mark {
        at: Instant::now(),
        tokens: board.tokens.load(Ordering::Relaxed),
        cpu: [program?, engines.cpu()?, own_cpu()?],
    })
}
