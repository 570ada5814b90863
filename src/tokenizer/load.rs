//! Finding and reading a tokenizer's files.
//!
//! Every failure names the file: a tokenizer that loads halfway would cost all cache hits and say
//! nothing (L45).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::Tokenizer;
use super::encoder::Encoder;
use super::error::TokenizerError;
use super::template::{ChatTemplate, DEFAULT, TOOL_USE, token_text};

const TOKENIZER_FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";
const TEMPLATE_KEY: &str = "chat_template";

/// See [`Tokenizer::load`].
pub(super) fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let path = if path.is_dir() {
        path.join(TOKENIZER_FILE)
    } else {
        path.to_owned()
    };
    let encoder = encoder(&path)?;
    let config_path = path.with_file_name(CONFIG_FILE);
    let config = config(&config_path)?;
    let template = template(&path.with_file_name(TEMPLATE_FILE), &config_path, &config)?;
    let bos_id = config
        .get("bos_token")
        .and_then(token_text)
        .and_then(|token| encoder.token_to_id(token));
    Ok(Tokenizer {
        path,
        encoder,
        template,
        bos_id,
    })
}

fn encoder(path: &Path) -> Result<Encoder, TokenizerError> {
    let text = read(path)?.ok_or_else(|| TokenizerError::Missing {
        path: path.to_owned(),
    })?;
    let keys: HashMap<String, IgnoredAny> = parse(path, &text)?;
    if !keys.contains_key("model") {
        return Err(wrong_kind(path, "a tokenizer has a `model` object"));
    }
    let mut encoder = tokenizers::Tokenizer::from_bytes(&text)
        .map_err(|error| wrong_kind(path, error.to_string()))?;
    // Engines encode prompts whole: limits and padding saved with a tokenizer are for training.
    encoder.with_padding(None);
    encoder
        .with_truncation(None)
        .map_err(|error| wrong_kind(path, error.to_string()))?;
    tracing::info!(tokenizer = %path.display(), "tokenizer loaded");
    Ok(Encoder::new(text, encoder))
}

/// The fields of `tokenizer_config.json`; none when there is no such file.
fn config(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    match read(path)? {
        Some(text) => parse(path, &text),
        None => Ok(Map::new()),
    }
}

/// The template beside the tokenizer, else the one in its configuration, else none.
fn template(
    file: &Path,
    config_path: &Path,
    config: &Map<String, Value>,
) -> Result<Option<ChatTemplate>, TokenizerError> {
    let mut template = ChatTemplate::empty(config);
    if let Some(source) = read(file)? {
        add(&mut template, DEFAULT, &source, file)?;
        return Ok(Some(template));
    }
    match config.get(TEMPLATE_KEY) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(source)) => add(&mut template, DEFAULT, source, config_path)?,
        Some(Value::Array(entries)) => {
            for entry in entries {
                add_named(&mut template, entry, config_path)?;
            }
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            let reason = "`chat_template` must be a string or a list of {name, template}";
            return Err(wrong_kind(config_path, reason));
        }
    }
    Ok(Some(template))
}

fn add_named(
    template: &mut ChatTemplate,
    entry: &Value,
    path: &Path,
) -> Result<(), TokenizerError> {
    let text = |key| entry.get(key).and_then(Value::as_str);
    let (Some(name), Some(source)) = (text("name"), text("template")) else {
        let reason = "each entry of `chat_template` needs the strings `name` and `template`";
        return Err(wrong_kind(path, reason));
    };
    match name {
        DEFAULT => add(template, DEFAULT, source, path),
        TOOL_USE => add(template, TOOL_USE, source, path),
        _ => Ok(()),
    }
}

fn add(
    template: &mut ChatTemplate,
    name: &'static str,
    source: &str,
    path: &Path,
) -> Result<(), TokenizerError> {
    template
        .add(name, source)
        .map_err(|error| TokenizerError::Template {
            path: path.to_owned(),
            name,
            source: Box::new(error),
        })
}

/// The text of a file; `None` when there is no such file.
fn read(path: &Path) -> Result<Option<String>, TokenizerError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(wrong_kind(path, "not UTF-8 text"))
        }
        Err(source) => Err(TokenizerError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn parse<'t, T: Deserialize<'t>>(path: &Path, text: &'t str) -> Result<T, TokenizerError> {
    serde_json::from_str(text).map_err(|source| {
        let path = path.to_owned();
        match source.classify() {
            Category::Eof => TokenizerError::Truncated { path, source },
            Category::Syntax | Category::Io => TokenizerError::NotJson { path, source },
            Category::Data => wrong_kind(&path, source.to_string()),
        }
    })
}

fn wrong_kind(path: &Path, reason: impl Into<String>) -> TokenizerError {
    TokenizerError::WrongKind {
        path: PathBuf::from(path),
        reason: reason.into(),
    }
}
