//! Tokenizers that one routing takes over from the one before.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::server::routing::Routing;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Modification time and size of the files around a tokenizer, to see whether they changed.
type Stamp = Vec<(std::ffi::OsString, SystemTime, u64)>;

/// A configured path and the state of the files there.
pub(super) type TokenizerKey = (std::path::PathBuf, Stamp);

fn stamp(path: &Path) -> Stamp {
    let folder = if path.is_dir() {
        Some(path)
    } else {
        path.parent()
    };
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let mut stamp: Stamp = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let data = entry.metadata().ok()?;
            Some((entry.file_name(), data.modified().ok()?, data.len()))
        })
        .collect();
    stamp.sort();
    stamp
}

/// Tokenizers loaded so far, by path and state of their files.
pub(super) struct Tokenizers {
    loaded: HashMap<TokenizerKey, Arc<Tokenizer>>,
    /// Whether a routing serves meanwhile.
    serving: bool,
}

impl Tokenizers {
    /// What `previous` had loaded.
    pub(super) fn of(previous: Option<&Routing>) -> Self {
        let models = previous.into_iter().flat_map(Routing::models);
        let loaded = models.filter_map(|model| {
            let key = model.tokenizer_key.clone()?;
            Some((key, Arc::clone(model.tokenizer.as_ref()?)))
        });
        Self {
            loaded: loaded.collect(),
            serving: previous.is_some(),
        }
    }

    /// The tokenizer at `path`, loaded unless its files are unchanged. A start does not wait until it
    /// is decided how fast it encodes; who serves already waits, lest it become slower for seconds.
    pub(super) fn load(
        &mut self,
        path: &Path,
    ) -> Result<(Arc<Tokenizer>, TokenizerKey), TokenizerError> {
        let key = (path.to_owned(), stamp(path));
        if let Some(tokenizer) = self.loaded.get(&key) {
            return Ok((Arc::clone(tokenizer), key));
        }
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        if self.serving {
            tokenizer.settle();
        }
        self.loaded.insert(key.clone(), Arc::clone(&tokenizer));
        Ok((tokenizer, key))
    }
}
