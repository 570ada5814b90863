//! Values written as Python writes them: `str()`, `repr()` and `json.dumps`.
//!
//! Templates are written for Jinja2. A space after a colon, `None` for a null or `1e+16` for a number
//! end up in the prompt, and one different byte there means different tokens and no cache hit.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Python's `str(value)`, which is also what `{{ value }}` prints.
pub(super) fn to_str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => {
            let mut out = String::new();
            repr(value, &mut out);
            out
        }
    }
}

/// Jinja2's tests `iterable` and `sequence`: strings and mappings are both, none is neither.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
}

/// Python's `repr(value)`.
fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => repr_list(value, out),
        ValueKind::Map => repr_dict(value, out),
        ValueKind::Undefined
        | ValueKind::Bytes
        | ValueKind::Iterable
        | ValueKind::Plain
        | ValueKind::Invalid
        | _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn repr_list(list: &Value, out: &mut String) {
    out.push('[');
    for (at, item) in list.try_iter().into_iter().flatten().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        repr(&item, out);
    }
    out.push(']');
}

fn repr_dict(dict: &Value, out: &mut String) {
    out.push('{');
    for (at, key) in dict.try_iter().into_iter().flatten().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        repr(&key, out);
        out.push_str(": ");
        repr(&dict.get_item(&key).unwrap_or_default(), out);
    }
    out.push('}');
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 || (0x7f..0xa1).contains(&u32::from(c)) => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// A number as Python prints it: floats with the shortest digits, an exponent from 1e16 and below
/// 1e-4, and always a point or an exponent.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific.to_lowercase();
    };
    match exponent.parse::<i32>() {
        Ok(power @ (..=-5 | 16..)) => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
        Ok(_) | Err(_) => {
            let plain = float.to_string();
            let point = if plain.contains('.') { "" } else { ".0" };
            plain + point
        }
    }
}

/// The `tojson` filter of chat templates: `json.dumps` with Python's spacing, without HTML or ASCII
/// escaping unless asked for.
///
/// # Errors
/// `InvalidOperation` for values JSON does not know, undefined ones above all.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let mut dumper = Dumper {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: kwargs.get::<Option<usize>>("indent")?,
        item_separator: String::new(),
        key_separator: String::new(),
        out: String::new(),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let defaults = if dumper.indent.is_some() { "," } else { ", " };
    [dumper.item_separator, dumper.key_separator] = match separators {
        None => [defaults.to_owned(), ": ".to_owned()],
        Some(pair) => pair
            .try_into()
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators must be a pair"))?,
    };
    dumper.dump(value, 1)?;
    Ok(Value::from_safe_string(dumper.out))
}

/// State of one `json.dumps`.
struct Dumper {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    out: String,
}

// === impl Dumper ===

impl Dumper {
    fn dump(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.dict(value, depth)?,
            ValueKind::Undefined | ValueKind::Bytes | ValueKind::Plain | ValueKind::Invalid | _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "value is not JSON serializable",
                ));
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in list.try_iter()? {
            self.separate(&mut empty, depth);
            self.dump(&item, depth + 1)?;
        }
        self.close(empty, depth, ']');
        Ok(())
    }

    fn dict(&mut self, dict: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = dict.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            self.separate(&mut empty, depth);
            self.text(&to_str(&key));
            self.out.push_str(&self.key_separator);
            self.dump(&dict.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, depth, '}');
        Ok(())
    }

    fn separate(&mut self, first: &mut bool, depth: usize) {
        if !std::mem::replace(first, false) {
            self.out.push_str(&self.item_separator);
        }
        self.break_line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.break_line(depth - 1);
        }
        self.out.push(bracket);
    }

    fn break_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}
