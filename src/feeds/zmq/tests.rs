//! Against an implementation that is not ours: the `zeromq` crate's PUB and ROUTER sockets, and a
//! bare listener for what no library would send.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use zeromq::{Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::*;

const BIG: usize = 1 << 20;

fn endpoint_of(bound: &Endpoint) -> TcpEndpoint {
    TcpEndpoint::parse(&bound.to_string()).unwrap()
}

async fn publisher(at: &str) -> (PubSocket, TcpEndpoint) {
    let mut socket = PubSocket::new();
    let bound = socket.bind(at).await.unwrap();
    (socket, endpoint_of(&bound))
}

fn message(frames: &[&[u8]]) -> ZmqMessage {
    let frames: Vec<Bytes> = frames.iter().map(|f| Bytes::copy_from_slice(f)).collect();
    ZmqMessage::try_from(frames).unwrap()
}

/// Publishes until the subscription hears of it: a subscription takes effect when it arrives.
async fn first_heard(publisher: &mut PubSocket, subscription: &mut Subscription) -> Message {
    let mut number = 0_u64;
    loop {
        number += 1;
        let frames: [&[u8]; 3] = [b"load", &number.to_be_bytes(), &[b'x'; 300]];
        publisher.send(message(&frames)).await.unwrap();
        let pause = tokio::time::sleep(Duration::from_millis(5));
        tokio::select! {
            event = subscription.next() => if let Event::Message(message) = event {
                return message;
            },
            () = pause => {}
        }
    }
}

#[tokio::test]
async fn a_subscriber_hears_its_topic_and_an_empty_topic_means_everything() {
    for (topic, hears_other) in [("load", false), ("", true)] {
        let (mut socket, endpoint) = publisher("tcp://127.0.0.1:0").await;
        let mut subscription = Subscription::new(endpoint, topic, BIG);
        let heard = first_heard(&mut socket, &mut subscription).await;
        assert_eq!((heard.len(), &heard[0][..]), (3, &b"load"[..]));
        assert_eq!(heard[2].len(), 300);
        socket.send(message(&[b"other", b""])).await.unwrap();
        socket.send(message(&[b"load", b"last"])).await.unwrap();
        let mut others = 0;
        loop {
            match subscription.next().await {
                Event::Message(m) if m[..] == [&b"load"[..], b"last"] => break,
                Event::Message(m) if m[0] == "other" => others += 1,
                Event::Message(_) => {}
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(others == 1, hears_other, "topic `{topic}`");
    }
}

#[tokio::test]
async fn a_publisher_that_comes_back_is_heard_again() {
    let (mut socket, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let mut subscription = Subscription::new(endpoint.clone(), "load", BIG);
    first_heard(&mut socket, &mut subscription).await;
    drop(socket);
    let mut pauses = Vec::new();
    while pauses.len() < 3 {
        if let Event::Lost(_, pause) = subscription.next().await {
            pauses.push(pause.as_millis());
        }
    }
    assert_eq!(pauses, [50, 100, 200]);
    let (mut socket, _) = publisher(&endpoint.to_string()).await;
    first_heard(&mut socket, &mut subscription).await;
}

#[tokio::test]
async fn a_dealer_gets_every_reply_frame_by_frame() {
    let mut router = RouterSocket::new();
    let bound = router.bind("tcp://127.0.0.1:0").await.unwrap();
    let serve = async {
        let request = router.recv().await.unwrap().into_vec();
        assert_eq!(request[1..], [&b""[..], &7_u64.to_be_bytes()]);
        for number in 7_u64..10 {
            let frames: [&[u8]; 4] = [&request[0], b"", &number.to_be_bytes(), b"payload"];
            router.send(message(&frames)).await.unwrap();
        }
        router
    };
    let endpoint = endpoint_of(&bound);
    let asked = async {
        let request: [&[u8]; 2] = [b"", &7_u64.to_be_bytes()];
        let limit = Duration::from_secs(60);
        let mut replies = ask(&endpoint, &request, BIG, limit).await.unwrap();
        for number in 7_u64..10 {
            let reply = replies.next().await.unwrap();
            assert_eq!(reply[..], [&b""[..], &number.to_be_bytes(), b"payload"]);
        }
    };
    let (_router, ()) = tokio::join!(serve, asked);
}

/// A peer that shakes hands and then sends `bytes`.
async fn peer(listener: &TcpListener, bytes: &[u8]) -> tokio::net::TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut greeting = [0; zmtp::GREETING];
    stream.write_all(&zmtp::greeting()).await.unwrap();
    stream.read_exact(&mut greeting).await.unwrap();
    stream.write_all(&zmtp::ready("PUB")).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

async fn bare() -> (TcpListener, TcpEndpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, TcpEndpoint::new("127.0.0.1", port))
}

#[tokio::test]
async fn a_peer_that_announces_an_endless_frame_is_dropped_and_costs_nothing() {
    let (listener, endpoint) = bare().await;
    let mut subscription = Subscription::new(endpoint, "", BIG);
    let huge = [&[0b010][..], &(1_u64 << 60).to_be_bytes()].concat();
    let told = async {
        assert!(matches!(subscription.next().await, Event::Connected));
        subscription.next().await
    };
    let (_stream, event) = tokio::join!(peer(&listener, &huge), told);
    let Event::Lost(error, pause) = event else {
        panic!("{event:?}");
    };
    let expected = ZmtpError::TooLarge(BIG);
    assert!(matches!(error, ZmqError::Protocol(found) if found == expected));
    assert_eq!(pause, MIN_BACK_OFF);
}

#[tokio::test]
async fn something_else_on_the_port_is_told_apart_from_silence() {
    let (listener, endpoint) = bare().await;
    let mut subscription = Subscription::new(endpoint, "", BIG);
    let http = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[b'H'; 64]).await.unwrap();
        stream
    };
    let (_stream, event) = tokio::join!(http, subscription.next());
    let Event::Lost(error, _) = event else {
        panic!("{event:?}");
    };
    assert!(error.to_string().contains("not a ZMTP 3 peer"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_shakes_hands_or_never_answers_is_late() {
    let (listener, endpoint) = bare().await;
    let mut subscription = Subscription::new(endpoint.clone(), "", BIG);
    let event = subscription.next().await;
    assert!(matches!(event, Event::Lost(ZmqError::Late, _)), "{event:?}");
    drop(listener.accept().await.unwrap());
    let limit = Duration::from_secs(2);
    let request: [&[u8]; 1] = [b"?"];
    let (_stream, replies) =
        tokio::join!(peer(&listener, &[]), ask(&endpoint, &request, BIG, limit));
    let error = replies.unwrap().next().await.unwrap_err();
    assert!(matches!(error, ZmqError::Late));
}
