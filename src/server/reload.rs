//! Reading a configuration again: parse, validate, build aside, swap one pointer.
//!
//! A file that is refused changes nothing and every problem is reported. Loads are serialised, so
//! two signals in a row give two complete loads and never a mixture. Source: contract §6.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::{self, Config};
use crate::policies::PolicyServices;
use crate::server::app::App;
use crate::server::routing::Routing;

/// What a successful reload did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// The new generation.
    pub generation: u64,
    /// Settings that differ but need a restart (`listen`, `admin.listen`, `threads`, `log.format`); the rest is active.
    pub needs_restart: Vec<&'static str>,
}

/// The file a process was started with, and the lock that serialises its reloads.
#[derive(Debug)]
pub struct Reloader {
    path: PathBuf,
    running: Mutex<()>,
}

/// Reads, checks and builds a first routing.
///
/// # Errors
/// Every problem, one line each.
pub fn first_load(path: &Path, services: &PolicyServices) -> Result<Routing, Vec<String>> {
    let config = config::load(path).map_err(|errors| lines(&errors))?;
    build(config, services, None)
}

/// Builds a routing from a checked configuration.
///
/// # Errors
/// Every problem, one line each.
pub fn build(
    config: Config,
    services: &PolicyServices,
    previous: Option<&Routing>,
) -> Result<Routing, Vec<String>> {
    Routing::build(Arc::new(config), services, previous)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

impl Reloader {
    /// Reloads from `path`.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self {
            path,
            running: Mutex::new(()),
        }
    }

    /// Loads the file again and swaps the routing in. Blocking: reads files.
    ///
    /// # Errors
    /// Every problem, one line each; the old routing stays active.
    pub fn reload(&self, app: &App) -> Result<Reloaded, Vec<String>> {
        let _one_at_a_time = self.running.lock();
        let result = self.load_and_swap(app);
        match &result {
            Ok(reloaded) => {
                app.metrics.config_reload("success");
                tracing::info!(generation = reloaded.generation, "configuration reloaded");
                for setting in &reloaded.needs_restart {
                    tracing::warn!(
                        setting,
                        "changed setting needs a restart; the rest is active"
                    );
                }
            }
            Err(problems) => {
                app.metrics.config_reload("rejected");
                for problem in problems {
                    tracing::error!(problem, "configuration rejected; the old one stays active");
                }
            }
        }
        result
    }

    fn load_and_swap(&self, app: &App) -> Result<Reloaded, Vec<String>> {
        let config = config::load(&self.path).map_err(|errors| lines(&errors))?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let old = app.routing();
        let routing = build(config, &app.services, Some(&old))?;
        let reloaded = Reloaded {
            generation: routing.generation,
            needs_restart: needs_restart(&old.config, &routing.config),
        };
        (app.on_reload)(&routing.config);
        app.activate(routing);
        Ok(reloaded)
    }
}

fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = [
        ("listen", old.listen != new.listen),
        ("admin.listen", old.admin.listen != new.admin.listen),
        ("threads", old.threads != new.threads),
        ("log.format", old.log.format != new.log.format),
    ];
    let settings = changed.into_iter().filter(|(_, differs)| *differs);
    settings.map(|(setting, _)| setting).collect()
}

fn lines(errors: &config::ConfigErrors) -> Vec<String> {
    errors.to_string().lines().map(str::to_owned).collect()
}
