//! Engines that are listed in a file: what its present text makes of the registry.
//!
//! The list states the whole set. A file that cannot be used changes nothing. Blocking: reads the
//! file and resolves host names. Source: http-and-operations §15.1, §15.2.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config;
use crate::ids::{ModelId, WorkerId};
use crate::server::app::App;
use crate::server::names;
use crate::server::routing::Routing;
use crate::workers::WorkerSpec;

/// Failures in a row after which a file is an error and no longer a warning.
const PATIENCE: u32 = 3;

/// What was seen of each file when it was looked at last.
#[derive(Debug, Default)]
pub struct FileWatch {
    generation: u64,
    seen: HashMap<(ModelId, PathBuf), Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    state: Option<State>,
    failures: u32,
}

/// Tells two contents of a file apart without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
    /// Where a link leads: orchestrators swap the link, not the file.
    target: Option<PathBuf>,
}

impl State {
    fn of(path: &Path) -> Option<Self> {
        let data = fs::metadata(path).ok()?;
        Some(Self {
            modified: data.modified().ok(),
            length: data.len(),
            inode: data.ino(),
            target: fs::canonicalize(path).ok(),
        })
    }
}

impl FileWatch {
    /// Looks at the file of every model and adopts what changed.
    pub fn look(&mut self, app: &App) {
        let routing = app.routing();
        if self.generation != routing.generation {
            // The new generation has read its files itself, perhaps before their last change.
            self.generation = routing.generation;
            self.seen.clear();
        }
        for model in &routing.config.models {
            if let Some(path) = &model.engines_file {
                self.look_at(app, &routing, &model.id, path);
            }
        }
    }

    fn look_at(&mut self, app: &App, routing: &Routing, model: &ModelId, path: &Path) {
        let key = (model.clone(), path.to_owned());
        let seen = self.seen.entry(key).or_default();
        let state = State::of(path);
        if state.is_some() && seen.state == state {
            return;
        }
        match adopt(app, routing, model, path) {
            Ok(()) => {
                *seen = Seen { state, failures: 0 };
            }
            Err(problem) => {
                seen.failures = seen.failures.saturating_add(1);
                // A file that is there is looked at again when it changes, a missing one always.
                seen.state = state;
                let path = path.display();
                match seen.failures {
                    failures if failures < PATIENCE => {
                        tracing::warn!(%model, %path, problem, "engines stay as they are");
                    }
                    PATIENCE => tracing::error!(%model, %path, problem, "engines stay as they are"),
                    _ => {}
                }
            }
        }
    }
}

fn adopt(app: &App, routing: &Routing, model: &ModelId, path: &Path) -> Result<(), String> {
    let specs = config::load_engines(path, model).map_err(|errors| errors.to_string())?;
    adopt_list(app, routing, model, specs)
}

/// Makes `specs` the engines of `model` in `routing`, which is the active one (blocking: resolves
/// host names).
///
/// # Errors
/// Why the registry refuses them; it is unchanged then.
pub(super) fn adopt_list(
    app: &App,
    routing: &Routing,
    model: &ModelId,
    specs: Vec<WorkerSpec>,
) -> Result<(), String> {
    let breaker = routing.config.circuit_breaker;
    let adopted = routing.workers.adopt(model, specs, breaker);
    let adopted = adopted.map_err(|error| error.to_string())?;
    // Labels are those of the list again; what engines told of their roles still holds.
    app.learned();
    if adopted.added.is_empty() && adopted.removed.is_empty() {
        return Ok(());
    }
    let names = |ids: &[WorkerId]| {
        let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
        ids.join(", ")
    };
    let (added, removed) = (names(&adopted.added), names(&adopted.removed));
    tracing::info!(%model, added, removed, "engines changed");
    names::resolve(&routing.workers.members());
    Ok(())
}

#[cfg(test)]
mod tests;
