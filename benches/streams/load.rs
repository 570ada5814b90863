//! Many streams at once, and what is seen of them while they run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Chat, Client};
use crate::options::Options;

/// Counts of all streams of a load.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Streams that have had their first token.
    pub(crate) begun: AtomicU64,
    /// Streams that ended, well or not.
    pub(crate) over: AtomicU64,
    /// Tokens that arrived.
    pub(crate) tokens: AtomicU64,
}

/// What a client saw of its stream.
#[derive(Debug)]
pub(crate) struct Seen {
    /// From the request to the first token, the connection included.
    pub(crate) first: Duration,
    /// From each token to the next one.
    pub(crate) gaps: Vec<Duration>,
}

/// A load on some addresses in turn.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) streams: u32,
    pub(crate) ramp: Duration,
    chat: Arc<Chat>,
    /// For one stream.
    limit: Duration,
}

impl Load {
    /// What the options ask for.
    pub(crate) fn new(options: &Options) -> Self {
        let tokens = options.tokens();
        let nominal = options.interval() * u32::try_from(tokens).unwrap_or(u32::MAX);
        Self {
            streams: options.streams,
            ramp: options.ramp(),
            chat: Arc::new(Chat::new(tokens)),
            limit: nominal * 2 + Duration::from_secs(30),
        }
    }

    /// Runs it to its end: one entry for each stream.
    pub(crate) async fn run(
        &self,
        targets: &[SocketAddr],
        board: &Arc<Board>,
    ) -> Vec<Result<Seen, String>> {
        let began = tokio::time::Instant::now();
        let mut streams = JoinSet::new();
        for (number, address) in (0..self.streams).zip(targets.iter().cycle()) {
            let begin = began + self.ramp * number / self.streams;
            let (address, limit) = (*address, self.limit);
            let (chat, board) = (Arc::clone(&self.chat), Arc::clone(board));
            streams.spawn(async move {
                tokio::time::sleep_until(begin).await;
                let seen = tokio::time::timeout(limit, stream(address, &chat, &board)).await;
                board.over.fetch_add(1, Ordering::Relaxed);
                seen.unwrap_or_else(|_| Err("no end in time".to_owned()))
            });
        }
        streams.join_all().await
    }
}

async fn stream(address: SocketAddr, chat: &Chat, board: &Board) -> Result<Seen, String> {
    let began = Instant::now();
    let mut client = Client::connect(address).await?;
    let mut times = Vec::new();
    let answered = client.chat(chat, |now| {
        if times.is_empty() {
            board.begun.fetch_add(1, Ordering::Relaxed);
        }
        board.tokens.fetch_add(1, Ordering::Relaxed);
        times.push(now);
    });
    answered.await?;
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    Ok(Seen {
        first: times.first().map_or(Duration::ZERO, |first| *first - began),
        gaps: gaps.collect(),
    })
}
