//! Where a model's prefix matches come from. Domains: policy-semantics §20.

use std::time::Duration;

use crate::config::reader::{Fields, Problems, Read};
use crate::config::scalars::{name, one_of, positive, time};
use crate::config::tree::Node;
use crate::config::types::{Cache, Indexer};
use crate::workers::EngineUrl;

/// The section `cache` of a model.
pub(super) fn cache(problems: &mut Problems, model: &Fields<'_>) -> Option<Cache> {
    let before = problems.count();
    let fields = problems.section(model, "cache", &["provider", "indexer"])?;
    let given = fields.get("indexer").is_some();
    let indexer = indexer(problems, &fields, given);
    // The default follows the other key. Source: policy-semantics §20, `--cache-prefix-provider`.
    let default = if given { "indexer" } else { "radix_tree" };
    let words = one_of(&["radix_tree", "indexer"], |word| word);
    let provider = problems.setting(&fields, "provider", words, default)?;
    if problems.count() > before {
        return None;
    }
    match (provider, given) {
        ("indexer", false) => {
            problems.add(
                &fields.place_of("provider"),
                "indexer needs `indexer: {endpoint: …}`",
            );
            None
        }
        ("radix_tree", true) => {
            problems.add(
                &fields.place_of("indexer"),
                "applies to `provider: indexer`, not to radix_tree",
            );
            None
        }
        (_, true) => Some(Cache::Indexer(indexer?)),
        (_, false) => Some(Cache::RadixTree),
    }
}

/// The indexer, when one is `given`.
fn indexer(problems: &mut Problems, cache: &Fields<'_>, given: bool) -> Option<Indexer> {
    let known = ["endpoint", "query_timeout", "query_max_inflight"];
    let fields = problems.section(cache, "indexer", &known)?;
    if !given {
        return None;
    }
    let example = "its address, such as http://10.0.0.10:50051";
    let endpoint = problems.required(&fields, "endpoint", endpoint, example);
    let timeout = Duration::from_millis(100);
    let timeout = problems.setting(&fields, "query_timeout", time, timeout);
    let inflight = problems.setting(&fields, "query_max_inflight", positive, 32);
    Some(Indexer {
        endpoint: endpoint?,
        query_timeout: timeout?,
        query_max_inflight: usize::try_from(inflight?).unwrap_or(usize::MAX),
    })
}

fn endpoint(node: &Node) -> Read<EngineUrl> {
    let wanted = "expected http://HOST:PORT without user, path or query";
    EngineUrl::parse(&name(node)?).map_err(|_| wanted.to_owned())
}
