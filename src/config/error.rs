//! What is wrong with a configuration, and where.
//!
//! Always a list: an operator fixes a file once. A sentence says what was written and what would
//! be right, on one line, so that editors and `grep` can use it.

use std::fmt;

use thiserror::Error;

/// One problem, or one warning.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// The file as named by the caller.
    pub file: String,
    /// 1-based; for a missing key the line of the map that lacks it. `None` only where no text
    /// exists: the file could not be read, or the settings came from flags.
    pub line: Option<usize>,
    /// The setting, such as `models[0].buckets[1].limits`; `.` is the whole file.
    pub path: String,
    /// What was written and what would be right; one line.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    /// `FILE:LINE: path: problem`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}", self.path, self.problem)
    }
}

/// Every problem of one file, in the order of its lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// The problems.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.0.iter()
    }
}

impl From<Vec<ConfigError>> for ConfigErrors {
    /// Of a list that the caller knows not to be empty.
    fn from(problems: Vec<ConfigError>) -> Self {
        Self(problems)
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = std::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for ConfigErrors {
    /// One problem per line, without a final line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
