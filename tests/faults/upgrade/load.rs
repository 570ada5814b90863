//! Clients that go on whatever happens, and what became of their requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join_all;
use tokio::net::TcpStream;

use crate::support::body::{chat, stream, with_length};
use crate::support::client::{Client, End};
use crate::support::{eventually, pause};

/// What became of all requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Answered with 200, whole.
    pub(super) answered: u64,
    /// Found their kept connection closed.
    pub(super) stale: u64,
    /// Kept connections whose last answer said that they close.
    pub(super) told: u64,
    /// Everything else.
    pub(super) lost: Vec<String>,
    kept: u64,
}

impl Tally {
    #[track_caller]
    pub(super) fn assert_nothing_lost(&self) {
        assert!(self.lost.is_empty(), "{:#?}", self.lost);
        assert!(self.stale <= self.kept, "more than once per client");
    }
}

/// Steers the clients.
#[derive(Debug)]
pub(super) struct Load {
    data: SocketAddr,
    /// No request is begun any more.
    pub(super) stop: AtomicBool,
    /// No connection is made any more.
    pub(super) no_new: AtomicBool,
    answered: AtomicU64,
}

impl Load {
    pub(super) fn new(data: SocketAddr) -> Self {
        Self {
            data,
            stop: AtomicBool::new(false),
            no_new: AtomicBool::new(false),
            answered: AtomicU64::new(0),
        }
    }

    /// Waits until this many more requests have been answered.
    pub(super) async fn progress(&self, more: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually("the load goes on", async || {
            self.answered.load(Ordering::Relaxed) >= goal
        })
        .await;
    }

    /// Runs this many clients of each kind until told to stop.
    pub(super) async fn run(&self, new: u64, kept: u64) -> Tally {
        let clients = (0..new + kept).map(|nth| self.client(nth < kept, nth % 2 == 0));
        let mut sum = Tally {
            kept,
            ..Tally::default()
        };
        for tally in join_all(clients).await {
            sum.answered += tally.answered;
            sum.stale += tally.stale;
            sum.told += tally.told;
            sum.lost.extend(tally.lost);
        }
        sum
    }

    fn stops(&self, connected: bool) -> bool {
        let no_new = !connected && self.no_new.load(Ordering::Relaxed);
        no_new || self.stop.load(Ordering::Relaxed)
    }

    async fn client(&self, keeps: bool, streams: bool) -> Tally {
        let body = if streams {
            stream("a b c")
        } else {
            chat("a b c")
        };
        let request = with_length(body.to_string().as_bytes(), "");
        let mut tally = Tally::default();
        let mut connection: Option<Client> = None;
        while !self.stops(connection.is_some()) {
            let is_reused = connection.is_some();
            let mut client = match connection.take() {
                Some(client) => client,
                None => match TcpStream::connect(self.data).await {
                    Ok(socket) => Client::over(socket),
                    Err(error) => {
                        tally.lost.push(format!("connect: {error}"));
                        pause(20).await;
                        continue;
                    }
                },
            };
            let sent = client.try_send(&request).await;
            let answer = match sent {
                Ok(()) => client.try_answer().await,
                Err(_) => None,
            };
            match answer {
                Some(answer) if (answer.status, answer.end) == (200, End::Clean) => {
                    tally.answered += 1;
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    tally.told += u64::from(keeps && answer.says_close());
                    connection = (keeps && !answer.says_close()).then_some(client);
                }
                Some(answer) => {
                    let what = format!("{} {:?} {}", answer.status, answer.end, answer.text());
                    tally.lost.push(what);
                }
                None if is_reused => tally.stale += 1,
                None => tally
                    .lost
                    .push("a new connection without an answer".to_owned()),
            }
            pause(5).await;
        }
        tally
    }
}
