//! Whether an engine had cached what the router expected: its `usage` is read on the side.
//!
//! Looks for the key `"cached_tokens"` in the passing bytes of an answer, whole or in events, and
//! keeps the last number it had. A key inside a text has its quotes escaped and is not taken for
//! one. Changes nothing and keeps a few bytes. Source: engine-wire §4.1, `usage`.

use memchr::memchr;

/// The key with its colon, as encoders write it.
const KEY: &[u8] = b"\"cached_tokens\":";

/// Scanner state between chunks.
#[derive(Debug, Default)]
pub struct CachedWatch {
    /// Bytes of the key that have matched.
    matched: usize,
    /// The number being read.
    number: Option<u64>,
    last: Option<u64>,
}

impl CachedWatch {
    /// Scans one chunk.
    pub fn scan(&mut self, chunk: &[u8]) {
        let mut at = 0;
        while at < chunk.len() {
            if self.matched == 0 {
                match memchr(KEY[0], &chunk[at..]) {
                    Some(skip) => at += skip,
                    None => return,
                }
            }
            self.step(chunk[at]);
            at += 1;
        }
    }

    fn step(&mut self, byte: u8) {
        if self.matched == KEY.len() {
            match byte {
                b' ' if self.number.is_none() => {}
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let number = self.number.unwrap_or(0);
                    self.number = Some(number.saturating_mul(10).saturating_add(digit));
                }
                _ => {
                    self.last = self.number.take().or(self.last);
                    self.matched = usize::from(byte == KEY[0]);
                }
            }
        } else if byte == KEY[self.matched] {
            self.matched += 1;
        } else {
            self.matched = usize::from(byte == KEY[0]);
        }
    }

    /// The last number that was complete.
    #[must_use]
    pub const fn tokens(&self) -> Option<u64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<u64> {
        let mut whole = CachedWatch::default();
        whole.scan(text.as_bytes());
        for cut in 0..text.len() {
            let mut pieces = CachedWatch::default();
            pieces.scan(&text.as_bytes()[..cut]);
            pieces.scan(&text.as_bytes()[cut..]);
            assert_eq!(pieces.tokens(), whole.tokens(), "{text} cut at {cut}");
        }
        whole.tokens()
    }

    #[test]
    fn the_last_number_counts_wherever_the_pieces_are_cut() {
        let rows = [
            (
                r#"{"usage":{"prompt_tokens_details":{"cached_tokens":96}}}"#,
                Some(96),
            ),
            (r#"{"cached_tokens": 7 , "x":1}"#, Some(7)),
            (r#"data: {"cached_tokens":0}"#, Some(0)),
            (
                "{\"cached_tokens\":1}\n\ndata: {\"cached_tokens\":23}\n",
                Some(23),
            ),
            (r#"{"prompt_tokens_details":null}"#, None),
            (r#"{"cached_tokens":null}"#, None),
            (r#"{"content":"say \"cached_tokens\":5 to me"}"#, None),
            (r#"{"a":""cached_tokens":4}"#, Some(4)),
            (r#"{"cached_tokens":5"#, None),
        ];
        for (text, expected) in rows {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
