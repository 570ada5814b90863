//! YAML text → a tree of nodes that know their line.
//!
//! One parser gives both the values and the lines, so the two cannot disagree. Built on the event
//! stream of `saphyr-parser`: it marks every event, is maintained, and keeps its state on the
//! heap, so nesting cannot exhaust the stack. Refuses, with the line: duplicate keys, tags, merge
//! keys, keys that are not words, a second document, control characters, and texts whose nesting
//! or expanded size is out of proportion. Aliases of whole values are followed; what they copy
//! counts towards the size.

use crate::config::builder;
use crate::config::reader::{Place, Problems};

/// A value and the line on which it is introduced: that of its key, or its own in a list.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// What a node holds. The type of a plain scalar is decided by whoever reads it.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Whether it is `null`, `~` or nothing at all.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Value::Scalar { plain: false, .. } | Value::List(_) | Value::Map(_) => false,
        }
    }
}

/// The root of `text`; `None` when it is unusable, and then `problems` says why.
pub(super) fn build(text: &str, problems: &mut Problems) -> Option<Node> {
    if let Some(line) = line_of_control_character(text) {
        problems.add(
            &Place::root(line),
            "contains a control character: is this a text file?",
        );
        return None;
    }
    let last_line = text.lines().count().max(1);
    let root = builder::run(text, last_line, problems)?.filter(|root| !root.is_null());
    if root.is_none() {
        problems.add(&Place::root(1), "is empty: at least `models` is needed");
    }
    root
}

/// YAML allows few of these, and the parser would take a zero byte for the end of the text. A
/// carriage return without line feed would be a line break to YAML and none to editors.
fn line_of_control_character(text: &str) -> Option<usize> {
    let at = text.char_indices().find_map(|(at, c)| {
        let allowed = match c {
            '\t' | '\n' => true,
            '\r' => text[at..].starts_with("\r\n"),
            c => !c.is_control(),
        };
        (!allowed).then_some(at)
    })?;
    Some(text[..at].matches('\n').count() + 1)
}
