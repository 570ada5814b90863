//! What is allowed but probably not meant.
//!
//! Looks only at a configuration that is otherwise right. Never stops a start or a reload.

use std::collections::{BTreeSet, HashMap};

use crate::config::reader::{At, Place, Problems};
use crate::config::tree::{Node, Value};
use crate::config::types::{Bucket, Config, Group, Groups, Model, SloMode, Timeouts};
use crate::config::units::show_duration;
use crate::ids::{Stage, WorkerId};

/// Every warning about `config`, which was read from `root`.
pub(super) fn warnings(problems: &mut Problems, config: &Config, root: &At<'_>) {
    timeouts(problems, &config.timeouts, root.node);
    for (index, model) in config.models.iter().enumerate() {
        if !model.lists_engines() {
            // Who will be there is not known here.
            continue;
        }
        let path = [Step::Key("models"), Step::Item(index)];
        buckets(problems, model, root.node, &path);
        slo(problems, model, root.node, &path);
    }
}

#[derive(Clone, Copy)]
enum Step {
    Key(&'static str),
    Item(usize),
}

/// The place of `path`, at the line of its deepest part that is written, and what is written.
fn locate<'a>(root: &'a Node, path: &[Step]) -> (Place, Option<&'a Node>) {
    let mut place = Place::root(root.line);
    let mut node = Some(root);
    for step in path {
        node = node.and_then(|node| match (&node.value, step) {
            (Value::Map(entries), Step::Key(key)) => {
                let entry = entries.iter().find(|(name, _)| name == key);
                entry.map(|(_, node)| node)
            }
            (Value::List(items), Step::Item(index)) => items.get(*index),
            (Value::Scalar { .. } | Value::List(_) | Value::Map(_), _) => None,
        });
        let line = node.map_or(place.line, |node| node.line);
        place = match step {
            Step::Key(key) => place.key(key, line),
            Step::Item(index) => place.item(*index, line),
        };
    }
    (place, node)
}

fn timeouts(problems: &mut Problems, timeouts: &Timeouts, root: &Node) {
    let rows = [
        (
            "connect",
            timeouts.connect,
            "first_byte",
            timeouts.first_byte,
        ),
        (
            "first_byte",
            timeouts.first_byte,
            "lifetime",
            timeouts.lifetime,
        ),
        ("request", timeouts.request, "lifetime", timeouts.lifetime),
    ];
    for (inner, longer, outer, shorter) in rows {
        if longer > shorter {
            let (place, _) = locate(root, &[Step::Key("timeouts"), Step::Key(inner)]);
            let (longer, shorter) = (show_duration(longer), show_duration(shorter));
            let problem = format!("{longer} is longer than {outer}, {shorter}");
            problems.add(&place, problem);
        }
    }
}

/// Targets without estimates, and estimates without targets, change nothing.
fn slo(problems: &mut Problems, model: &Model, root: &Node, path: &[Step]) {
    type Estimate = fn(&Bucket) -> Option<f64>;
    let rows: [(_, _, _, Estimate); 2] = [
        ("ttft", model.slo.ttft, "ttft_ms", |bucket| bucket.ttft_ms),
        ("tps", model.slo.tps, "tokens_per_second", |bucket| {
            bucket.tokens_per_second
        }),
    ];
    for (target, mode, key, estimate) in rows {
        let first = model
            .buckets
            .iter()
            .position(|bucket| estimate(bucket).is_some());
        let (place, problem) = match (mode, first) {
            (SloMode::Disabled, Some(index)) => {
                let steps = [Step::Key("buckets"), Step::Item(index), Step::Key(key)];
                let (place, _) = locate(root, &[path, &steps].concat());
                (place, format!("is not used while slo.{target} is disabled"))
            }
            (SloMode::SloFirst | SloMode::BestEffort, None) => {
                let steps = [Step::Key("slo"), Step::Key(target)];
                let (place, _) = locate(root, &[path, &steps].concat());
                (place, format!("changes nothing: no bucket has `{key}`"))
            }
            (SloMode::Disabled, None) | (_, Some(_)) => continue,
        };
        problems.add(&place, problem);
    }
}

fn buckets(problems: &mut Problems, model: &Model, root: &Node, path: &[Step]) {
    let list = [path, &[Step::Key("buckets")]].concat();
    if locate(root, &list).1.is_none_or(Node::is_null) {
        return implicit_buckets(problems, model, root, path);
    }
    for (index, bucket) in model.buckets.iter().enumerate() {
        let groups = [&list[..], &[Step::Item(index), Step::Key("groups")]].concat();
        match &bucket.groups {
            Groups::Plain(group) => {
                let path = [&groups[..], &[Step::Key("plain")]].concat();
                members(problems, model, group, Stage::Plain, root, &path);
            }
            Groups::Pd { prefill, decode } => {
                for (group, stage) in [(prefill, Stage::Prefill), (decode, Stage::Decode)] {
                    let path =
                        [&groups[..], &[Step::Key("pd"), Step::Key(stage.as_str())]].concat();
                    members(problems, model, group, stage, root, &path);
                }
            }
        }
    }
}

/// One of the implicit pair is always without engines; only a model that neither serves is odd.
fn implicit_buckets(problems: &mut Problems, model: &Model, root: &Node, path: &[Step]) {
    let has = |stage| model.engines.iter().any(|engine| engine.role == stage);
    let missing = match (has(Stage::Plain), has(Stage::Prefill), has(Stage::Decode)) {
        (false, true, false) => Stage::Decode,
        (false, false, true) => Stage::Prefill,
        _ => return,
    };
    let (place, _) = locate(root, &[path, &[Step::Key("engines")]].concat());
    problems.add(
        &place,
        format_args!("no {missing} engine: this model can never serve"),
    );
}

fn members(
    problems: &mut Problems,
    model: &Model,
    group: &Group,
    stage: Stage,
    root: &Node,
    path: &[Step],
) {
    let members = group.worker_ids.as_ref();
    let roles: HashMap<&WorkerId, Stage> = model
        .engines
        .iter()
        .map(|engine| (&engine.id, engine.role))
        .collect();
    let (place, _) = locate(root, &[path, &[Step::Key("worker_ids")]].concat());
    for id in members.into_iter().flatten() {
        match roles.get(id) {
            None => {
                let problem =
                    format!("no engine of this model has the id `{id}`: it is never a candidate");
                problems.add(&place, problem);
            }
            Some(role) if *role != stage => {
                let problem =
                    format!("engine `{id}` is {role}: it is never a candidate of a {stage} group");
                problems.add(&place, problem);
            }
            Some(_) => {}
        }
    }
    let switched_off = members.is_some_and(BTreeSet::is_empty);
    let mut candidates = roles
        .iter()
        .filter(|(id, role)| **role == stage && members.is_none_or(|ids| ids.contains(**id)));
    if !switched_off && candidates.next().is_none() {
        let (place, _) = locate(root, path);
        problems.add(
            &place,
            format_args!("no {stage} engine: this bucket can never serve"),
        );
    }
}
