//! The Jinja environment: what transformers gives its templates, built from minijinja.
//!
//! White-space rules, Python's string and dict methods, printing and `tojson` as in Python,
//! `raise_exception` and `strftime_now`. Loop controls are a feature of the library; `generation`
//! blocks are rewritten before compiling.
//!
//! Source: data/chat_templates/README.

use std::fmt::Write as _;

use chrono::NaiveDateTime;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::outcome::FallReason;
use super::python;

/// Cost of nested calls; a macro costs 4 and more. The most the renderer allows: some 40 levels of a
/// recursive macro, within a 2 MiB stack.
const RECURSION_LIMIT: usize = 500;

/// Marks an error as the template's own refusal.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Refused;

/// Tells refusals, limits and failures apart; looks at no message.
pub(super) fn fall_reason(error: &Error) -> FallReason {
    let refused = std::iter::successors(std::error::Error::source(error), |error| error.source())
        .any(|source| source.is::<Refused>());
    let limited = matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure);
    if refused {
        FallReason::TemplateRefused
    } else if limited {
        FallReason::TemplateLimit
    } else {
        FallReason::TemplateError
    }
}

/// The environment of one model, without templates. Its clock is local time.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_debug(false);
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _state, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&python::to_str(value))?,
        }
        Ok(())
    });
    env.add_filter("tojson", |value: &Value, kwargs| {
        python::tojson(value, kwargs)
    });
    env.add_filter("string", |value: &Value| python::to_str(value));
    env.add_test("iterable", python::is_iterable);
    env.add_test("sequence", python::is_iterable);
    env.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> {
            let error = Error::new(ErrorKind::InvalidOperation, message.to_string());
            Err(error.with_source(Refused))
        },
    );
    add_strftime_now(&mut env, || chrono::Local::now().naive_local());
    env
}

/// Adds or replaces `strftime_now`.
pub(super) fn add_strftime_now(env: &mut Environment<'static>, clock: fn() -> NaiveDateTime) {
    env.add_function("strftime_now", move |format: &str| {
        let mut out = String::new();
        write!(out, "{}", clock().format(format))
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "bad date format"))?;
        Ok::<_, Error>(out)
    });
}
