//! What can be learnt from, and must be changed in, the source text of a chat template.
//!
//! A small scanner finds the `{% … %}` tags; it knows strings, comments and raw blocks and nothing else
//! of the language. It serves two questions: does the template walk over content parts, and where are
//! the `generation` blocks that the renderer has no tag for.

/// The shape of message content a template wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// Content as one string; the engine flattens part lists first.
    String,
    /// Content parts as a list; the template walks over them.
    OpenAi,
}

// === impl ContentFormat ===

impl ContentFormat {
    /// The engine's own rule: a template that speaks of media, or loops over something's `content`,
    /// wants parts. The engine looks for the loops in the syntax tree; here the tags' text is enough.
    pub(super) fn detect(source: &str) -> Self {
        const MEDIA: [&str; 4] = ["image", "audio", "video", "vision"];
        let parts = MEDIA.iter().any(|word| source.contains(word))
            || block_tags(source).any(|tag| loops_over_content(tag.body));
        if parts { Self::OpenAi } else { Self::String }
    }

    /// As the reference data and the engine's log spell it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::OpenAi => "openai",
        }
    }
}

/// Whether a tag is `for … in ….content`, filters, slices and loop conditions aside.
fn loops_over_content(tag: &str) -> bool {
    let Some((target, rest)) = tag.split_once(" in ") else {
        return false;
    };
    if target.split_whitespace().next() != Some("for") {
        return false;
    }
    let iterated = rest.split([' ', '|']).next().unwrap_or_default();
    let iterated = match iterated.rsplit_once('[') {
        Some((head, slice)) if slice.contains(':') => head,
        Some(_) | None => iterated,
    };
    [".content", "['content']", "[\"content\"]"]
        .iter()
        .any(|ending| iterated.ends_with(ending))
}

/// The source with `{% generation %}` blocks written as empty `{% with %}` blocks.
///
/// The training-only `generation` tag marks assistant text and renders its body in a scope of its own;
/// `with` without assignments is exactly that.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for tag in block_tags(source) {
        let plain = match tag.body {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&source[copied..tag.start]);
        out.push_str(plain);
        copied = tag.start + tag.body.len();
    }
    out.push_str(&source[copied..]);
    out
}

/// One `{% … %}`, without delimiters, white-space marks and surrounding space.
struct BlockTag<'s> {
    /// Byte offset of `body` in the source.
    start: usize,
    body: &'s str,
}

/// The block tags of a template, in order. An unfinished construct ends the scan: the compiler will
/// report it.
fn block_tags(source: &str) -> impl Iterator<Item = BlockTag<'_>> {
    let mut at = 0;
    let mut raw = false;
    std::iter::from_fn(move || {
        loop {
            let open = at + source[at..].find('{')?;
            let inner = open + 2;
            at = match source.as_bytes().get(open + 1)? {
                b'#' if !raw => inner + source.get(inner..)?.find("#}")? + 2,
                b'{' if !raw => end_of(source, inner, b"}}")? + 2,
                b'%' => {
                    let close = end_of(source, inner, b"%}")?;
                    let tag = trimmed(source, inner, close);
                    at = close + 2;
                    raw = tag.body == "raw" || (raw && tag.body != "endraw");
                    if raw {
                        continue;
                    }
                    return Some(tag);
                }
                _ => open + 1,
            };
        }
    })
}

fn trimmed(source: &str, from: usize, to: usize) -> BlockTag<'_> {
    let marks = |c: char| c == '-' || c == '+' || c.is_whitespace();
    let whole = &source[from..to];
    let body = whole.trim_start_matches(marks);
    let start = from + (whole.len() - body.len());
    BlockTag {
        start,
        body: body.trim_end_matches(marks),
    }
}

/// Byte offset of `close` at or after `from`, outside string literals.
fn end_of(source: &str, from: usize, close: &[u8; 2]) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut quote = None;
    let mut at = from;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(mark), byte) if byte == mark => quote = None,
            (None, mark @ (b'"' | b'\'')) => quote = Some(mark),
            (None, _) if bytes[at..].starts_with(close) => return Some(at),
            (Some(_) | None, _) => {}
        }
        at += 1;
    }
    None
}
