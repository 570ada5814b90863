//! One client: what it does and how far it gets is drawn.

use std::net::SocketAddr;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::json;

use super::MODELS;
use crate::support::body::{chat, chunked, head, with, with_length};
use crate::support::client::{Answer, Client, End};
use crate::support::h2c::H2Client;
use crate::support::{SOON, pause};

/// What came of all visits.
#[derive(Debug, Default)]
pub(super) struct Tally {
    whole: u64,
    cut: u64,
    bad_gateway: u64,
    unavailable: u64,
    timeout: u64,
    /// Left before the end.
    left: u64,
    /// What may not happen.
    wrong: Vec<String>,
}

impl Tally {
    pub(super) fn and(mut self, other: Self) -> Self {
        self.whole += other.whole;
        self.cut += other.cut;
        self.bad_gateway += other.bad_gateway;
        self.unavailable += other.unavailable;
        self.timeout += other.timeout;
        self.left += other.left;
        self.wrong.extend(other.wrong);
        self
    }

    fn book(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else {
            self.wrong.push("no answer".to_owned());
            return;
        };
        match (answer.status, answer.end) {
            (200, End::Clean) => self.whole += 1,
            (200, End::Cut) => self.cut += 1,
            (502, End::Clean) => self.bad_gateway += 1,
            (503, End::Clean) => self.unavailable += 1,
            (504, End::Clean) => self.timeout += 1,
            // The engine's own words for a broken rendezvous (engine-wire §3.2).
            (500, End::Clean) if answer.text().contains("transfer failed") => self.timeout += 1,
            (status, end) => {
                let what = format!("{status} {end:?} {}", answer.text());
                self.wrong.push(what);
            }
        }
    }

    #[track_caller]
    pub(super) fn assert_sane(&self) {
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        let failed = self.cut + self.bad_gateway + self.unavailable + self.timeout;
        assert!(self.whole > failed, "more failed than served");
        assert!(self.left > 0);
    }
}

/// One visit.
pub(super) async fn visit(data: SocketAddr, draw: &mut StdRng, tally: &mut Tally) {
    let words = "word ".repeat(draw.random_range(1..40));
    let model = MODELS[draw.random_range(0..2)];
    let body = with(
        chat(&words),
        json!({"model": model, "stream": draw.random::<bool>()}),
    );
    let body = body.to_string().into_bytes();
    let wait = draw.random_range(0..25);
    match draw.random_range(0..20) {
        0..6 => leave_http1(data, draw.random_range(0..6), wait, &body, tally).await,
        6..8 => leave_http2(data, wait, &body, tally).await,
        8..11 => {
            let answer = H2Client::connect(data).await.chat(&body, true).await;
            tally.book(Some(answer));
        }
        11..13 => {
            let mut client = Client::connect(data).await;
            // Refused before its end, perhaps.
            let _ = client.try_send(&chunked(&body, 50, "")).await;
            tally.book(client.try_answer().await);
        }
        _ => several(data, draw.random_range(1..4), &body, tally).await,
    }
}

/// Requests on one connection, as long as it is kept. They count as one visit.
async fn several(data: SocketAddr, times: u32, body: &[u8], tally: &mut Tally) {
    let mut client = Client::connect(data).await;
    for _ in 0..times {
        client.send(&with_length(body, "")).await;
        let answer = client.try_answer().await;
        let stays = answer
            .as_ref()
            .is_some_and(|answer| !answer.says_close() && answer.end == End::Clean);
        tally.book(answer);
        if !stays {
            return;
        }
    }
}

/// Leaves at some point, with or without a reset.
async fn leave_http1(data: SocketAddr, step: u32, wait: u64, body: &[u8], tally: &mut Tally) {
    let mut client = Client::connect(data).await;
    let begin = match step {
        0 => Vec::new(),
        1 => b"POST /v1/chat/completions HTTP/1.1\r\nho".to_vec(),
        2 => {
            let length = body.len() + 100;
            [
                head(&format!("content-length: {length}\r\n\r\n")).as_bytes(),
                body,
            ]
            .concat()
        }
        3 => {
            let mut coded = chunked(body, 40, "");
            coded.truncate(coded.len() - 5);
            coded
        }
        _ => with_length(body, ""),
    };
    client.send(&begin).await;
    if step == 5 {
        // Its head may be a refusal.
        let _ = client.head(SOON).await;
    }
    pause(wait).await;
    if wait.is_multiple_of(2) {
        // An option of every socket.
        let _ = client.socket.set_zero_linger();
    }
    tally.left += 1;
}

/// Gives up a stream, or the whole connection.
async fn leave_http2(data: SocketAddr, wait: u64, body: &[u8], tally: &mut Tally) {
    let mut client = H2Client::connect(data).await;
    let mut exchange = client.begin(Some(body.len()), false).await;
    exchange.send(body).await;
    pause(wait).await;
    drop(exchange);
    if wait.is_multiple_of(2) {
        pause(5).await;
    }
    tally.left += 1;
}
