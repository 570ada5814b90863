//! Over real sockets of an independent library, on a real clock: nothing is asserted about time.

use std::sync::Arc;

use bytes::Bytes;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::*;
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
        let feeds = LoadFeeds::new(Arc::clone(&table), Arc::clone(&stats));
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
