//! The publisher of one rank: numbered messages on a PUB socket, the last ones again on a ROUTER.
//!
//! One task writes both, as the engine's publishing thread does. Numbers are dense; a message that a
//! fault keeps from the live socket still has its number and its place in the buffer.
//! Source: engine-wire §1.2, §1.4, §1.6.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zeromq::{Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::kv::wire::{Shape, encode};
use crate::kv::{EventBatch, KvEvent};
use crate::mock::config::EngineConfig;
use crate::mock::engine::spawn;
use crate::mock::faults::{FaultsHandle, Replay};

/// Messages kept for replay, `buffer_steps`. Source: engine-wire §1.1.
const BUFFER: usize = 10_000;
/// Sequence of the end marker and of a reset.
const END: [u8; 8] = [0xff; 8];

#[derive(Debug)]
enum Order {
    Publish(Vec<(KvEvent, Vec<u32>)>),
    Restart,
    Reset,
}

/// The handle; its sockets close when it is dropped.
#[derive(Debug)]
pub(super) struct Publisher {
    orders: mpsc::UnboundedSender<Order>,
    ports: (u16, Option<u16>),
    task: JoinHandle<()>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Publisher {
    /// Binds rank `rank` of an engine whose rank 0 has these ports; port 0 takes a free one.
    pub(super) async fn bind(
        config: &EngineConfig,
        events: u16,
        replay: Option<u16>,
        rank: u16,
        faults: &FaultsHandle,
    ) -> io::Result<Self> {
        let ip = config.listen.ip();
        let mut socket = PubSocket::new();
        let events = bind(&mut socket, ip, events, rank).await?;
        let router = match replay {
            None => None,
            Some(port) => {
                let mut router = RouterSocket::new();
                let port = bind(&mut router, ip, port, rank).await?;
                Some((router, port))
            }
        };
        let (router, replay) = router.unzip();
        let (orders, inbox) = mpsc::unbounded_channel();
        let task = Task {
            topic: Bytes::copy_from_slice(config.kv_topic.as_bytes()),
            rank,
            next: 0,
            buffer: VecDeque::new(),
            faults: faults.clone(),
            socket,
        };
        let task = spawn(task.run(router, inbox));
        Ok(Self {
            orders,
            ports: (events, replay),
            task,
        })
    }

    pub(super) const fn ports(&self) -> (u16, Option<u16>) {
        self.ports
    }

    pub(super) fn publish(&self, events: Vec<(KvEvent, Vec<u32>)>) {
        self.order(Order::Publish(events));
    }

    pub(super) fn restart(&self) {
        self.order(Order::Restart);
    }

    pub(super) fn send_reset(&self) {
        self.order(Order::Reset);
    }

    /// Closes the sockets; nothing is published after this.
    pub(super) fn close(&self) {
        self.task.abort();
    }

    fn order(&self, order: Order) {
        // The task ends only with the engine.
        let _ = self.orders.send(order);
    }
}

/// Attempts to bind: the sockets of an engine that was shut down a moment ago close on their own.
const ATTEMPTS: u32 = 40;

async fn bind(
    socket: &mut impl Socket,
    ip: std::net::IpAddr,
    port: u16,
    rank: u16,
) -> io::Result<u16> {
    let wanted = if port == 0 {
        0
    } else {
        port.saturating_add(rank)
    };
    let address = std::net::SocketAddr::new(ip, wanted);
    let mut attempt = 0;
    loop {
        attempt += 1;
        match socket.bind(&format!("tcp://{address}")).await {
            Ok(Endpoint::Tcp(_, port)) => return Ok(port),
            Ok(other) => return Err(io::Error::other(format!("bound to {other}"))),
            Err(error) if attempt == ATTEMPTS => {
                return Err(io::Error::other(format!("kv events on {address}: {error}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

struct Task {
    topic: Bytes,
    rank: u16,
    next: u64,
    buffer: VecDeque<(u64, Bytes)>,
    faults: FaultsHandle,
    socket: PubSocket,
}

impl Task {
    async fn run(
        mut self,
        mut router: Option<RouterSocket>,
        mut inbox: mpsc::UnboundedReceiver<Order>,
    ) {
        loop {
            let asked = async {
                match &mut router {
                    Some(router) => router.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                order = inbox.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                request = asked => {
                    if let (Ok(request), Some(router)) = (request, &mut router) {
                        self.replay(router, request.into_vec()).await;
                    }
                }
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Publish(events) => self.publish(events).await,
            Order::Restart => {
                self.next = 0;
                self.buffer.clear();
            }
            Order::Reset => self.send(Bytes::from_static(&END), Bytes::new()).await,
        }
    }

    async fn publish(&mut self, events: Vec<(KvEvent, Vec<u32>)>) {
        let faults = self.faults.get();
        let (events, tokens): (Vec<_>, Vec<_>) = events.into_iter().unzip();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let batch = EventBatch {
            timestamp: now.map_or(0.0, |now| now.as_secs_f64()),
            events,
            rank: Some(i64::from(self.rank)),
        };
        let shape = match faults.kv_arrays {
            true => Shape::Array,
            false => Shape::Map,
        };
        let Ok(payload) = encode(&batch, &tokens, shape) else {
            return;
        };
        let payload = Bytes::from(payload);
        let sequence = self.next;
        self.next += 1;
        if self.buffer.len() == BUFFER {
            self.buffer.pop_front();
        }
        self.buffer.push_back((sequence, payload.clone()));
        if faults.kv_garbage {
            self.send(number(sequence), Bytes::from_static(b"\xc1garbage"))
                .await;
        } else if !faults.kv_silent {
            self.send(number(sequence), payload).await;
        }
    }

    async fn send(&mut self, sequence: Bytes, payload: Bytes) {
        let frames = vec![self.topic.clone(), sequence, payload];
        if let Ok(message) = ZmqMessage::try_from(frames) {
            // A subscriber that went away is no error of the engine.
            let _ = self.socket.send(message).await;
        }
    }

    /// Answers `identity, "", start`; anything else gets no answer.
    async fn replay(&self, router: &mut RouterSocket, request: Vec<Bytes>) {
        let [identity, delimiter, start] = request.as_slice() else {
            return;
        };
        let Ok(start) = <[u8; 8]>::try_from(start.as_ref()) else {
            return;
        };
        let mode = self.faults.get().kv_replay;
        if !delimiter.is_empty() || mode == Replay::Silent {
            return;
        }
        let start = u64::from_be_bytes(start);
        let found = self
            .buffer
            .iter()
            .filter(|(sequence, _)| *sequence >= start);
        let found = found.map(|(sequence, payload)| (number(*sequence), payload.clone()));
        let end = [(Bytes::from_static(&END), Bytes::new())];
        let topics = [self.topic.clone(), Bytes::new()];
        for (sequence, payload) in found.chain(end) {
            let is_end = sequence == END[..];
            let mut frames = vec![identity.clone(), Bytes::new()];
            if mode == Replay::WithTopic {
                frames.push(topics[usize::from(is_end)].clone());
            }
            frames.extend([sequence, payload]);
            if let Ok(message) = ZmqMessage::try_from(frames) {
                // A client that went away is no error of the engine.
                let _ = router.send(message).await;
            }
        }
    }
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}
