//! Settings of a model whose capability does not exist yet.
//!
//! Each is read and checked in full, so that a file is right or wrong today in the way it will be
//! later; a right value other than the default is then refused as "not supported yet". Nothing is
//! ignored. When a capability is built, its reader moves to a file of its own.
//! Domains: policy-semantics §16, §20.

use crate::config::reader::{At, Fields, Problems, Read, found, short};
use crate::config::scalars::{boolean, name, one_of, positive, string, time};
use crate::config::tree::{Node, Value};
use crate::workers::{EngineUrl, WorkerSpec};

/// Checks everything here. `engines` is `None` where the list is not known.
pub(super) fn model_settings(
    problems: &mut Problems,
    model: &Fields<'_>,
    engines: Option<&[WorkerSpec]>,
) {
    if problems.setting(model, "forward_input_ids", boolean, false) == Some(true) {
        let place = model.place_of("forward_input_ids");
        problems.unsupported(&place, "forwarding token ids to engines");
    }
    cache(problems, model);
    kv_events(problems, model, engines);
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

// === kv_events ===

fn kv_events(problems: &mut Problems, model: &Fields<'_>, engines: Option<&[WorkerSpec]>) {
    let Some(at) = model.get("kv_events") else {
        return;
    };
    let Value::Map(entries) = &at.node.value else {
        let words = one_of(&["auto", "off"], |word| word);
        problems.value(&at, |node| {
            words(node).map_err(|_| {
                format!(
                    "expected auto, off or a map of engine ids, found {}",
                    found(node)
                )
            })
        });
        return;
    };
    let before = problems.count();
    for (engine, node) in entries {
        let at = At {
            place: at.place.key(engine, node.line),
            node,
        };
        let unknown =
            |engines: &&[WorkerSpec]| engines.iter().all(|spec| spec.id.as_str() != engine);
        if engines.as_ref().is_some_and(unknown) {
            problems.add(
                &at.place,
                format_args!("no engine of this model has the id `{}`", short(engine)),
            );
        }
        publisher(problems, &at);
    }
    if problems.count() == before {
        problems.unsupported(&at.place, "naming event publishers by hand");
    }
}

fn publisher(problems: &mut Problems, at: &At<'_>) {
    let known = [
        "endpoint",
        "replay_endpoint",
        "topic",
        "dp_size",
        "block_size",
        "load_endpoint",
    ];
    let Some(fields) = problems.map(at, &known) else {
        return;
    };
    problems.required(
        &fields,
        "endpoint",
        zmq,
        "its address, such as tcp://10.0.0.1:5557",
    );
    problems.optional(&fields, "replay_endpoint", zmq);
    problems.optional(&fields, "load_endpoint", zmq);
    problems.optional(&fields, "topic", string);
    problems.optional(&fields, "dp_size", positive);
    problems.optional(&fields, "block_size", positive);
}

fn zmq(node: &Node) -> Read<String> {
    let text = name(node)?;
    let port = text
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(text),
        Some(0) | None => Err(format!("`{}` is not tcp://HOST:PORT", short(&text))),
    }
}
