//! Label selectors, as far as the tests use them: `a=b`, `a!=b`, `a in (b, c)`, `a`, `!a`.

use serde_json::Value;

/// Whether a slice has the labels.
pub(super) fn matches(slice: &Value, selector: Option<&str>) -> bool {
    let labels = &slice["metadata"]["labels"];
    let label = |key: &str| labels[key.trim()].as_str();
    let terms = selector.map(split).unwrap_or_default();
    terms.iter().all(|term| {
        if let Some((key, set)) = term.split_once(" in ") {
            let mut set = set.trim_matches(['(', ')']).split(',').map(str::trim);
            return label(key).is_some_and(|value| set.any(|one| one == value));
        }
        if let Some((key, value)) = term.split_once("!=") {
            return label(key) != Some(value);
        }
        if let Some((key, value)) = term.split_once('=') {
            return label(key) == Some(value);
        }
        match term.strip_prefix('!') {
            Some(key) => label(key).is_none(),
            None => label(term).is_some(),
        }
    })
}

/// The terms: commas inside of parentheses do not separate.
fn split(selector: &str) -> Vec<String> {
    let (mut terms, mut depth) = (vec![String::new()], 0);
    for letter in selector.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(String::new());
                continue;
            }
            _ => {}
        }
        terms.last_mut().expect("one").push(letter);
    }
    terms.iter().map(|term| term.trim().to_owned()).collect()
}
