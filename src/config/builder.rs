//! Parser events → nodes, with an explicit stack and a budget.
//!
//! Nothing here recurses, and everything that an alias copies is paid for, so no text can exhaust
//! stack or memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

use crate::config::reader::{Place, Problems};
use crate::config::tree::{Node, Value};

/// Deepest nesting. The schema needs 12; chosen.
const MAX_DEPTH: usize = 64;
/// Most memory the tree may take, aliases expanded, bytes (estimated). 40 000 engines need half
/// of it; chosen.
const MAX_EXPANDED_BYTES: usize = 64 << 20;
/// Estimate for one node without its text, bytes.
const NODE_BYTES: usize = 64;

/// Something that is still open.
struct Frame {
    line: usize,
    anchor: usize,
    /// Where `expanded` stood when it was opened.
    start: usize,
    kind: Kind,
}

enum Kind {
    List(Vec<Node>),
    Map {
        entries: Vec<(String, Node)>,
        /// Line of the first use of every key.
        seen: HashMap<String, usize>,
        /// The key whose value comes next; `None` as text if it was refused.
        pending: Option<(Option<String>, usize)>,
    },
}

struct Builder<'p> {
    problems: &'p mut Problems,
    open: Vec<Frame>,
    anchors: HashMap<usize, (Node, usize)>,
    expanded: usize,
    root: Option<Node>,
}

/// A problem after which the rest of the text means nothing.
struct Fatal {
    line: usize,
    problem: String,
}

/// The root of `text`, `Some(None)` without any document. `None` when the text is unusable; then
/// `problems` says why, on a line of at most `last_line`.
pub(super) fn run(text: &str, last_line: usize, problems: &mut Problems) -> Option<Option<Node>> {
    let mut builder = Builder {
        problems,
        open: Vec::new(),
        anchors: HashMap::new(),
        expanded: 0,
        root: None,
    };
    if let Err(fatal) = builder.run(text, last_line) {
        let place = Place {
            path: builder.path(),
            line: fatal.line.clamp(1, last_line),
        };
        builder.problems.add(&place, fatal.problem);
        return None;
    }
    Some(builder.root)
}

// === impl Builder ===

impl Builder<'_> {
    fn run(&mut self, text: &str, last_line: usize) -> Result<(), Fatal> {
        let mut parser: Parser<'_, StrInput<'_>> = Parser::new_from_str(text);
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| Fatal {
                line: error.marker().line(),
                problem: format!("not valid YAML: {}", error.info()),
            })?;
            // What is missing at the end stands behind the last line.
            let line = span.start.line().clamp(1, last_line);
            if matches!(event, Event::DocumentStart(_)) {
                documents += 1;
                if documents > 1 {
                    let problem = "a second YAML document starts here: one file is one document";
                    return Err(Fatal {
                        line,
                        problem: problem.to_owned(),
                    });
                }
            }
            self.event(event, line)?;
        }
        Ok(())
    }

    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), Fatal> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), line);
                let plain = style == ScalarStyle::Plain;
                self.scalar(text.into_owned(), plain, anchor, line)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), line);
                self.open(Kind::List(Vec::new()), anchor, line)
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), line);
                let kind = Kind::Map {
                    entries: Vec::new(),
                    seen: HashMap::new(),
                    pending: None,
                };
                self.open(kind, anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, line),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn refuse_tag(&mut self, tagged: bool, line: usize) {
        if tagged {
            let place = Place {
                path: self.path(),
                line,
            };
            self.problems.add(
                &place,
                "tags (`!…`) are not supported: write the plain value",
            );
        }
    }

    /// The place of the next value, from what is open.
    fn path(&self) -> String {
        let mut place = Place::root(1);
        for frame in &self.open {
            match &frame.kind {
                Kind::List(items) => place = place.item(items.len(), 1),
                Kind::Map {
                    pending: Some((Some(key), _)),
                    ..
                } => place = place.key(key, 1),
                Kind::Map { .. } => {}
            }
        }
        place.path
    }

    fn spend(&mut self, bytes: usize, line: usize) -> Result<(), Fatal> {
        self.expanded = self.expanded.saturating_add(bytes);
        if self.expanded <= MAX_EXPANDED_BYTES {
            return Ok(());
        }
        Err(Fatal {
            line,
            problem: format!(
                "too large: with every alias written out it takes more than {} MiB",
                MAX_EXPANDED_BYTES >> 20
            ),
        })
    }

    /// Whether a value that comes now is the key of a map.
    fn expects_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Frame {
                kind: Kind::Map { pending: None, .. },
                ..
            })
        )
    }

    fn open(&mut self, kind: Kind, anchor: usize, line: usize) -> Result<(), Fatal> {
        if self.expects_key() {
            let problem = "a key must be a word, not a list or a map".to_owned();
            return Err(Fatal { line, problem });
        }
        if self.open.len() == MAX_DEPTH {
            let problem = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(Fatal { line, problem });
        }
        let start = self.expanded;
        self.spend(NODE_BYTES, line)?;
        self.open.push(Frame {
            line,
            anchor,
            start,
            kind,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fatal> {
        let Some(frame) = self.open.pop() else {
            return Ok(());
        };
        let value = match frame.kind {
            Kind::List(items) => Value::List(items),
            Kind::Map { entries, .. } => Value::Map(entries),
        };
        let bytes = self.expanded - frame.start;
        self.complete(
            Node {
                line: frame.line,
                value,
            },
            frame.anchor,
            bytes,
        )
    }

    fn scalar(
        &mut self,
        text: String,
        plain: bool,
        anchor: usize,
        line: usize,
    ) -> Result<(), Fatal> {
        let bytes = NODE_BYTES + text.len();
        self.spend(bytes, line)?;
        if self.expects_key() {
            self.key(text, line);
            return Ok(());
        }
        self.complete(
            Node {
                line,
                value: Value::Scalar { text, plain },
            },
            anchor,
            bytes,
        )
    }

    fn key(&mut self, text: String, line: usize) {
        let here = Place {
            path: self.path(),
            line,
        };
        let Some(Frame {
            kind: Kind::Map { seen, pending, .. },
            ..
        }) = self.open.last_mut()
        else {
            return;
        };
        if text == "<<" {
            *pending = Some((None, line));
            let problem = "merge keys (`<<`) are not supported: write the keys out, or use an alias (`*name`) for a whole value";
            self.problems.add(&here, problem);
            return;
        }
        match seen.entry(text.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(line);
                *pending = Some((Some(text), line));
            }
            Slot::Occupied(first) => {
                let problem = format!("duplicate key, first written on line {}", first.get());
                *pending = Some((None, line));
                self.problems.add(&here.key(&text, line), problem);
            }
        }
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<(), Fatal> {
        if self.expects_key() {
            let problem = "a key must be a word, not an alias".to_owned();
            return Err(Fatal { line, problem });
        }
        let Some((_, bytes)) = self.anchors.get(&anchor) else {
            let problem = "an alias cannot stand inside the value it names".to_owned();
            return Err(Fatal { line, problem });
        };
        let bytes = *bytes;
        self.spend(bytes, line)?;
        let copy = self.anchors.get(&anchor).map(|(node, _)| Node {
            line,
            value: node.value.clone(),
        });
        copy.map_or(Ok(()), |node| self.complete(node, 0, bytes))
    }

    /// Puts a finished node where it belongs.
    fn complete(&mut self, mut node: Node, anchor: usize, bytes: usize) -> Result<(), Fatal> {
        if anchor != 0 {
            self.spend(bytes, node.line)?;
            self.anchors.insert(anchor, (node.clone(), bytes));
        }
        match self.open.last_mut().map(|frame| &mut frame.kind) {
            None => self.root = Some(node),
            Some(Kind::List(items)) => items.push(node),
            Some(Kind::Map {
                entries, pending, ..
            }) => {
                if let Some((Some(key), line)) = pending.take() {
                    node.line = line;
                    entries.push((key, node));
                }
            }
        }
        Ok(())
    }
}
