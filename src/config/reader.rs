//! Walking the tree: known keys, wanted types, and the list of everything that is wrong.
//!
//! A value that was refused is `None` from then on, so nothing is ever replaced by a default and
//! no rule that needs it can complain a second time. A key that is absent, or `null`, takes its
//! default. Unknown keys are reported where a map is opened; nothing is skipped silently.

use std::fmt;

use crate::config::dropped;
use crate::config::tree::{Node, Value};
use crate::config::{ConfigError, ConfigErrors};

/// A setting and its line.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) line: usize,
}

/// The problems of one file so far.
#[derive(Debug)]
pub(super) struct Problems {
    file: String,
    list: Vec<ConfigError>,
}

/// A map whose keys have been checked. Absent sections are empty maps at their parent's line.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) place: Place,
    entries: &'a [(String, Node)],
}

/// A value that is present and not `null`.
#[derive(Debug, Clone)]
pub(super) struct At<'a> {
    pub(super) place: Place,
    pub(super) node: &'a Node,
}

/// How one value is read: its meaning, or what is wrong with it.
pub(super) type Read<T> = Result<T, String>;

// === impl Place ===

impl Place {
    /// The file as a whole.
    pub(super) const fn root(line: usize) -> Self {
        Self {
            path: String::new(),
            line,
        }
    }

    /// `key` inside this place.
    pub(super) fn key(&self, key: &str, line: usize) -> Self {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | ':' | '.');
        let key = if !key.is_empty() && key.len() <= 100 && key.chars().all(word) {
            key.to_owned()
        } else {
            format!("\"{}\"", short(key))
        };
        let path = if self.path.is_empty() {
            key
        } else {
            format!("{}.{key}", self.path)
        };
        Self { path, line }
    }

    /// Item `index` of this place.
    pub(super) fn item(&self, index: usize, line: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.path),
            line,
        }
    }
}

// === impl Problems ===

impl Problems {
    /// None yet.
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            list: Vec::new(),
        }
    }

    /// Adds one.
    pub(super) fn add(&mut self, place: &Place, problem: impl fmt::Display) {
        let path = if place.path.is_empty() {
            "."
        } else {
            &place.path
        };
        self.list.push(ConfigError {
            file: self.file.clone(),
            line: Some(place.line),
            path: path.to_owned(),
            problem: problem.to_string(),
        });
    }

    /// Refuses a valid setting whose capability does not exist yet.
    pub(super) fn unsupported(&mut self, place: &Place, what: &str) {
        self.add(place, format_args!("{what} is not supported yet"));
    }

    /// How many; to see whether a section was clean.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// All, as the error of a text that was refused.
    pub(super) fn into_errors(mut self) -> ConfigErrors {
        if self.list.is_empty() {
            self.add(
                &Place::root(1),
                "was refused without a reason: please report this defect",
            );
        }
        ConfigErrors::from(self.into_list())
    }

    /// All, in the order of their lines.
    pub(super) fn into_list(mut self) -> Vec<ConfigError> {
        self.list.sort_by_key(|problem| problem.line);
        self.list
    }

    /// The map at `at`; every key outside `known` is reported.
    pub(super) fn map<'a>(&mut self, at: &At<'a>, known: &[&str]) -> Option<Fields<'a>> {
        let Value::Map(entries) = &at.node.value else {
            let problem = format!("expected a map of settings, found {}", found(at.node));
            self.add(&at.place, problem);
            return None;
        };
        for (key, node) in entries {
            if !known.contains(&key.as_str()) {
                let problem = dropped::unknown_key(key, &at.place.path, known);
                self.add(&at.place.key(key, node.line), problem);
            }
        }
        Some(Fields {
            place: at.place.clone(),
            entries,
        })
    }

    /// The section `key` of `parent`; empty when absent, `None` when it is no map.
    pub(super) fn section<'a>(
        &mut self,
        parent: &Fields<'a>,
        key: &str,
        known: &[&str],
    ) -> Option<Fields<'a>> {
        match parent.get(key) {
            Some(at) => self.map(&at, known),
            None => Some(Fields {
                place: parent.place_of(key),
                entries: &[],
            }),
        }
    }

    /// The items of the list at `at`.
    pub(super) fn list<'a>(&mut self, at: &At<'a>) -> Option<Vec<At<'a>>> {
        let Value::List(items) = &at.node.value else {
            let problem = format!("expected a list, found {}", found(at.node));
            self.add(&at.place, problem);
            return None;
        };
        let place = |(index, node): (usize, &'a Node)| At {
            place: at.place.item(index, node.line),
            node,
        };
        Some(items.iter().enumerate().map(place).collect())
    }

    /// What `read` makes of `at`.
    pub(super) fn value<T>(
        &mut self,
        at: &At<'_>,
        read: impl FnOnce(&Node) -> Read<T>,
    ) -> Option<T> {
        read(at.node)
            .map_err(|problem| self.add(&at.place, problem))
            .ok()
    }

    /// The setting `key`, or `default` when it is unset.
    pub(super) fn setting<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        read: impl FnOnce(&Node) -> Read<T>,
        default: T,
    ) -> Option<T> {
        match fields.get(key) {
            Some(at) => self.value(&at, read),
            None => Some(default),
        }
    }

    /// The setting `key`, which may be unset.
    pub(super) fn optional<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        read: impl FnOnce(&Node) -> Read<T>,
    ) -> Option<Option<T>> {
        self.setting(fields, key, |node| read(node).map(Some), None)
    }

    /// The setting `key`, which must be there; `what` completes "missing: write …".
    pub(super) fn required<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        read: impl FnOnce(&Node) -> Read<T>,
        what: &str,
    ) -> Option<T> {
        match fields.get(key) {
            Some(at) => self.value(&at, read),
            None => {
                self.add(&fields.place_of(key), format_args!("missing: write {what}"));
                None
            }
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn node(&self, key: &str) -> Option<&'a Node> {
        let entry = self.entries.iter().find(|(name, _)| name == key);
        entry.map(|(_, node)| node)
    }

    /// The value of `key`; `None` when it is absent or `null`.
    pub(super) fn get(&self, key: &str) -> Option<At<'a>> {
        let node = self.node(key).filter(|node| !node.is_null())?;
        Some(At {
            place: self.place.key(key, node.line),
            node,
        })
    }

    /// Whether nothing is written, known or unknown.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether `key` is written as `null`.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.node(key).is_some_and(Node::is_null)
    }

    /// Where `key` stands, or where it is missing.
    pub(super) fn place_of(&self, key: &str) -> Place {
        let line = self.node(key).map_or(self.place.line, |node| node.line);
        self.place.key(key, line)
    }

    /// The keys and values that are set.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'_, 'a> {
        let written = self.entries.iter().filter(|(_, node)| !node.is_null());
        written.map(|(key, node)| {
            let place = self.place.key(key, node.line);
            (key.as_str(), At { place, node })
        })
    }
}

/// `node` in words, for "expected …, found …".
pub(super) fn found(node: &Node) -> String {
    match &node.value {
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
        Value::Scalar { .. } if node.is_null() => "nothing".to_owned(),
        Value::Scalar { text, plain } => match (plain, text.as_str()) {
            (true, "true" | "false") => format!("`{text}`"),
            (true, number) if is_number(number) => {
                format!("the number {}", short(number))
            }
            (true, text) => format!("`{}`", short(text)),
            (false, text) => format!("`\"{}\"`", short(text)),
        },
    }
}

/// Whether YAML reads a plain `text` as a number.
pub(super) fn is_number(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

/// `text` on one line and of bounded length.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 60;
    let cut: String = text.chars().take(MOST).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{more}", cut.escape_debug())
}
