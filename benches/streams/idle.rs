//! What is held for engines and connections that do nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;

use crate::Rig;
use crate::client::{self, Chat};
use crate::edge::{Edge, Idling};
use crate::engines::{Engines, START};
use crate::options::ENGINES;

/// Connections that are opened at the same time.
const AT_ONCE: usize = 32;

/// Requests before anything is measured, so that what is made once exists.
pub(crate) const WARM: u32 = 256;

/// Memory without and with some things, KiB.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) what: &'static str,
    pub(crate) count: u32,
    pub(crate) without: u64,
    pub(crate) with: u64,
    /// When they are gone again, where they go.
    pub(crate) after: Option<u64>,
}

/// # Errors
/// Something does not start, or does not answer.
pub(crate) async fn measure(rig: &Rig) -> Result<Vec<Held>, String> {
    let fleet = Engines::start(rig.options.engines, &rig.options, rig.scratch.path()).await?;
    let mut held = Vec::new();
    for (what, idling) in [
        ("engine, never asked for health or load", Idling::Quiet),
        ("engine, default settings", Idling::Default),
    ] {
        held.push(engines(rig, &fleet, what, idling).await?);
    }
    drop(fleet);
    let few = Engines::start(ENGINES, &rig.options, rig.scratch.path()).await?;
    held.push(connections(rig, &few).await?);
    Ok(held)
}

/// One engine beside all of them, in two processes.
async fn engines(
    rig: &Rig,
    fleet: &Engines,
    what: &'static str,
    idling: Idling,
) -> Result<Held, String> {
    eprintln!("streams: memory per {what}");
    let mut resident = [0; 2];
    for (place, some) in [&fleet.addresses[..1], &fleet.addresses].iter().enumerate() {
        let edge = Edge::start(rig, Some(1), idling, some).await?;
        warm(edge.data, WARM).await?;
        resident[place] = steady(&edge).await?;
    }
    Ok(Held {
        what,
        count: u32::from(rig.options.engines) - 1,
        without: resident[0],
        with: resident[1],
        after: None,
    })
}

/// Memory when it has not changed by a hundredth for three seconds, or after a minute.
async fn steady(edge: &Edge) -> Result<u64, String> {
    let started = Instant::now();
    let (mut since, mut last) = (started, 0_u64);
    while since.elapsed() < Duration::from_secs(3) && started.elapsed() < START {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = edge.process.resident()?;
        if now.abs_diff(last) > last / 100 {
            (since, last) = (Instant::now(), now);
        }
    }
    edge.process.resident()
}

/// Connections that are kept after one request each.
async fn connections(rig: &Rig, engines: &Engines) -> Result<Held, String> {
    let count = rig.options.connections;
    eprintln!("streams: memory per client connection");
    let edge = Edge::start(rig, Some(1), Idling::Quiet, &engines.addresses).await?;
    warm(edge.data, WARM).await?;
    edge.settle().await?;
    let without = edge.process.resident()?;
    let clients = warm(edge.data, count).await?;
    let counted = edge.counted().await?;
    if counted.connections != f64::from(count) {
        let open = counted.connections;
        return Err(format!("{open} of {count} idle connections are open"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let with = edge.process.resident()?;
    drop(clients);
    edge.settle().await?;
    Ok(Held {
        what: "client connection, idle after a request",
        count,
        without,
        with,
        after: Some(edge.process.resident()?),
    })
}

/// This many requests, each on a connection of its own; the connections are returned.
///
/// # Errors
/// One was not answered.
pub(crate) async fn warm(
    address: SocketAddr,
    requests: u32,
) -> Result<Vec<client::Client>, String> {
    let chat = Chat::new(1);
    let clients = stream::iter(0..requests).map(|_| client::once(address, &chat));
    let clients: Vec<_> = clients.buffer_unordered(AT_ONCE).collect().await;
    clients.into_iter().collect()
}
