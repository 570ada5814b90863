//! When a prompt need not be counted.
//!
//! A count serves two purposes: it tells which buckets fit, and its ids tell policies and engines
//! what the prompt is. Where nobody reads ids and every count that the prompt can have fits the same
//! buckets, counting changes nothing. The order of buckets does not depend on the count, so equal
//! sets are equal decisions; a property test compares them. Source: the design's §3 steps 1 to 4.
//!
//! What remains of the count is load accounting by tokens, which no policy reads; it gets the size
//! estimate, moved into the range that is known.

use crate::server::routing::ModelRouting;
use crate::tokenizer::TokenRange;

/// Whether every count in `range` leads to the same decision for a request of `model` that asks for
/// `output_tokens` tokens of output (`None`: it does not say).
#[must_use]
pub fn decided(model: &ModelRouting, range: TokenRange, output_tokens: Option<u64>) -> bool {
    let overflows = |output: u64| range.most.checked_add(output).is_none();
    if model.needs_ids() || output_tokens.is_some_and(overflows) {
        return false;
    }
    let mut limits = model
        .resolver
        .buckets()
        .iter()
        .map(|bucket| bucket.limits());
    limits.all(|limits| limits.indifferent(range.least, range.most, output_tokens))
}
