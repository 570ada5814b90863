//! Watches an answer stream on the side for an error event inside a 200.
//!
//! Engines report queue-full, time-out and transfer failures of a streaming request as
//! `data: {"error": …}` on an answer that began with 200. The watcher never changes what is
//! forwarded. It keeps one line of at most [`WINDOW`] bytes and gives up on longer ones, so that
//! its memory is bounded whatever the engine sends. Source: http-and-operations §11, engine-wire
//! §4.1, field-lessons L61, L69.

/// Longest line start that is kept, bytes.
pub const WINDOW: usize = 4096;

/// Within how many bytes of the line start `"error"` must stand.
const ERROR_WITHIN: usize = 32;

/// Scanner state between chunks.
#[derive(Debug, Default)]
pub struct ErrorEvents {
    line: Vec<u8>,
    skipping: bool,
    found: Option<u16>,
}

impl ErrorEvents {
    /// Scans one chunk.
    pub fn scan(&mut self, mut chunk: &[u8]) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            if self.line.is_empty() && !self.skipping {
                self.judge(&chunk[..end]);
            } else if !self.skipping {
                self.keep(&chunk[..end]);
                let line = std::mem::take(&mut self.line);
                self.judge(&line);
            }
            self.line.clear();
            self.skipping = false;
            chunk = &chunk[end + 1..];
        }
        self.keep(chunk);
    }

    /// The code of the first error event seen; 500 when it named none.
    #[must_use]
    pub const fn found(&self) -> Option<u16> {
        self.found
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.skipping || piece.is_empty() {
            return;
        }
        let room = WINDOW - self.line.len();
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
        if !could_be_error(&self.line) {
            self.line.clear();
            self.skipping = true;
        }
    }

    fn judge(&mut self, line: &[u8]) {
        if self.found.is_none() && is_error(line) {
            self.found = Some(error_code(line));
        }
    }
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
    let code = serde_json::from_slice::<serde_json::Value>(payload)
        .ok()
        .and_then(|value| value.get("error")?.get("code")?.as_u64());
    code.and_then(|code| u16::try_from(code).ok())
        .unwrap_or(500)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = "data: {\"error\":{\"object\":\"error\",\"message\":\"full\",\"type\":\"SERVICE_UNAVAILABLE\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n";

    fn scan(chunks: &[&[u8]]) -> Option<u16> {
        let mut watcher = ErrorEvents::default();
        chunks.iter().for_each(|chunk| watcher.scan(chunk));
        watcher.found()
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
        let mut watcher = ErrorEvents::default();
        for _ in 0..1_000 {
            watcher.scan(&[b'x'; 1024]);
            watcher.scan(b"data: {\"error\":");
            assert!(watcher.line.capacity() <= 2 * WINDOW);
        }
        let mut watcher = ErrorEvents::default();
        watcher.scan(b"data: {\"error\":\"");
        for _ in 0..1_000 {
            watcher.scan(&[b'x'; 1024]);
            assert!(watcher.line.len() <= WINDOW);
        }
        watcher.scan(b"\n");
        assert_eq!(watcher.found(), Some(500));
    }
}
