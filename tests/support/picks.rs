//! Requests, and asking policies, groups and buckets. Nothing local waits: every answer is there
//! at the first poll, which [`now`] insists on.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use sgl_edge::buckets::{
    Bucket, BucketError, BucketGroups, BucketPick, BucketRequest, EngineGroup, TokenLimits,
};
use sgl_edge::ids::{BucketId, ModelId, Stage};
use sgl_edge::policies::{Pick, PickError, PickRequest, Policy};
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::workers::{Worker, WorkerRegistry};

use super::engines::MODEL;

/// The answer of a future that must not wait.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("an answer without waiting")
}

/// For requests whose prefix nobody knows.
pub(crate) static NO_PREFIX: PrefixMemo<'static> = PrefixMemo::none();

/// The facts of a short request of `model`.
pub(crate) fn facts(model: &ModelId) -> BucketRequest<'_> {
    BucketRequest {
        model,
        input_tokens: 1,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: None,
        routing_key: None,
        prefix: &NO_PREFIX,
        explain: None,
    }
}

fn at<'a>(model: &'a ModelId, stage: Stage, bucket: &'a BucketId) -> PickRequest<'a> {
    PickRequest {
        model,
        stage,
        bucket,
        input_tokens: 1,
        expected_peak_tokens: None,
        token_ids: None,
        session_key: None,
        routing_key: None,
        prefix: &NO_PREFIX,
        explain: None,
    }
}

/// Asks a policy to choose among `engines`.
pub(crate) fn ask(
    policy: &dyn Policy,
    engines: &[Arc<Worker>],
    stage: Stage,
) -> Result<Pick, PickError> {
    let (model, bucket) = (MODEL.into(), "b".into());
    now(policy.pick(engines, &at(&model, stage, &bucket)))
}

/// The id of the engine that a policy must choose among plain `engines`.
pub(crate) fn chosen(policy: &dyn Policy, engines: &[Arc<Worker>]) -> String {
    chosen_at(policy, engines, Stage::Plain)
}

/// The id of the engine that a policy must choose for `stage`.
pub(crate) fn chosen_at(policy: &dyn Policy, engines: &[Arc<Worker>], stage: Stage) -> String {
    let pick = ask(policy, engines, stage).expect("a pick");
    pick.engine.id().to_string()
}

/// Asks a group for an engine of `model`.
pub(crate) fn ask_group(
    group: &EngineGroup,
    workers: &WorkerRegistry,
    model: &str,
    stage: Stage,
) -> Result<Pick, PickError> {
    let (model, bucket) = (model.into(), "b".into());
    now(group.pick(workers, &at(&model, stage, &bucket)))
}

/// Asks a bucket for a complete selection of [`MODEL`].
pub(crate) fn ask_bucket(
    bucket: &Bucket,
    workers: &WorkerRegistry,
) -> Result<BucketPick, BucketError> {
    let model = MODEL.into();
    now(bucket.pick_engines(workers, &facts(&model)))
}

/// The ids of a selection: one plain engine, or prefill and decode.
pub(crate) fn ids(pick: &BucketPick) -> Vec<String> {
    let picks = match pick {
        BucketPick::Plain(pick) => vec![pick],
        BucketPick::Pd { prefill, decode } => vec![prefill, decode],
    };
    let ids = picks.into_iter().map(|pick| pick.engine.id().to_string());
    ids.collect()
}

/// A bucket without limits, of rank 0.
pub(crate) fn unlimited(id: &str, groups: BucketGroups) -> Bucket {
    Bucket::new(id.into(), 0, TokenLimits::default(), groups)
}
