//! The list of models: names, and what belongs to each.
//!
//! Reads engines before buckets. Checks what must be unique over the whole file: model names and
//! engine ids.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::reader::{At, Fields, Place, Problems};
use crate::config::scalars::{boolean, name, one_of, path, time};
use crate::config::tree::Node;
use crate::config::types::{Kubernetes, Model, Slo, SloMode};
use crate::config::{affinity, buckets, cache, engines, kv_events, sampling};
use crate::ids::{ModelId, WorkerId};

const KEYS: [&str; 12] = [
    "id",
    "aliases",
    "tokenizer",
    "forward_input_ids",
    "sampling",
    "affinity",
    "cache",
    "slo",
    "engines",
    "kv_events",
    "load_poll_interval",
    "buckets",
];

/// Least and default time between two questions for the load of an engine.
const LEAST_POLL: Duration = Duration::from_millis(50);
const DEFAULT_POLL: Duration = Duration::from_secs(1);

/// What is unique over the whole file, with the place of its first use.
#[derive(Debug, Default)]
pub(super) struct Taken {
    names: HashMap<String, Place>,
    engines: HashMap<WorkerId, Place>,
    sources: HashMap<Kubernetes, Place>,
}

/// All models. `None` if one of them could not be read.
pub(super) fn models(problems: &mut Problems, fields: &Fields<'_>) -> Option<Vec<Model>> {
    let Some(at) = fields.get("models") else {
        problems.add(
            &fields.place_of("models"),
            "missing: write a list of at least one model",
        );
        return None;
    };
    let items = problems.list(&at)?;
    if items.is_empty() {
        problems.add(&at.place, "is empty: at least one model is needed");
        return None;
    }
    let mut taken = Taken::default();
    let models: Vec<Option<Model>> = items
        .iter()
        .map(|item| model(problems, item, &mut taken))
        .collect();
    models.into_iter().collect()
}

fn model(problems: &mut Problems, at: &At<'_>, taken: &mut Taken) -> Option<Model> {
    let fields = problems.map(at, &KEYS)?;
    let id = problems.required(
        &fields,
        "id",
        name,
        "the name that requests give as `model`",
    );
    if let Some(id) = &id {
        taken.name(problems, &fields.place_of("id"), id);
    }
    let aliases = aliases(problems, &fields, taken);
    let tokenizer = problems.optional(&fields, "tokenizer", path);
    let forward_input_ids = problems.setting(&fields, "forward_input_ids", boolean, false);
    if forward_input_ids == Some(true) && tokenizer == Some(None) {
        problems.add(
            &fields.place_of("forward_input_ids"),
            "needs a `tokenizer`, which gives the ids",
        );
    }
    let sampling = sampling::sampling(problems, &fields);
    // Where the id is unusable, engines are still read, for their own problems.
    let model_id = ModelId::from(id.clone().unwrap_or_default());
    let engines = engines::engines(problems, &fields, &model_id, taken);
    // Engines that are not listed come and go: no id can be called unknown.
    let list = engines.as_ref().and_then(engines::Engines::listed);
    let kv_events = kv_events::kv_events(problems, &fields, list);
    let poll = poll(problems, &fields);
    let cache = cache::cache(problems, &fields);
    let slo = slo(problems, &fields);
    let buckets = buckets::buckets(problems, &fields);
    let affinity = affinity::affinity(problems, &fields, buckets.as_deref());
    id?;
    let engines = engines?;
    Some(Model {
        id: model_id,
        aliases: aliases?,
        tokenizer: tokenizer?,
        forward_input_ids: forward_input_ids?,
        sampling: sampling?,
        affinity: affinity?,
        slo: slo?,
        engines: engines.list,
        engines_file: engines.file,
        engines_kubernetes: engines.kubernetes,
        engine_api_key_file: engines.api_key_file,
        cache: cache?,
        kv_events: kv_events?,
        load_poll_interval: poll?,
        buckets: buckets?,
    })
}

/// How often engines without a load socket are asked; `null` asks none.
fn poll(problems: &mut Problems, fields: &Fields<'_>) -> Option<Option<Duration>> {
    let key = "load_poll_interval";
    if fields.is_null(key) {
        return Some(None);
    }
    let read = |node: &Node| match time(node)? {
        short if short < LEAST_POLL => Err("too short: at least 50ms".to_owned()),
        interval => Ok(interval),
    };
    let interval = problems.setting(fields, key, read, DEFAULT_POLL)?;
    Some(Some(interval))
}

fn aliases(problems: &mut Problems, fields: &Fields<'_>, taken: &mut Taken) -> Option<Vec<String>> {
    let Some(at) = fields.get("aliases") else {
        return Some(Vec::new());
    };
    let items = problems.list(&at)?;
    let mut read = |item: &At<'_>| {
        let alias = problems.value(item, name)?;
        taken.name(problems, &item.place, &alias);
        Some(alias)
    };
    let aliases: Vec<Option<String>> = items.iter().map(&mut read).collect();
    aliases.into_iter().collect()
}

/// What latency targets do. Source: policy-semantics §19.
fn slo(problems: &mut Problems, model: &Fields<'_>) -> Option<Slo> {
    let fields = problems.section(model, "slo", &["ttft", "tps"])?;
    let mut mode = |key| {
        let mode = one_of(&SloMode::ALL, SloMode::as_str);
        problems.setting(&fields, key, mode, SloMode::Disabled)
    };
    let (ttft, tps) = (mode("ttft"), mode("tps"));
    Some(Slo {
        ttft: ttft?,
        tps: tps?,
    })
}

// === impl Taken ===

impl Taken {
    /// Claims a model id or alias.
    fn name(&mut self, problems: &mut Problems, place: &Place, name: &str) {
        if let Some(first) = self.names.get(name) {
            let problem = format!(
                "`{name}` already names the model at {} (line {})",
                first.path, first.line
            );
            problems.add(place, problem);
        } else {
            self.names.insert(name.to_owned(), place.clone());
        }
    }

    /// Claims an engine id.
    pub(super) fn engine(&mut self, problems: &mut Problems, place: &Place, id: &WorkerId) {
        if let Some(first) = self.engines.get(id) {
            let problem = format!(
                "engine id `{id}` is already used at {} (line {}): ids are unique over all models",
                first.path, first.line
            );
            problems.add(place, problem);
        } else {
            self.engines.insert(id.clone(), place.clone());
        }
    }

    /// Claims what is found in one place of Kubernetes.
    pub(super) fn source(&mut self, problems: &mut Problems, place: &Place, source: &Kubernetes) {
        if let Some(first) = self.sources.get(source) {
            let problem = format!(
                "finds the same engines as {} (line {}): an engine belongs to one model",
                first.path, first.line
            );
            problems.add(place, problem);
        } else {
            self.sources.insert(source.clone(), place.clone());
        }
    }
}
