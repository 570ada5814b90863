//! Rust sources as words, for tests that read the code. Comments and literals say nothing.

/// One word or sign of Rust code, with its line.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Words of the code in `text`; a literal counts as the one word `""`, a comment as nothing.
pub(crate) fn words(text: &str) -> Vec<Word> {
    let chars: Vec<char> = text.chars().collect();
    let (mut words, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let starts = |sign: &str| sign.chars().eq(rest.iter().copied().take(sign.len()));
        let (word, length) = if starts("//") {
            (None, until(rest, &['\n']))
        } else if starts("/*") {
            (None, block_comment(rest))
        } else if let Some(length) = literal(rest) {
            (Some("\"\"".to_owned()), length)
        } else if is_part(rest[0]) {
            let length = rest.iter().take_while(|c| is_part(**c)).count();
            (Some(rest[..length].iter().collect()), length)
        } else if starts("::") {
            (Some("::".to_owned()), 2)
        } else {
            let blank = rest[0].is_whitespace();
            ((!blank).then(|| rest[0].to_string()), 1)
        };
        let length = length.min(rest.len());
        words.extend(word.map(|text| Word { text, line }));
        line += rest[..length].iter().filter(|c| **c == '\n').count();
        at += length;
    }
    words
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn until(chars: &[char], end: &[char]) -> usize {
    let found = chars.windows(end.len()).position(|window| window == end);
    found.unwrap_or(chars.len())
}

fn block_comment(chars: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a string or character literal that starts here. A lifetime is none.
fn literal(chars: &[char]) -> Option<usize> {
    let prefix = chars.iter().take_while(|c| "bcr".contains(**c)).count();
    let hashes = chars[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    match chars.get(open)? {
        '"' if chars[..prefix].contains(&'r') => {
            let end: Vec<char> = format!("\"{}", "#".repeat(hashes)).chars().collect();
            Some(open + 1 + until(&chars[open + 1..], &end) + end.len())
        }
        '"' if hashes == 0 => Some(open + quoted(&chars[open..], '"')),
        '\'' if hashes == 0
            && (chars.get(open + 1) == Some(&'\\') || chars.get(open + 2) == Some(&'\'')) =>
        {
            Some(open + quoted(&chars[open..], '\''))
        }
        _ => None,
    }
}

/// The length from one quote to its end, escapes skipped.
fn quoted(chars: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}
