//! Client API keys, the admin token and the engines' keys, read from files.
//!
//! What a client presents is compared in constant time. A client's key is never used for a call of
//! the router's own, and an engine's key never for a client's request. Secrets are never printed,
//! logged or part of an error. Source: http-and-operations §13, §20, field-lessons L34.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::config::Config;
use crate::ids::ModelId;

/// A setting whose secrets file cannot be used.
#[derive(Debug, Error)]
#[error("{setting}: {error}")]
pub struct SecretsError {
    /// Path of the setting in the configuration file.
    pub setting: String,
    /// Why.
    pub error: FileError,
}

/// Why a secrets file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It holds no secret, which would lock everybody out.
    #[error("{0}: holds no key (one per line; empty lines and # comments do not count)")]
    Empty(PathBuf),
    /// It holds several where one is to be sent.
    #[error("{0}: holds several keys, one is needed")]
    Several(PathBuf),
    /// The key cannot stand in a header.
    #[error("{0}: the key holds characters that no header may hold")]
    NotAHeader(PathBuf),
}

/// What a request must present.
#[derive(Clone, Default)]
pub struct Secrets {
    api_keys: Option<Vec<Vec<u8>>>,
    admin_token: Option<Vec<Vec<u8>>>,
    engine_keys: HashMap<ModelId, HeaderValue>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("api_keys", &self.api_keys.as_ref().map(Vec::len))
            .field("admin_token", &self.admin_token.is_some())
            .field("engine_keys", &self.engine_keys.len())
            .finish()
    }
}

impl Secrets {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// [`SecretsError`] for every file that cannot be used.
    pub fn read(config: &Config) -> Result<Self, Vec<SecretsError>> {
        let mut errors = Vec::new();
        let mut keys = |setting, path: Option<&Path>| match path.map(read_lines)? {
            Ok(keys) => Some(keys),
            Err(error) => {
                let setting = String::from(setting);
                errors.push(SecretsError { setting, error });
                None
            }
        };
        let api_keys = keys("auth.api_keys_file", config.auth.api_keys_file.as_deref());
        let admin_token = keys("admin.token_file", config.admin.token_file.as_deref());
        let mut engine_keys = HashMap::new();
        for (index, model) in config.models.iter().enumerate() {
            match model.engine_api_key_file.as_deref().map(engine_key) {
                Some(Ok(key)) => {
                    engine_keys.insert(model.id.clone(), key);
                }
                Some(Err(error)) => errors.push(SecretsError {
                    setting: format!("models[{index}].engines.api_key_file"),
                    error,
                }),
                None => {}
            }
        }
        let secrets = Self {
            api_keys,
            admin_token,
            engine_keys,
        };
        if errors.is_empty() {
            Ok(secrets)
        } else {
            Err(errors)
        }
    }

    /// Whether this `Authorization` value opens the data listener.
    #[must_use]
    pub fn admit_client(&self, authorization: Option<&[u8]>) -> bool {
        admit(self.api_keys.as_deref(), authorization)
    }

    /// Whether this `Authorization` value opens the admin routes.
    #[must_use]
    pub fn admit_admin(&self, authorization: Option<&[u8]>) -> bool {
        admit(self.admin_token.as_deref(), authorization)
    }

    /// The `Authorization` value of the router's own calls to engines of `model`.
    #[must_use]
    pub fn for_engines(&self, model: &ModelId) -> Option<&HeaderValue> {
        self.engine_keys.get(model)
    }

    /// Whether the admin routes need a token.
    #[must_use]
    pub const fn guards_admin(&self) -> bool {
        self.admin_token.is_some()
    }
}

fn read_lines(path: &Path) -> Result<Vec<Vec<u8>>, FileError> {
    let text = std::fs::read_to_string(path).map_err(|error| FileError::Read {
        path: path.to_owned(),
        error,
    })?;
    let lines = text.lines().map(str::trim);
    let keys: Vec<Vec<u8>> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.as_bytes().to_vec())
        .collect();
    if keys.is_empty() {
        return Err(FileError::Empty(path.to_owned()));
    }
    Ok(keys)
}

fn engine_key(path: &Path) -> Result<HeaderValue, FileError> {
    let keys = read_lines(path)?;
    let [key] = keys.as_slice() else {
        return Err(FileError::Several(path.to_owned()));
    };
    let value = [b"Bearer ", key.as_slice()].concat();
    let mut value =
        HeaderValue::from_bytes(&value).map_err(|_| FileError::NotAHeader(path.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn admit(wanted: Option<&[Vec<u8>]>, authorization: Option<&[u8]>) -> bool {
    let Some(wanted) = wanted else { return true };
    let Some(given) = authorization.and_then(bearer) else {
        return false;
    };
    // Every key is compared, so that the time does not tell which one was close.
    wanted
        .iter()
        .fold(false, |found, key| found | bool::from(key.ct_eq(given)))
}

/// The token of `Bearer TOKEN`; the scheme's case does not matter, one space does.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets {
            api_keys: Some(vec![b"alpha".to_vec(), b"beta".to_vec()]),
            admin_token: None,
            engine_keys: [("m".into(), HeaderValue::from_static("Bearer gamma"))].into(),
        }
    }

    #[test]
    fn only_a_whole_key_opens() {
        let rows: [(Option<&[u8]>, bool); 9] = [
            (Some(b"Bearer alpha"), true),
            (Some(b"bearer beta"), true),
            (Some(b"Bearer alph"), false),
            (Some(b"Bearer alphaa"), false),
            (Some(b"Bearer  alpha"), false),
            (Some(b"Basic alpha"), false),
            (Some(b"Bearer "), false),
            (Some(b"alpha"), false),
            (None, false),
        ];
        for (value, expected) in rows {
            assert_eq!(secrets().admit_client(value), expected, "{value:?}");
        }
    }

    #[test]
    fn without_a_file_everybody_may_enter() {
        assert!(secrets().admit_admin(None));
        assert!(Secrets::default().admit_client(None));
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let shown = format!("{:?}", secrets());
        assert!(!shown.contains("alpha") && !shown.contains("gamma"));
    }
}
