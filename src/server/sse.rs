//! Watches an answer stream on the side: an error event inside a 200, and the first generated
//! token.
//!
//! Engines report queue-full, time-out and transfer failures of a streaming request as
//! `data: {"error": …}` on an answer that began with 200, and their first event usually is a role
//! chunk without any text. The watcher never changes what is forwarded. It keeps one line of at
//! most [`WINDOW`] bytes, so that its memory is bounded whatever the engine sends.
//! Source: http-and-operations §11, engine-wire §4.1, field-lessons L06, L60, L61, L69.

use memchr::memchr;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Longest line that is inspected, bytes.
pub const WINDOW: usize = 4096;

/// Within how many bytes of the line start `"error"` must stand.
const ERROR_WITHIN: usize = 32;

/// Scanner state between chunks.
#[derive(Debug, Default)]
pub struct StreamWatch {
    line: Vec<u8>,
    skipping: bool,
    error: Option<u16>,
    token: bool,
    uninspectable: bool,
}

impl StreamWatch {
    /// Scans one chunk; true when it completed the first event with generated text.
    pub fn scan(&mut self, mut chunk: &[u8]) -> bool {
        let had_token = self.token;
        while let Some(end) = memchr(b'\n', chunk) {
            if self.line.is_empty() && !self.skipping && end <= WINDOW {
                self.judge(&chunk[..end]);
            } else {
                self.keep(&chunk[..end]);
                let line = std::mem::take(&mut self.line);
                if !self.skipping {
                    self.judge(&line);
                }
                // The buffer is used again.
                self.line = line;
            }
            self.line.clear();
            self.skipping = false;
            chunk = &chunk[end + 1..];
        }
        self.keep(chunk);
        self.token && !had_token
    }

    /// The code of the first error event seen; 500 when it named none.
    #[must_use]
    pub const fn error(&self) -> Option<u16> {
        self.error
    }

    /// Whether an event with generated text has passed.
    #[must_use]
    pub const fn token(&self) -> bool {
        self.token
    }

    /// Whether a line was too long to be looked at.
    #[must_use]
    pub const fn uninspectable(&self) -> bool {
        self.uninspectable
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.skipping || piece.is_empty() {
            return;
        }
        let room = WINDOW - self.line.len();
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
        if self.token && !could_be_error(&self.line) {
            self.skip();
        } else if piece.len() > room {
            self.overlong();
        }
    }

    fn skip(&mut self) {
        self.line.clear();
        self.skipping = true;
    }

    /// No control event is this long: a `data:` line is text, or an error with a long message.
    fn overlong(&mut self) {
        self.uninspectable = true;
        if is_error(&self.line) {
            self.error.get_or_insert(500);
        } else if self.line.starts_with(b"data:") {
            self.token = true;
        }
        self.skip();
    }

    fn judge(&mut self, line: &[u8]) {
        if is_error(line) {
            self.error.get_or_insert_with(|| error_code(line));
        } else if !self.token {
            self.token = has_text(line);
        }
    }
}

/// The parts of an event that hold generated text; the rest is skipped, not built.
#[derive(Deserialize)]
struct Event<'e> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'e>>,
}

#[derive(Deserialize)]
struct Choice<'e> {
    #[serde(borrow)]
    delta: Option<Delta<'e>>,
    #[serde(borrow)]
    text: Option<&'e RawValue>,
}

#[derive(Deserialize)]
struct Delta<'e> {
    #[serde(borrow)]
    content: Option<&'e RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'e RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'e RawValue>,
}

/// Whether an event carries generated text: content, reasoning or a tool call of any choice.
fn has_text(line: &[u8]) -> bool {
    let Some(event) = line.strip_prefix(b"data:") else {
        return false;
    };
    let Ok(event) = serde_json::from_slice::<Event<'_>>(event) else {
        return false;
    };
    let text = |value: Option<&RawValue>| {
        value.is_some_and(|value| value.get().starts_with('"') && value.get() != "\"\"")
    };
    let some = |list: Option<&RawValue>| {
        let list = list.and_then(|list| list.get().strip_prefix('['));
        list.is_some_and(|rest| !rest.trim_ascii_start().starts_with(']'))
    };
    event.choices.iter().any(|choice| match &choice.delta {
        None => text(choice.text),
        Some(delta) => {
            text(delta.content) || text(delta.reasoning_content) || some(delta.tool_calls)
        }
    })
}

/// `data:`, blanks, `{`, blanks, `"error"` within the first bytes of a line.
fn is_error(line: &[u8]) -> bool {
    const ERROR: &[u8] = b"\"error\"";
    let head = &line[..line.len().min(ERROR_WITHIN)];
    let Some(rest) = head.strip_prefix(b"data:") else {
        return false;
    };
    let Some(rest) = rest.trim_ascii_start().strip_prefix(b"{") else {
        return false;
    };
    rest.trim_ascii_start().starts_with(ERROR)
}

/// Whether a line that begins like this may still turn out to be an error event.
fn could_be_error(start: &[u8]) -> bool {
    if start.len() >= ERROR_WITHIN {
        return is_error(start);
    }
    let data = b"data:";
    let shared = start.len().min(data.len());
    start[..shared] == data[..shared]
}

fn error_code(line: &[u8]) -> u16 {
    let payload = line.strip_prefix(b"data:").unwrap_or(line);
    let code = serde_json::from_slice::<Value>(payload)
        .ok()
        .and_then(|value| value.get("error")?.get("code")?.as_u64());
    code.and_then(|code| u16::try_from(code).ok())
        .unwrap_or(500)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = "data: {\"error\":{\"object\":\"error\",\"message\":\"full\",\"type\":\"SERVICE_UNAVAILABLE\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n";

    fn watch(chunks: &[&[u8]]) -> StreamWatch {
        let mut watcher = StreamWatch::default();
        for chunk in chunks {
            watcher.scan(chunk);
        }
        watcher
    }

    fn scan(chunks: &[&[u8]]) -> Option<u16> {
        watch(chunks).error()
    }

    #[test]
    fn an_error_event_is_seen_wherever_the_stream_is_cut() {
        let stream = format!("data: {{\"choices\":[]}}\n\n{EVENT}");
        for cut in 0..stream.len() {
            let (a, b) = stream.as_bytes().split_at(cut);
            assert_eq!(scan(&[a, b]), Some(503), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(scan(&bytes), Some(503));
    }

    #[test]
    fn text_about_errors_is_not_an_error() {
        let rows = [
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"error\\\"\"}}]}\n\n",
            ": {\"error\":1}\n\n",
            " data: {\"error\":1}\n\n",
            "event: {\"error\":1}\n\n",
            "data: {\"errors\":1}\n\n",
            "data:                                {\"error\":1}\n\n",
        ];
        for row in rows {
            assert_eq!(scan(&[row.as_bytes()]), None, "{row}");
        }
    }

    #[test]
    fn blanks_are_optional_and_an_event_without_a_code_is_an_engine_fault() {
        assert_eq!(scan(&[b"data:{\"error\":\"x\"}\n\n"]), Some(500));
        assert_eq!(
            scan(&[b"data:  {  \"error\":{\"code\":429}}\r\n\r\n"]),
            Some(429)
        );
    }

    #[test]
    fn a_line_that_never_ends_is_held_to_the_window() {
        for start in ["", "data: {\"choices\":", "data: {\"error\":\""] {
            let mut watcher = watch(&[start.as_bytes()]);
            for _ in 0..1_000 {
                watcher.scan(&[b'x'; 1024]);
                assert!(watcher.line.capacity() <= 2 * WINDOW);
            }
            assert!(watcher.uninspectable());
            watcher.scan(EVENT.as_bytes());
            let code = if start.is_empty() { None } else { Some(500) };
            let expected = if start.contains("error") { code } else { None };
            assert_eq!(
                watcher.error(),
                expected,
                "the event ends the long line: {start}"
            );
            watcher.scan(EVENT.as_bytes());
            assert_eq!(watcher.error(), expected.or(Some(503)), "{start}");
        }
    }

    #[test]
    fn the_first_token_is_the_first_event_with_text_however_the_stream_is_cut() {
        let role =
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
        let texts = [
            "{\"content\":\"Hi\"}",
            "{\"reasoning_content\":\"hm\",\"content\":null}",
            "{\"tool_calls\":[{\"index\":0}]}",
        ];
        for text in texts {
            let stream = format!(
                ": ping\n\n{role}data: {{\"choices\":[{{\"delta\":{text}}}]}}\n\ndata: [DONE]\n\n"
            );
            let complete = stream.find("data: [DONE]").unwrap() - 1;
            for cut in 0..stream.len() {
                let (a, b) = stream.as_bytes().split_at(cut);
                let mut watcher = StreamWatch::default();
                let seen = (watcher.scan(a), watcher.scan(b));
                assert_eq!(
                    seen,
                    (cut >= complete, cut < complete),
                    "{text} cut at {cut}"
                );
            }
        }
        assert!(!watch(&[role.as_bytes(), b"data: [DONE]\n\n"]).token());
    }

    #[test]
    fn events_without_generated_text_are_none_whatever_else_they_hold() {
        let rows = [
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            r#"{"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"delta":{}}]}"#,
            r#"{"choices":[{"delta":null,"text":""}]}"#,
            r#"{"choices":[{"delta":{"content":"","reasoning_content":null,"tool_calls":[ ]}}]}"#,
            r#"{"choices":[{"delta":{"content":["part"]}}]}"#,
            r#"{"choices":[{"delta":"text"}]}"#,
            r#"{"choices":[{"delta":{"content":"x"}}]"#,
        ];
        for row in rows {
            assert!(!has_text(format!("data: {row}").as_bytes()), "{row}");
        }
        for row in [
            r#"{"choices":[{"delta":{}},{"delta":{"content":" "}}]}"#,
            r#"{"choices":[{"text":"completion"}],"id":"a"}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}],"content":null}}]}"#,
        ] {
            assert!(has_text(format!("data:{row}").as_bytes()), "{row}");
        }
    }

    #[test]
    fn after_the_first_token_lines_are_skipped_early_but_errors_are_still_seen() {
        let mut watcher = watch(&[b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"]);
        watcher.scan(b"data: {\"choices\":[{\"delta\":{\"content\":\"bbbbbbbbbbbbbbbbbbbbbb");
        assert!(watcher.line.is_empty(), "ruled out within its first bytes");
        watcher.scan(b"\"}}]}\n\n");
        watcher.scan(EVENT.as_bytes());
        assert_eq!(watcher.error(), Some(503));
    }
}
