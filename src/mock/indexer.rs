//! A small prefix indexer beside the engines: `kv_indexer.v1` over gRPC, filled by the engines of
//! this process as they store and evict.
//!
//! The match rule of a legacy worker: the leading run of blocks held on any tier. Soft state, no
//! liveness, no repair, as the interface promises. Source: engine-wire §5.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::engine::spawn;
use crate::kv::indexer::{
    APPLY_PATH, ApplyRequest, ApplyResponse, MATCH_PATH, MAX_REQUEST, MatchRequest, MatchResponse,
    PrefixMatch,
};
use crate::kv::{KvEvent, Medium, Tier};

/// What the indexer knows and how it behaves; clones share it.
#[derive(Debug, Clone, Default)]
pub struct IndexerHandle(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Tiers by block, by engine URL.
    workers: Mutex<HashMap<String, HashMap<i64, u8>>>,
    fault: Mutex<Fault>,
    queries: Mutex<u64>,
}

#[derive(Debug, Default, Clone)]
struct Fault {
    code: Option<i32>,
    delay: Duration,
}

impl IndexerHandle {
    /// Answers every query with this gRPC code (`None`: properly), after this time.
    pub fn fail(&self, code: Option<i32>, delay: Duration) {
        *self.0.fault.lock() = Fault { code, delay };
    }

    /// Queries taken so far.
    #[must_use]
    pub fn queries(&self) -> u64 {
        *self.0.queries.lock()
    }

    /// Blocks known of the engine at `url`.
    #[must_use]
    pub fn blocks(&self, url: &str) -> usize {
        self.0.workers.lock().get(url).map_or(0, HashMap::len)
    }

    /// An engine of this process changed its cache.
    pub(crate) fn apply(&self, url: &str, events: &[KvEvent]) {
        let mut workers = self.0.workers.lock();
        let held = workers.entry(url.to_owned()).or_default();
        for event in events {
            match event {
                KvEvent::Stored { hashes, medium, .. } => add(held, hashes, bits(*medium)),
                KvEvent::Removed { hashes, medium } => take(held, hashes, bits(*medium)),
                KvEvent::Cleared => held.clear(),
                KvEvent::Unknown => {}
            }
        }
    }

    fn matches(&self, request: &MatchRequest) -> Result<MatchResponse, Status> {
        if request.hashes.is_empty() {
            return Err(Status::invalid_argument("hashes are empty"));
        }
        let most = match request.max_blocks {
            0 => request.hashes.len(),
            most => most as usize,
        };
        let workers = self.0.workers.lock();
        let run = |held: &HashMap<i64, u8>| {
            let hashes = request.hashes.iter().take(most);
            hashes.take_while(|hash| held.contains_key(hash)).count()
        };
        let mut matches: Vec<PrefixMatch> = workers
            .iter()
            .map(|(url, held)| PrefixMatch {
                worker_address: url.clone(),
                matched_prefix_blocks: u32::try_from(run(held)).unwrap_or(u32::MAX),
                worker_id: url.clone(),
            })
            .filter(|found| found.matched_prefix_blocks > 0)
            .collect();
        matches.sort_by_key(|found| std::cmp::Reverse(found.matched_prefix_blocks));
        Ok(MatchResponse {
            best_prefix_blocks: matches.first().map_or(0, |best| best.matched_prefix_blocks),
            blocks_read: u32::try_from(request.hashes.len()).unwrap_or(u32::MAX),
            matches,
        })
    }

    fn apply_batch(&self, request: &ApplyRequest) -> Result<ApplyResponse, Status> {
        if request.worker_id.is_empty() {
            return Err(Status::invalid_argument("worker_id is empty"));
        }
        let mut workers = self.0.workers.lock();
        let held = workers.entry(request.worker_address.clone()).or_default();
        for action in &request.actions {
            let tier = match action.tier {
                1 => Tier::Device,
                2 => Tier::Host,
                3 => Tier::Disk,
                _ => return Err(Status::invalid_argument("unknown tier")),
            };
            match action.kind {
                1 => add(held, &action.hashes, tier.bit()),
                2 => take(held, &action.hashes, tier.bit()),
                3 => {
                    let all: Vec<i64> = held.keys().copied().collect();
                    take(held, &all, tier.bit());
                }
                _ => return Err(Status::invalid_argument("unknown action")),
            }
        }
        Ok(ApplyResponse {})
    }
}

fn bits(medium: Medium) -> u8 {
    match medium {
        Medium::Known(tier) => tier.bit(),
        Medium::Absent | Medium::Unknown => Tier::Device.bit(),
    }
}

fn add(held: &mut HashMap<i64, u8>, hashes: &[i64], bits: u8) {
    for hash in hashes {
        *held.entry(*hash).or_default() |= bits;
    }
}

fn take(held: &mut HashMap<i64, u8>, hashes: &[i64], bits: u8) {
    for hash in hashes {
        if let Some(tiers) = held.get_mut(hash) {
            *tiers &= !bits;
            if *tiers == 0 {
                held.remove(hash);
            }
        }
    }
}

/// A running indexer; it ends when this is dropped.
#[derive(Debug)]
pub struct Indexer {
    address: SocketAddr,
    handle: IndexerHandle,
    task: JoinHandle<()>,
}

impl Indexer {
    /// Starts an indexer over `handle` on the current runtime; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(listen: SocketAddr, handle: IndexerHandle) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let serving = Server::builder()
            .add_service(Door(handle.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let task = spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "a mock indexer stopped serving");
            }
        });
        Ok(Self {
            address,
            handle,
            task,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it knows.
    #[must_use]
    pub const fn handle(&self) -> &IndexerHandle {
        &self.handle
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Debug, Clone)]
struct Door(IndexerHandle);

impl NamedService for Door {
    const NAME: &'static str = "kv_indexer.v1.KVIndexer";
}

impl Service<http::Request<Body>> for Door {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let handle = self.0.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                MATCH_PATH => {
                    let codec = ProstCodec::<MatchResponse, MatchRequest>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST);
                    grpc.unary(Match(handle), request).await
                }
                APPLY_PATH => {
                    let codec = ProstCodec::<ApplyResponse, ApplyRequest>::default();
                    Grpc::new(codec).unary(Apply(handle), request).await
                }
                _ => Status::unimplemented("not a call of this service").into_http(),
            })
        })
    }
}

struct Match(IndexerHandle);

impl UnaryService<MatchRequest> for Match {
    type Response = MatchResponse;
    type Future = Answer<Result<Response<MatchResponse>, Status>>;

    fn call(&mut self, request: Request<MatchRequest>) -> Self::Future {
        let handle = self.0.clone();
        Box::pin(async move {
            *handle.0.queries.lock() += 1;
            let fault = handle.0.fault.lock().clone();
            tokio::time::sleep(fault.delay).await;
            match fault.code {
                Some(code) => Err(Status::new(Code::from(code), "injected failure")),
                None => handle.matches(request.get_ref()).map(Response::new),
            }
        })
    }
}

struct Apply(IndexerHandle);

impl UnaryService<ApplyRequest> for Apply {
    type Response = ApplyResponse;
    type Future = Answer<Result<Response<ApplyResponse>, Status>>;

    fn call(&mut self, request: Request<ApplyRequest>) -> Self::Future {
        let answer = self.0.apply_batch(request.get_ref());
        Box::pin(std::future::ready(answer.map(Response::new)))
    }
}
