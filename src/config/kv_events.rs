//! Where the KV events and load reports of a model's engines come from.
//!
//! `auto` asks each engine, `off` subscribes to nothing, a map names the publishers of some engines
//! by hand; the engines it leaves out publish nothing. Connects to nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::reader::{At, Fields, Problems, Read, found, short};
use crate::config::scalars::{between, name, one_of, string};
use crate::config::tree::{Node, Value};
use crate::config::types::KvEvents;
use crate::ids::WorkerId;
use crate::workers::{LOAD_TOPIC, Publishers, TcpEndpoint, WorkerSpec};

/// The setting. `engines` is `None` where the list is not known.
pub(super) fn kv_events(
    problems: &mut Problems,
    model: &Fields<'_>,
    engines: Option<&[WorkerSpec]>,
) -> Option<KvEvents> {
    let Some(at) = model.get("kv_events") else {
        return Some(KvEvents::Auto);
    };
    let Value::Map(entries) = &at.node.value else {
        return problems.value(&at, word);
    };
    let mut named = BTreeMap::new();
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
        if let Some(publishers) = publishers(problems, &at) {
            named.insert(WorkerId::from(engine.as_str()), Arc::new(publishers));
        }
    }
    (problems.count() == before).then_some(KvEvents::Explicit(named))
}

fn word(node: &Node) -> Read<KvEvents> {
    match one_of(&["auto", "off"], |word| word)(node) {
        Ok("off") => Ok(KvEvents::Off),
        Ok(_) => Ok(KvEvents::Auto),
        Err(_) => Err(format!(
            "expected auto, off or a map of engine ids, found {}",
            found(node)
        )),
    }
}

fn publishers(problems: &mut Problems, at: &At<'_>) -> Option<Publishers> {
    let known = [
        "endpoint",
        "replay_endpoint",
        "topic",
        "dp_size",
        "block_size",
        "load_endpoint",
    ];
    let fields = problems.map(at, &known)?;
    let events = problems.required(
        &fields,
        "endpoint",
        endpoint,
        "its address, such as tcp://10.0.0.1:5557",
    );
    let replay = problems.optional(&fields, "replay_endpoint", endpoint);
    let load = problems.optional(&fields, "load_endpoint", endpoint);
    let topic = problems.setting(&fields, "topic", string, String::new());
    let ranks = problems.setting(&fields, "dp_size", count, 1);
    let block_size = problems.optional(&fields, "block_size", count);
    Some(Publishers {
        events: events?,
        replay: replay?,
        topic: topic?,
        block_size: block_size?,
        ranks: ranks?,
        load: load?,
        load_topic: LOAD_TOPIC.to_owned(),
    })
}

fn count(node: &Node) -> Read<u32> {
    let count = between(1, 1 << 20)(node)?;
    u32::try_from(count).map_err(|error| error.to_string())
}

fn endpoint(node: &Node) -> Read<TcpEndpoint> {
    let text = name(node)?;
    TcpEndpoint::parse(&text).map_err(|error| format!("`{}` is {error}", short(&text)))
}
