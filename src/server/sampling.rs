//! The sampling contract of a model, applied to one request.
//!
//! A contract fills in what a request leaves open and refuses what contradicts it; it never
//! rewrites a value. Values are compared as the numbers an engine reads, so every spelling of an
//! equal number passes, unchanged. Models without a contract pay nothing. Refusals name the
//! parameter and what is allowed, never what was sent. Source: http-and-operations §8.

use std::fmt::Write as _;

use crate::config::{Allowed, Conflict, Sampling, SamplingParam};
use crate::server::ApiError;
use crate::server::metrics::Metrics;

/// Longest JSON string that is read as a number, bytes after unescaping.
const MAX_STRING_BYTES: usize = 64;
/// Most bytes of JSON for one byte of a string: `\u0031`.
const MAX_ESCAPED_BYTES: usize = 6;

/// What a request says about one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sent {
    /// No such key, or null.
    Nothing,
    /// A number in some spelling; infinite beyond the range of doubles, or NaN.
    Number(f64),
    /// What no engine would take for a number.
    Unreadable,
}

/// The fields that `contract` adds to a request, as `"key":value` joined by commas; empty when
/// there are none.
///
/// `sent` gives the JSON text of a parameter as the client wrote it. Violated parameters are
/// counted in `metrics`, each one.
///
/// # Errors
/// [`ApiError::BadRequest`] for the first violated parameter, in the order of [`SamplingParam`].
pub fn additions<'b>(
    contract: &Sampling,
    sent: impl Fn(SamplingParam) -> Option<&'b [u8]>,
    metrics: &Metrics,
) -> Result<String, ApiError> {
    let mut fields = String::new();
    let mut refusal = None;
    for (&param, &allowed) in &contract.overrides {
        match (read(sent(param)), allowed, contract.conflict) {
            (Sent::Nothing, Allowed::Exactly(number), _) => {
                let comma = if fields.is_empty() { "" } else { "," };
                let _ = write!(fields, r#"{comma}"{}":{number}"#, param.as_str());
            }
            (Sent::Nothing, Allowed::Between { .. }, _) | (_, _, Conflict::Allow) => {}
            (Sent::Number(value), _, Conflict::Reject) if allowed.contains(value) => {}
            (Sent::Number(_) | Sent::Unreadable, _, Conflict::Reject) => {
                metrics.sampling_rejection(param);
                refusal.get_or_insert_with(|| violation(param, allowed));
            }
        }
    }
    refusal.map_or(Ok(fields), Err)
}

fn violation(param: SamplingParam, allowed: Allowed) -> ApiError {
    ApiError::bad_request(format!(
        "invalid request: `{}` must be {allowed} for this model",
        param.as_str()
    ))
}

/// What valid JSON text says as a number.
/// Whether the engine will make more than one choice: what the request asks for, or the contract
/// where it asks for nothing. An unreadable number counts as several.
#[must_use]
pub fn several_choices(contract: &Sampling, sent: Option<&[u8]>) -> bool {
    match read(sent) {
        Sent::Number(choices) => choices > 1.0,
        Sent::Unreadable => true,
        Sent::Nothing => match contract.overrides.get(&SamplingParam::N) {
            Some(Allowed::Exactly(choices)) => choices.value() > 1.0,
            Some(Allowed::Between { .. }) | None => false,
        },
    }
}

fn read(json: Option<&[u8]>) -> Sent {
    let Some(json) = json else {
        return Sent::Nothing;
    };
    let number = match json {
        b"null" => return Sent::Nothing,
        b"true" => Some(1.0),
        b"false" => Some(0.0),
        [b'"', ..] => number_in_string(json),
        [b'[' | b'{', ..] => None,
        // What is left is a JSON number; Rust reads every one of them, rounding as Python does.
        _ => std::str::from_utf8(json)
            .ok()
            .and_then(|number| number.parse().ok()),
    };
    number.map_or(Sent::Unreadable, Sent::Number)
}

/// What Python's `float` reads of a JSON string: a decimal number, `inf` or `nan`, with blanks
/// around it and single underscores between digits. Other scripts' digits are not read.
fn number_in_string(json: &[u8]) -> Option<f64> {
    if json.len() > MAX_STRING_BYTES * MAX_ESCAPED_BYTES + 2 {
        return None;
    }
    let text: String = serde_json::from_slice(json).ok()?;
    if text.len() > MAX_STRING_BYTES {
        return None;
    }
    // The four separators are blanks to Python and not to Unicode.
    let blank = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
    let text = text.trim_matches(blank);
    let digit = |at: Option<usize>| {
        let byte = at.and_then(|at| text.as_bytes().get(at));
        byte.is_some_and(u8::is_ascii_digit)
    };
    let mut underscores = text.match_indices('_');
    if !underscores.all(|(at, _)| digit(at.checked_sub(1)) && digit(Some(at + 1))) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests;
