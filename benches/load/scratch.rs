//! A place for what a run writes.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder that is removed with this value.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new folder below the build folder, for a bench of this name.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new(bench: &str) -> Result<Self, String> {
        let name = format!("{bench}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
