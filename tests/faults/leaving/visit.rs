//! A client that will leave, and what must be seen once it has.

use std::time::Duration;

use h2::RecvStream;
use tokio::time::Instant;

use crate::matrix::watched::Watched;
use crate::support::body::with_length;
use crate::support::child::Proxy;
use crate::support::client::Client;
use crate::support::h2c::{H2Client, H2Exchange};
use crate::support::{SOON, pause, within};

/// The rule says one second; the rest is for a slow machine.
pub(super) const AT_ONCE: Duration = Duration::from_secs(3);

/// How a client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Closes its connection.
    Close,
    /// Is killed: a reset.
    Reset,
    /// Gives up one HTTP/2 stream; the connection stays.
    Stream,
}

pub(super) const HOWS: [How; 3] = [How::Close, How::Reset, How::Stream];

/// A request that is on its way.
#[derive(Debug)]
pub(super) struct Visit {
    how: How,
    http1: Option<Client>,
    http2: Option<(H2Client, H2Exchange)>,
    answer: Option<RecvStream>,
}

impl Visit {
    /// Sends a whole request.
    pub(super) async fn begin(proxy: &Proxy, how: How, body: &[u8]) -> Self {
        let mut visit = Self {
            how,
            http1: None,
            http2: None,
            answer: None,
        };
        if how == How::Stream {
            let mut client = H2Client::connect(proxy.data).await;
            let mut exchange = client.begin(Some(body.len()), false).await;
            exchange.send(body).await;
            visit.http2 = Some((client, exchange));
        } else {
            let mut client = proxy.client().await;
            client.send(&with_length(body, "")).await;
            visit.http1 = Some(client);
        }
        visit
    }

    /// Reads the head and the first piece of the answer.
    pub(super) async fn read_some(&mut self) {
        if let Some(client) = &mut self.http1 {
            assert_eq!(client.head(SOON).await.expect("a head").status, 200);
            client.chunk().await.expect("a chunk");
        }
        if let Some((_, exchange)) = &mut self.http2 {
            let response = within(SOON, "a head", &mut exchange.response).await;
            let mut body = response.expect("an answer").into_body();
            let piece = within(SOON, "a piece", body.data()).await;
            piece.expect("a piece").expect("a piece");
            self.answer = Some(body);
        }
    }

    /// Leaves, and tells when.
    pub(super) async fn leave(self) -> Instant {
        if let Some(client) = self.http1 {
            if self.how == How::Reset {
                client
                    .socket
                    .set_zero_linger()
                    .expect("an option of every socket");
            }
            drop(client);
        }
        if let Some((client, exchange)) = self.http2 {
            drop((exchange, self.answer));
            // The connection lives until its stream has been given up.
            pause(200).await;
            drop(client);
            return Instant::now() - Duration::from_millis(200);
        }
        Instant::now()
    }
}

/// Waits until this engine is not counted as busy any more, at most until the limit.
pub(super) async fn released(proxy: &Watched, engine: &str, left: Instant, limit: Duration) {
    loop {
        let asked = Instant::now();
        let held = held(proxy, engine).await;
        if held == 0.0 {
            return;
        }
        assert!(
            asked < left + limit,
            "{engine}: still held after {:?}",
            left.elapsed()
        );
        pause(50).await;
    }
}

/// Guards held on this engine.
pub(super) async fn held(proxy: &Watched, engine: &str) -> f64 {
    let gauges = proxy.gauges().await;
    gauges.sum_of("worker_inflight_requests", &[("worker_url", engine)])
}

/// All legs on this engine ended in one of these ways, this often; its breaker is closed.
pub(super) async fn assert_not_blamed(proxy: &Watched, engine: &str, outcomes: &[&str], legs: u32) {
    let gauges = proxy.gauges().await;
    let one = |outcome: &&str| {
        let labels = [("worker_url", engine), ("outcome", *outcome)];
        gauges.sum_of("worker_requests_total", &labels)
    };
    let booked: f64 = outcomes.iter().map(one).sum();
    assert_eq!(booked, f64::from(legs), "{engine}: {outcomes:?}");
    let all = gauges.sum_of("worker_requests_total", &[("worker_url", engine)]);
    assert_eq!(all, f64::from(legs), "{engine}: other outcomes");
    let breaker = gauges.sum_of("worker_cb_state", &[("worker_url", engine)]);
    assert_eq!(breaker, 0.0, "{engine}: the breaker is open");
}
