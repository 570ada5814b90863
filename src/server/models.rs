//! `GET /v1/models`: the configured models in the OpenAI list shape.
//!
//! Made from the configuration, so it answers also while engines are down; it holds the documented
//! minimal shape, not the engines' own fields. Source: contract §3, field-lessons L35, L80.

use serde_json::{Value, json};

use crate::server::routing::Routing;

/// The list. Aliases are not listed: they are other names of models that are.
#[must_use]
pub fn list(routing: &Routing) -> Value {
    let models = routing
        .models()
        .map(|model| json!({"id": model.id, "object": "model", "owned_by": "sglang"}));
    json!({"object": "list", "data": models.collect::<Vec<_>>()})
}
