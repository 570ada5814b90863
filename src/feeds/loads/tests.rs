//! Over real sockets of an independent library, on a real clock: nothing is asserted about time.

use std::sync::Arc;

use bytes::Bytes;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::*;
use crate::feeds::zmtp;
use crate::ids::Stage;
use crate::workers::{EngineUrl, WorkerSpec};

fn engine(id: &str, port: u16) -> Arc<Worker> {
    let spec = WorkerSpec {
        id: id.into(),
        url: EngineUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap(),
        model: "m".into(),
        role: Stage::Plain,
        bootstrap_port: None,
    };
    Arc::new(Worker::new(spec, None))
}

/// A basic report of `running` requests, below 128.
fn report(running: u8) -> Vec<u8> {
    [&b"\x95\xa8LoadStat"[..], &[running, 0, 0, 10]].concat()
}

/// Consecutive ports, one publisher each.
async fn publishers(ranks: u16) -> (Vec<PubSocket>, TcpEndpoint) {
    'search: for base in (42_300..42_900).step_by(usize::from(ranks)) {
        let mut sockets = Vec::new();
        for port in base..base + ranks {
            let mut socket = PubSocket::new();
            if socket
                .bind(&format!("tcp://127.0.0.1:{port}"))
                .await
                .is_err()
            {
                continue 'search;
            }
            sockets.push(socket);
        }
        return (sockets, TcpEndpoint::new("127.0.0.1", base));
    }
    panic!("no free ports");
}

fn member(engine: &Arc<Worker>, load: &TcpEndpoint, ranks: u32) -> Member {
    Member {
        engine: Arc::clone(engine),
        publishers: Some(Arc::new(Publishers {
            events: TcpEndpoint::new("127.0.0.1", 1),
            replay: None,
            topic: String::new(),
            block_size: None,
            ranks,
            load: Some(load.clone()),
            load_topic: "load".to_owned(),
        })),
    }
}

async fn publish(socket: &mut PubSocket, payload: &[u8]) {
    let frames: [&[u8]; 3] = [b"load", &[0; 8], payload];
    let frames: Vec<Bytes> = frames.iter().map(|f| Bytes::copy_from_slice(f)).collect();
    socket
        .send(ZmqMessage::try_from(frames).unwrap())
        .await
        .unwrap();
}

struct Rig {
    feeds: LoadFeeds,
    table: Arc<EngineLoadTable>,
    stats: Arc<FeedStats>,
}

impl Rig {
    fn new() -> Self {
        let (table, stats) = (Arc::default(), Arc::default());
        let feeds = LoadFeeds::new(Arc::clone(&table), Arc::clone(&stats)).unwrap();
        Self {
            feeds,
            table,
            stats,
        }
    }

    fn running(&self, engine: &Worker) -> Option<u64> {
        let snapshot = self.table.capture([engine.id()]);
        snapshot.get(engine.id()).map(|load| load.running_requests)
    }

    /// Publishes on each socket until `done`.
    async fn until(&self, sockets: &mut [(&mut PubSocket, &[u8])], done: impl Fn(&Self) -> bool) {
        while !done(self) {
            for (socket, payload) in sockets.iter_mut() {
                publish(socket, payload).await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn count(&self, label: &str) -> u64 {
        let all = self.stats.reports();
        all.iter().find(|(found, _)| *found == label).unwrap().1
    }
}

#[tokio::test]
async fn an_engine_is_known_once_every_rank_has_been_heard() {
    let (mut sockets, base) = publishers(2).await;
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    rig.feeds.reconcile(vec![member(&e1, &base, 2)]);
    let (one, two) = (report(3), report(4));
    let [first, second] = &mut sockets[..] else {
        unreachable!()
    };
    rig.until(&mut [(first, &one)], |rig| rig.count("accepted") > 3)
        .await;
    assert_eq!(rig.running(&e1), None);
    rig.until(&mut [(second, &two)], |rig| rig.running(&e1) == Some(7))
        .await;
}

#[tokio::test]
async fn malformed_reports_are_counted_and_change_nothing() {
    let (mut sockets, base) = publishers(1).await;
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let good = report(3);
    rig.until(&mut [(&mut sockets[0], &good)], |rig| {
        rig.running(&e1) == Some(3)
    })
    .await;
    let mut half = report(9);
    half[0] = 0x97;
    half.extend([0, 1]);
    rig.until(&mut [(&mut sockets[0], &half)], |rig| {
        rig.count("malformed") > 2
    })
    .await;
    assert_eq!(rig.running(&e1), Some(3));
}

#[tokio::test]
async fn a_removed_engine_is_forgotten_at_once_and_its_feed_reports_no_more() {
    let (mut sockets, base) = publishers(1).await;
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let good = report(3);
    rig.until(&mut [(&mut sockets[0], &good)], |rig| {
        rig.running(&e1) == Some(3)
    })
    .await;
    rig.feeds.reconcile(Vec::new());
    assert_eq!(rig.running(&e1), None);
    for _ in 0..20 {
        publish(&mut sockets[0], &good).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(rig.table.last(e1.id()), (None, None));
}

#[tokio::test]
async fn the_same_id_at_another_address_starts_without_the_load_of_the_old_one() {
    let (mut sockets, base) = publishers(1).await;
    let (mut rig, old) = (Rig::new(), engine("e1", 1));
    rig.feeds.reconcile(vec![member(&old, &base, 1)]);
    let good = report(3);
    rig.until(&mut [(&mut sockets[0], &good)], |rig| {
        rig.running(&old) == Some(3)
    })
    .await;
    // A reload that changes nothing keeps load and subscription.
    let kept = Worker::succeed(old.spec().clone(), None, &old);
    rig.feeds.reconcile(vec![member(&Arc::new(kept), &base, 1)]);
    assert_eq!(rig.running(&old), Some(3));
    let new = Arc::new(Worker::succeed(engine("e1", 2).spec().clone(), None, &old));
    let silent = Member {
        publishers: None,
        ..member(&new, &base, 1)
    };
    rig.feeds.reconcile(vec![silent]);
    assert_eq!(rig.running(&new), None);
}

#[tokio::test]
async fn another_number_of_ranks_starts_afresh_and_a_lost_publisher_asks_the_engine_again() {
    let (mut sockets, base) = publishers(2).await;
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let good = report(3);
    rig.until(&mut [(&mut sockets[0], &good)], |rig| {
        rig.running(&e1) == Some(3)
    })
    .await;
    rig.feeds.reconcile(vec![member(&e1, &base, 2)]);
    assert_eq!(rig.running(&e1), None);
    let [first, second] = &mut sockets[..] else {
        unreachable!()
    };
    let mut both: [(&mut PubSocket, &[u8]); 2] = [(first, &good), (second, &good)];
    rig.until(&mut both, |rig| rig.running(&e1) == Some(6))
        .await;
    let later = Instant::now() + Duration::from_secs(3600);
    e1.introspection().ask_again(later);
    let lost = rig.stats.connections_lost();
    drop(sockets);
    rig.until(&mut [], |rig| rig.stats.connections_lost() > lost + 1)
        .await;
    assert!(
        e1.introspection()
            .due(Instant::now() + Duration::from_secs(5))
    );
}

/// A peer that shakes hands as a PUB and takes the subscription.
async fn bare_publisher(listener: &tokio::net::TcpListener) -> tokio::net::TcpStream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut stream, _) = listener.accept().await.unwrap();
    let hello = [&zmtp::greeting()[..], &zmtp::ready("PUB")].concat();
    stream.write_all(&hello).await.unwrap();
    let theirs = zmtp::GREETING + zmtp::ready("SUB").len() + zmtp::message(&[b"\x01load"]).len();
    stream.read_exact(&mut vec![0; theirs]).await.unwrap();
    stream
}

async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Reports that come in pieces, or several at once, and a peer that leaves right after one.
#[tokio::test]
async fn reports_are_taken_however_their_bytes_come() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    let base = TcpEndpoint::new("127.0.0.1", port);
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let mut stream = bare_publisher(&listener).await;
    let bytes = |running| zmtp::message(&[b"load", &[0; 8], &report(running)]);
    for byte in &bytes(3)[..] {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    until(|| rig.running(&e1) == Some(3)).await;
    let two_and_a_half = [&bytes(4)[..], &bytes(5), &bytes(6)[..20]].concat();
    stream.write_all(&two_and_a_half).await.unwrap();
    until(|| rig.running(&e1) == Some(5)).await;
    stream.write_all(&bytes(6)[20..]).await.unwrap();
    until(|| rig.running(&e1) == Some(6)).await;
    assert_eq!(
        (rig.count("accepted"), rig.stats.connections_lost()),
        (4, 0)
    );
    stream.write_all(&bytes(7)).await.unwrap();
    drop(stream);
    until(|| rig.stats.connections_lost() > 0).await;
    assert_eq!(rig.running(&e1), Some(7));
    // And it is connected again.
    let mut stream = bare_publisher(&listener).await;
    stream.write_all(&bytes(8)).await.unwrap();
    until(|| rig.running(&e1) == Some(8)).await;
}

#[tokio::test]
async fn a_line_on_which_nothing_comes_is_given_up_at_the_limit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    let base = TcpEndpoint::new("127.0.0.1", port);
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let _stream = bare_publisher(&listener).await;
    let hub = Arc::clone(rig.feeds.reader.hub());
    let limit = hub::SILENCE;
    hub.end_silent(Instant::now() + limit - Duration::from_secs(5));
    assert_eq!(rig.stats.connections_lost(), 0);
    // Again and again: the line is handed over some time after the subscription was sent.
    until(|| {
        hub.end_silent(Instant::now() + limit);
        rig.stats.connections_lost() > 0
    })
    .await;
    let _again = bare_publisher(&listener).await;
}

#[tokio::test]
async fn a_peer_that_announces_too_much_is_dropped() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut rig, e1) = (Rig::new(), engine("e1", 1));
    let base = TcpEndpoint::new("127.0.0.1", port);
    rig.feeds.reconcile(vec![member(&e1, &base, 1)]);
    let mut stream = bare_publisher(&listener).await;
    let endless = [&[0b010][..], &(1_u64 << 60).to_be_bytes()].concat();
    stream.write_all(&endless).await.unwrap();
    until(|| rig.stats.connections_lost() == 1).await;
    let mut stream = bare_publisher(&listener).await;
    let good = zmtp::message(&[b"load", &[0; 8], &report(2)]);
    stream.write_all(&good).await.unwrap();
    until(|| rig.running(&e1) == Some(2)).await;
}
