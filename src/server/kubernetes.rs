//! Engines that Kubernetes names: what the watched slices make of the registry.
//!
//! Every list and every event states what there is; the union over the slices of one source is the
//! whole set of its model's engines. A list in progress changes nothing before it is complete, and
//! a watch that fails changes nothing at all. Knows no API server; `proxy` watches.
//! Source: http-and-operations §15.2, field-lessons L36, L37.

mod slices;

use std::collections::{BTreeMap, HashMap};

use crate::config::{Config, Kubernetes};
use crate::server::app::App;
use crate::server::discovery;
use crate::server::routing::Routing;
use crate::workers::WorkerSpec;

pub use slices::{Endpoint, Slice, SliceKey};

/// Whether this program can watch at all.
pub const BUILT: bool = cfg!(feature = "kubernetes");

/// What a watch tells of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A list of everything begins.
    ListBegins,
    /// One slice of the list.
    Listed(SliceKey, Slice),
    /// The list is complete: what it did not name is gone.
    ListEnds,
    /// A slice is new or different.
    Applied(SliceKey, Slice),
    /// A slice is gone.
    Deleted(SliceKey),
}

type Slices = BTreeMap<SliceKey, Slice>;

/// What is known of every source.
#[derive(Debug, Default)]
pub struct Discovered {
    generation: u64,
    sources: HashMap<Kubernetes, Source>,
}

#[derive(Debug, Default)]
struct Source {
    slices: Slices,
    /// The list in progress.
    listing: Option<Slices>,
    /// Whether one list was complete.
    known: bool,
    /// Whether the registry may differ from the slices.
    stale: bool,
    /// Why the registry refused them last.
    refusal: Option<String>,
}

/// The sources that the models of `config` have.
#[must_use]
pub fn sources(config: &Config) -> Vec<Kubernetes> {
    let models = config.models.iter();
    models
        .filter_map(|model| model.engines_kubernetes.clone())
        .collect()
}

impl Discovered {
    /// Forgets every source but these.
    pub fn keep(&mut self, wanted: &[Kubernetes]) {
        self.sources.retain(|source, _| wanted.contains(source));
    }

    /// Takes in what a watch told of `source`.
    pub fn take(&mut self, source: &Kubernetes, change: Change) {
        // A watch of all slices tells of more than this source means.
        let meant = |slice: &Slice| source.select.role(&slice.labels).is_some();
        let known = self.sources.entry(source.clone()).or_default();
        match change {
            Change::ListBegins => known.listing = Some(Slices::new()),
            Change::Listed(key, slice) => {
                if let Some(listing) = &mut known.listing
                    && meant(&slice)
                {
                    listing.insert(key, slice);
                }
            }
            Change::ListEnds => {
                if let Some(listing) = known.listing.take() {
                    (known.slices, known.known, known.stale) = (listing, true, true);
                }
            }
            Change::Applied(key, slice) => {
                known.stale = true;
                match meant(&slice) {
                    true => known.slices.insert(key, slice),
                    false => known.slices.remove(&key),
                };
            }
            Change::Deleted(key) => {
                known.stale = true;
                known.slices.remove(&key);
            }
        }
    }

    /// Whether the registry of the active routing may differ from what is known.
    #[must_use]
    pub fn due(&self, app: &App) -> bool {
        let mut sources = self.sources.values();
        self.generation != app.routing().generation || sources.any(|source| source.stale)
    }

    /// Gives every model the engines that are known. Blocking: resolves host names.
    pub fn adopt(&mut self, app: &App) {
        let routing = app.routing();
        if self.generation != routing.generation {
            // The new generation took over what its predecessor had, perhaps before the last change.
            self.generation = routing.generation;
            for source in self.sources.values_mut() {
                source.stale = true;
            }
        }
        for model in &routing.config.models {
            let Some(source) = &model.engines_kubernetes else {
                continue;
            };
            let Some(known) = self.sources.get_mut(source) else {
                continue;
            };
            if !known.known || !known.stale {
                continue;
            }
            let specs = slices::engines(&known.slices, &source.select, &model.id);
            match discovery::adopt_list(app, &routing, &model.id, specs) {
                Ok(()) => (known.stale, known.refusal) = (false, None),
                // Tried again: an id that another model has is free when that model lets it go.
                Err(problem) if known.refusal.as_ref() == Some(&problem) => {}
                Err(problem) => {
                    tracing::error!(model = %model.id, problem, "engines stay as they are");
                    known.refusal = Some(problem);
                }
            }
        }
    }
}

/// The engines that the models of a new configuration start with: those that `previous` had found,
/// until a list says otherwise. A model that looks where an old one looked takes over that one's; a
/// model that looks elsewhere now keeps its own.
#[must_use]
pub fn carried(config: &Config, previous: &Routing) -> Vec<WorkerSpec> {
    let old = previous.config.models.iter();
    let old: Vec<_> = old
        .filter_map(|model| Some((model.engines_kubernetes.as_ref()?, &model.id)))
        .collect();
    let wanted = sources(config);
    let members = previous.workers.members().all();
    let mut carried = Vec::new();
    for model in &config.models {
        let Some(source) = &model.engines_kubernetes else {
            continue;
        };
        let same = old.iter().find(|(other, _)| *other == source);
        let own = || {
            let own = old.iter().find(|(_, id)| **id == model.id);
            own.filter(|(other, _)| !wanted.contains(other))
        };
        let Some((_, from)) = same.or_else(own) else {
            continue;
        };
        let engines = members.iter().filter(|engine| engine.model() == *from);
        carried.extend(engines.map(|engine| WorkerSpec {
            model: model.id.clone(),
            ..engine.spec().clone()
        }));
    }
    carried
}

/// Each model that needs what this program was `built` without, with its place in the file.
#[must_use]
pub fn not_built(config: &Config, built: bool) -> Vec<usize> {
    let models = config.models.iter().enumerate();
    models
        .filter(|(_, model)| !built && model.engines_kubernetes.is_some())
        .map(|(index, _)| index)
        .collect()
}

#[cfg(all(test, feature = "kubernetes"))]
mod tests;
