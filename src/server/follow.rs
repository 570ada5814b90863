//! Which engines' KV events this process follows.
//!
//! Those of models some group of which picks by prefix from the local index, and of them the roles
//! that such groups may have. Who serves by load alone is not subscribed to, and of engines
//! whose model asks a remote index only the block format is taken. Source: design §6 "Cache state", engine-wire §1.9.

use crate::feeds::kv_events::Followed;
use crate::ids::Stage;
use crate::kv::BlockUnit;
use crate::server::routing::{ModelRouting, Routing};

/// The engines to follow, as far as is known where they publish.
#[must_use]
pub fn followed(routing: &Routing) -> Vec<Followed> {
    let members = routing.workers.members();
    let mut found = Vec::new();
    for model in routing.models().filter(|model| follows(model)) {
        let config = routing
            .config
            .models
            .iter()
            .find(|other| other.id == model.id);
        let Some(config) = config else {
            continue;
        };
        for stage in [Stage::Plain, Stage::Prefill] {
            for engine in members.of(&model.id, stage) {
                let Some(publishers) = config.kv_events.publishers(engine) else {
                    continue;
                };
                let unit = match engine.introspection().facts().bigram {
                    true => BlockUnit::Bigram,
                    false => BlockUnit::Unigram,
                };
                let engine = engine.clone();
                found.push(Followed {
                    engine,
                    publishers,
                    unit,
                    subscribe: model.indexer.is_none(),
                });
            }
        }
    }
    found
}

fn follows(model: &ModelRouting) -> bool {
    model.requirements.prefixes
}
