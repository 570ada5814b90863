//! The grammar of Kubernetes label selectors, as far as it can be checked without a cluster.
//!
//! Refuses what an API server would refuse, so that a mistake shows at `check` and not as a watch
//! that fails. Evaluates nothing.

use crate::config::reader::{Read, short};

/// Longest name or value of a label, and longest prefix of a label's name, bytes.
const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

/// Whether `text` can be the name of a namespace.
pub(super) fn is_namespace(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    text.len() <= MAX_NAME
        && text.bytes().all(allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.is_empty()
}

/// Whether `text` can be the name of a label: `NAME` or `PREFIX/NAME`.
pub(super) fn is_label(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let good_prefix =
        |prefix: &str| prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_namespace);
    !name.is_empty() && is_value(name) && prefix.is_none_or(good_prefix)
}

/// Whether `text` can be the value of a label; the empty one can.
pub(super) fn is_value(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= MAX_NAME
        && text.bytes().all(inside)
        && edge(text.bytes().next())
        && edge(text.bytes().last())
}

/// `text` if it is a selector: terms with a comma between them.
pub(super) fn selector(text: &str) -> Read<String> {
    let mut depth = 0_u32;
    let terms = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    for term in terms {
        if !is_term(term.trim()) {
            return Err(format!(
                "`{}` is no term of a label selector, such as `app=engines`, `tier!=test`, `zone in (a, b)`, `zone notin (c)`, `app` or `!app`",
                short(term.trim())
            ));
        }
    }
    Ok(text.to_owned())
}

/// One term, without blanks around it.
fn is_term(term: &str) -> bool {
    if let Some(label) = term.strip_prefix('!') {
        return is_label(label.trim());
    }
    if let Some((left, set)) = term.split_once('(') {
        let Some(values) = set.strip_suffix(')') else {
            return false;
        };
        let left = left.trim_end();
        let label = left
            .strip_suffix("notin")
            .or_else(|| left.strip_suffix("in"));
        let set = values.split(',').all(|value| is_value(value.trim()));
        return set
            && label.is_some_and(|label| {
                label.ends_with(char::is_whitespace) && is_label(label.trim_end())
            });
    }
    for sign in ["!=", "==", "="] {
        if let Some((label, value)) = term.split_once(sign) {
            return is_label(label.trim_end()) && is_value(value.trim_start());
        }
    }
    for sign in ['<', '>'] {
        if let Some((label, value)) = term.split_once(sign) {
            return is_label(label.trim_end()) && value.trim_start().parse::<i64>().is_ok();
        }
    }
    is_label(term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_term_is_a_selector() {
        for good in [
            "app=engines",
            "app == engines,tier!= test",
            "zone in (a, b),zone notin (c),app,!canary",
            "example.com/role=prefill",
            "empty=",
            "size>3,size < 10",
            "in in (in)",
        ] {
            assert_eq!(selector(good).as_deref(), Ok(good));
        }
    }

    #[test]
    fn what_an_api_server_refuses_is_refused() {
        for (bad, told) in [
            ("", "``"),
            ("app=engines,", "``"),
            ("app in a", "`app in a`"),
            ("app in (a", "`app in (a`"),
            ("appin (a)", "`appin (a)`"),
            ("-app=x", "`-app=x`"),
            ("app=x y", "`app=x y`"),
            ("app=-", "`app=-`"),
            ("a/b/c=x", "`a/b/c=x`"),
            ("Up/app=x", "`Up/app=x`"),
            ("size>big", "`size>big`"),
            ("app=x&limit=1", "`app=x&limit=1`"),
        ] {
            let problem = selector(bad).unwrap_err();
            assert!(problem.starts_with(told), "{bad}: {problem}");
        }
        assert!(selector(&format!("app={}", "x".repeat(64))).is_err());
        assert!(!is_namespace("Prod") && !is_namespace("a.b") && !is_namespace(""));
    }
}
