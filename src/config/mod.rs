//! What the operator wrote, checked: text in, [`Config`] or every problem out.
//!
//! ```text
//!   text ── tree ── toplevel ─┬─ listeners                        Config ── describe
//!          (lines)            └─ models ─┬─ engines ── kubernetes  + warnings
//!                                        ├─ buckets ── policy
//!                                        └─ affinity, sampling, kv_events, cache
//!
//!   used by all: reader (keys, problems), scalars, units, dropped (names with a past)
//! ```
//!
//! [`parse`] is a function of its input only: no file, no clock, no network, so a reload can build
//! everything aside. It refuses to guess: unknown keys, wrong types, units left out, options that
//! were dropped and settings whose capability does not exist yet are problems, never ignored and
//! never replaced by a default. A key that is absent, or `null`, takes the default of contract §2.
//! Only this module knows the syntax of the file.
//!
//! Differs from style-and-architecture §6: there is no serde in here. One marking parser gives the
//! values and their lines, so every problem has a line and all are found in one pass; serde stops
//! at its first.

mod affinity;
mod buckets;
mod builder;
mod cache;
mod cache_aware;
mod describe;
mod dropped;
mod engines;
mod error;
mod flags;
mod kubernetes;
mod kv_events;
mod labels;
mod listeners;
mod models;
mod policy;
mod reader;
mod sampling;
mod scalars;
mod schema;
mod toplevel;
mod tree;
mod types;
mod units;
mod warnings;
mod write;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

pub use describe::describe;
pub use error::{ConfigError, ConfigErrors};
pub use flags::{Flags, Translated};
pub use schema::schema;
pub use types::{
    Admin, Affinity, AffinityKeys, Allowed, Auth, Bucket, Cache, Config, Conflict, Group, Groups,
    Health, Indexer, Kubernetes, KvEvents, Labels, Limits, Log, LogFormat, LogLevel, Model, Number,
    Sampling, SamplingParam, Select, Shutdown, Slo, SloMode, Timeouts,
};
pub use write::to_yaml;

use crate::ids::ModelId;
use crate::workers::WorkerSpec;
use reader::{At, Place, Problems};

/// Largest file, bytes. A fleet of 10 000 engines needs a quarter of it; chosen.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// Reads and parses the file at `path`.
///
/// # Errors
/// Everything that is wrong with it; that it cannot be read, is not UTF-8 or is above
/// [`MAX_FILE_BYTES`] counts as one problem.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    parse(&read(path)?, &path.display().to_string())
}

/// Reads and parses a file with the engines of `model`: the list that `engines.static` would hold,
/// or an empty one.
///
/// # Errors
/// As [`load`].
pub fn load_engines(path: &Path, model: &ModelId) -> Result<Vec<WorkerSpec>, ConfigErrors> {
    let text = read(path)?;
    let mut problems = Problems::new(&path.display().to_string());
    let node = tree::build(&text, &mut problems);
    let engines = node.and_then(|node| {
        let root = At {
            place: Place::root(node.line),
            node: &node,
        };
        engines::file(&mut problems, &root, model)
    });
    match engines {
        Some(engines) if problems.count() == 0 => Ok(engines),
        Some(_) | None => Err(problems.into_errors()),
    }
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let problem = |line, problem| {
        ConfigErrors::from(vec![ConfigError {
            file: path.display().to_string(),
            line,
            path: ".".to_owned(),
            problem,
        }])
    };
    let unreadable = |error: std::io::Error| problem(None, format!("cannot be read: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() > MAX_FILE_BYTES {
        let most = units::show_size(MAX_FILE_BYTES as u64);
        return Err(problem(Some(1), format!("is larger than {most}")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().iter().take(valid);
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        problem(Some(line), "is not UTF-8 text".to_owned())
    })
}

/// Parses `text`; `file` is the name that problems and warnings carry.
///
/// Every problem is reported in one go, in the order of lines. Only text that is no YAML at all
/// ends the search early: what follows it has no meaning.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigErrors> {
    let mut problems = Problems::new(file);
    if text.len() > MAX_FILE_BYTES {
        let most = units::show_size(MAX_FILE_BYTES as u64);
        problems.add(&Place::root(1), format_args!("is larger than {most}"));
        return Err(problems.into_errors());
    }
    let Some(node) = tree::build(text, &mut problems) else {
        return Err(problems.into_errors());
    };
    let root = At {
        place: Place::root(node.line),
        node: &node,
    };
    match toplevel::config(&mut problems, &root) {
        Some(mut config) if problems.count() == 0 => {
            let mut warnings = Problems::new(file);
            warnings::warnings(&mut warnings, &config, &root);
            config.warnings = warnings.into_list();
            Ok(config)
        }
        Some(_) | None => Err(problems.into_errors()),
    }
}
