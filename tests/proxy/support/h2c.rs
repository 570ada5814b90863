//! HTTP/2 with prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

use super::client::{Answer, End};
use super::{LARGE, SOON, leaks, spawn, within};

/// One connection.
#[derive(Debug, Clone)]
pub(crate) struct H2Client {
    send: SendRequest<Bytes>,
}

/// A request that is on its way.
#[derive(Debug)]
pub(crate) struct H2Exchange {
    pub(crate) response: ResponseFuture,
    pub(crate) upload: SendStream<Bytes>,
}

impl H2Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let handshake = async {
            let socket = TcpStream::connect(address).await.expect("a listener");
            socket.set_nodelay(true).expect("an option of every socket");
            h2::client::handshake(socket).await.expect("a handshake")
        };
        let (send, connection) = within(SOON, "an HTTP/2 handshake", handshake).await;
        spawn(async move {
            // Its end shows in the streams.
            let _ = connection.await;
        });
        Self { send }
    }

    /// Sends the head of a chat.
    pub(crate) async fn begin(&mut self, length: Option<usize>, end: bool) -> H2Exchange {
        let mut request = Request::post("http://edge/v1/chat/completions");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let request = request.body(()).expect("a sane request");
        self.send_request(request, end).await
    }

    /// Sends any head.
    pub(crate) async fn send_request(&mut self, request: Request<()>, end: bool) -> H2Exchange {
        let ready = self.send.clone().ready();
        self.send = within(SOON, "room for a stream", ready)
            .await
            .expect("an open connection");
        let (response, upload) = self.send.send_request(request, end).expect("a stream");
        H2Exchange { response, upload }
    }

    /// A whole chat, sent as far as the proxy takes it, and its answer.
    pub(crate) async fn chat(&mut self, body: &[u8], with_length: bool) -> Answer {
        let length = with_length.then_some(body.len());
        let mut exchange = self.begin(length, body.is_empty()).await;
        if !body.is_empty() {
            exchange.send(body).await;
        }
        exchange.answer().await
    }
}

impl H2Exchange {
    /// Sends the body to its end, or until the proxy wants no more.
    pub(crate) async fn send(&mut self, body: &[u8]) {
        let whole = Bytes::copy_from_slice(body);
        let mut sent = 0;
        while sent < whole.len() {
            self.upload
                .reserve_capacity((whole.len() - sent).min(1 << 16));
            let capacity = std::future::poll_fn(|cx| self.upload.poll_capacity(cx));
            let Some(Ok(room)) = within(LARGE, "room for data", capacity).await else {
                return;
            };
            let until = (sent + room).min(whole.len());
            let piece = whole.slice(sent..until);
            sent = until;
            if self.upload.send_data(piece, sent == whole.len()).is_err() {
                return;
            }
        }
    }

    /// The answer to its end.
    pub(crate) async fn answer(self) -> Answer {
        let response = within(LARGE, "an HTTP/2 answer", self.response).await;
        let (head, body) = response.expect("an answer").into_parts();
        let headers = readable(&head.headers);
        leaks::check(format!("{headers:?}").as_bytes(), b"");
        let (body, end) = read(body).await;
        leaks::check(b"", &body);
        let answer = Answer {
            status: head.status.as_u16(),
            headers,
            body,
            end,
        };
        for forbidden in ["connection", "transfer-encoding", "keep-alive"] {
            assert_eq!(answer.header(forbidden), None, "not in HTTP/2");
        }
        answer
    }
}

async fn read(mut body: RecvStream) -> (Vec<u8>, End) {
    let mut whole = Vec::new();
    loop {
        match within(LARGE, "HTTP/2 data", body.data()).await {
            None => return (whole, End::Clean),
            Some(Err(_)) => return (whole, End::Cut),
            Some(Ok(piece)) => {
                // Fails only on a stream that is over.
                let _ = body.flow_control().release_capacity(piece.len());
                whole.extend_from_slice(&piece);
            }
        }
    }
}

fn readable(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let pairs = headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)));
    pairs.collect()
}
