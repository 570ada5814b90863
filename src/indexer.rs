//! A remote prefix indexer as a source of prefix matches.
//!
//! One client per indexer and process: a lazy connection, a deadline on every query, and a cap on
//! queries in flight that refuses at once instead of queueing. An indexer that cannot answer is a
//! miss for routing, told apart in counters; one that calls the query wrong stops the request. No
//! retry, and no state of its own: block size and mode come from the engines.
//! Source: policy-semantics §17, engine-wire §5.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::kv::block_count;
use crate::kv::indexer::{MATCH_PATH, MAX_HASHES, MatchRequest, MatchResponse};
use crate::state::prefix::{
    BoxFuture, CacheSource, LocalPrefixes, LookupRejected, PrefixAnswer, PrefixMatches,
    PrefixQuery, Unavailable,
};

/// Largest answer that is read, bytes: a thousand engines and room to spare.
const MAX_ANSWER: usize = 4 << 20;

/// Where an indexer is and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexerParams {
    /// `http://HOST:PORT`.
    pub endpoint: String,
    /// For one query, the connection included.
    pub query_timeout: Duration,
    /// Queries at the same time; the next one fails at once.
    pub query_max_inflight: usize,
}

/// The client of one indexer; shared by all models that ask it.
pub struct IndexerClient {
    params: IndexerParams,
    places: Semaphore,
    /// Made at the first query, because it belongs to a runtime.
    channel: OnceCell<Channel>,
}

impl fmt::Debug for IndexerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexerClient")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl IndexerClient {
    /// A client that has connected to nothing yet.
    #[must_use]
    pub fn new(params: IndexerParams) -> Self {
        Self {
            places: Semaphore::new(params.query_max_inflight.min(Semaphore::MAX_PERMITS)),
            params,
            channel: OnceCell::new(),
        }
    }

    /// What it was made with.
    #[must_use]
    pub const fn params(&self) -> &IndexerParams {
        &self.params
    }

    /// Asks who holds the beginning of `names`.
    async fn query(&self, names: Vec<i64>) -> Result<MatchResponse, Failure> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(Failure::Unavailable(Unavailable::Overloaded));
        };
        let limit = self.params.query_timeout;
        match timeout(limit, self.call(names)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(Failure::of(&status)),
            Err(_) => Err(Failure::Unavailable(Unavailable::Timeout)),
        }
    }

    async fn call(&self, names: Vec<i64>) -> Result<MatchResponse, Status> {
        let channel = self
            .channel
            .get_or_try_init(async || self.connect())
            .await?;
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_ANSWER);
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(MatchRequest {
            hashes: names,
            max_blocks: 0,
        });
        request.set_timeout(self.params.query_timeout);
        let codec = ProstCodec::<MatchRequest, MatchResponse>::default();
        let path = PathAndQuery::from_static(MATCH_PATH);
        Ok(grpc.unary(request, path, codec).await?.into_inner())
    }

    fn connect(&self) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(self.params.endpoint.clone())
            .map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(endpoint
            .connect_timeout(self.params.query_timeout)
            .tcp_nodelay(true)
            .connect_lazy())
    }
}

/// Why a query has no answer.
enum Failure {
    Unavailable(Unavailable),
    Rejected(String),
}

impl Failure {
    /// Source: policy-semantics §17, "gRPC mapping".
    fn of(status: &Status) -> Self {
        Self::Unavailable(match status.code() {
            Code::Unavailable => Unavailable::Unreachable,
            Code::DeadlineExceeded | Code::Cancelled => Unavailable::Timeout,
            Code::ResourceExhausted => Unavailable::Overloaded,
            Code::OutOfRange => Unavailable::TooLarge,
            code => return Self::Rejected(format!("{code:?}: {}", status.message())),
        })
    }
}

/// One model's view of an indexer.
#[derive(Debug)]
pub struct RemotePrefixes {
    client: Arc<IndexerClient>,
    /// How the model's engines cut blocks; its index stays empty.
    formats: Arc<LocalPrefixes>,
}

impl RemotePrefixes {
    /// A source that asks `client` about prompts cut as `formats` has learned.
    #[must_use]
    pub const fn new(client: Arc<IndexerClient>, formats: Arc<LocalPrefixes>) -> Self {
        Self { client, formats }
    }

    async fn ask(&self, query: PrefixQuery<'_>) -> Result<PrefixAnswer, LookupRejected> {
        let format = match self.formats.format() {
            Some(format) if block_count(query.ids.len(), format) > 0 => format,
            _ => return Ok(PrefixAnswer::NoSignal),
        };
        let blocks = u32::try_from(block_count(query.ids.len(), format)).unwrap_or(u32::MAX);
        let mut names = self.formats.names(query.ids, format, query.salt).await;
        if names.len() > MAX_HASHES {
            tracing::warn!(
                blocks,
                asked = MAX_HASHES,
                "prefix query cut to what an indexer takes"
            );
            names.truncate(MAX_HASHES);
        }
        match self.client.query(names).await {
            Ok(response) => {
                let holders = response
                    .matches
                    .into_iter()
                    .map(|found| (found.worker_address.into(), found.matched_prefix_blocks));
                let size = Some(format.block_size.get());
                let matches = PrefixMatches::new(blocks, size, holders);
                Ok(PrefixAnswer::Matches(matches))
            }
            Err(Failure::Unavailable(why)) => Ok(PrefixAnswer::Unavailable(why)),
            Err(Failure::Rejected(why)) => Err(LookupRejected(why)),
        }
    }
}

impl CacheSource for RemotePrefixes {
    fn lookup<'a>(
        &'a self,
        query: PrefixQuery<'a>,
    ) -> BoxFuture<'a, Result<PrefixAnswer, LookupRejected>> {
        Box::pin(self.ask(query))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_map_to_outcomes() {
        let rows = [
            (Code::Unavailable, Some(Unavailable::Unreachable)),
            (Code::DeadlineExceeded, Some(Unavailable::Timeout)),
            (Code::Cancelled, Some(Unavailable::Timeout)),
            (Code::ResourceExhausted, Some(Unavailable::Overloaded)),
            (Code::OutOfRange, Some(Unavailable::TooLarge)),
            (Code::InvalidArgument, None),
            (Code::Internal, None),
            (Code::Unimplemented, None),
            (Code::Unknown, None),
        ];
        for (code, expected) in rows {
            let found = match Failure::of(&Status::new(code, "why")) {
                Failure::Unavailable(why) => Some(why),
                Failure::Rejected(why) => {
                    assert!(why.contains("why"));
                    None
                }
            };
            assert_eq!(found, expected, "{code:?}");
        }
    }
}
