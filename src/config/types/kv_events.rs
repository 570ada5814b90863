//! Which engines of a model are subscribed to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::WorkerId;
use crate::workers::{Publishers, Worker};

/// Where the KV events and load reports of a model's engines come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KvEvents {
    /// From where each engine says in `/server_info`.
    #[default]
    Auto,
    /// From nowhere.
    Off,
    /// From these publishers, written by hand; other engines publish nothing.
    Explicit(BTreeMap<WorkerId, Arc<Publishers>>),
}

impl KvEvents {
    /// What `engine` publishes, as far as is known now.
    #[must_use]
    pub fn publishers(&self, engine: &Worker) -> Option<Arc<Publishers>> {
        match self {
            Self::Auto => engine.introspection().facts().publishers.clone(),
            Self::Off => None,
            Self::Explicit(named) => named.get(engine.id()).cloned(),
        }
    }
}
