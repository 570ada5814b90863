//! Settings of a model whose capability does not exist yet.
//!
//! Each is read and checked in full, so that a file is right or wrong today in the way it will be
//! later; a right value other than the default is then refused as "not supported yet". Nothing is
//! ignored. When a capability is built, its reader moves to a file of its own.
//! Domains: policy-semantics §16, §20.

use crate::config::reader::{Fields, Problems, Read};
use crate::config::scalars::{name, one_of, positive, time};
use crate::config::tree::Node;
use crate::workers::EngineUrl;

/// Checks everything here.
pub(super) fn model_settings(problems: &mut Problems, model: &Fields<'_>) {
    cache(problems, model);
}

// === cache ===

fn cache(problems: &mut Problems, model: &Fields<'_>) {
    let before = problems.count();
    let Some(fields) = problems.section(model, "cache", &["provider", "indexer"]) else {
        return;
    };
    let known = ["endpoint", "query_timeout", "query_max_inflight"];
    let indexer = fields.get("indexer").is_some();
    if let Some(fields) = problems.section(&fields, "indexer", &known)
        && indexer
    {
        problems.required(
            &fields,
            "endpoint",
            endpoint,
            "its address, such as http://10.0.0.10:50051",
        );
        problems.optional(&fields, "query_timeout", time);
        problems.optional(&fields, "query_max_inflight", positive);
    }
    // The default follows the other key. Source: policy-semantics §20, `--cache-prefix-provider`.
    let default = if indexer { "indexer" } else { "radix_tree" };
    let words = one_of(&["radix_tree", "indexer"], |word| word);
    let provider = problems.setting(&fields, "provider", words, default);
    if problems.count() > before {
        return;
    }
    match (provider, indexer) {
        (Some("indexer"), false) => {
            problems.add(
                &fields.place_of("provider"),
                "indexer needs `indexer: {endpoint: …}`",
            );
        }
        (Some("radix_tree"), true) => {
            problems.add(
                &fields.place_of("indexer"),
                "applies to `provider: indexer`, not to radix_tree",
            );
        }
        (_, true) => problems.unsupported(&fields.place_of("indexer"), "a remote prefix index"),
        (_, false) => {}
    }
}

fn endpoint(node: &Node) -> Read<EngineUrl> {
    let wanted = "expected http://HOST:PORT without user, path or query";
    EngineUrl::parse(&name(node)?).map_err(|_| wanted.to_owned())
}
