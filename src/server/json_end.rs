//! Finds the byte that closes the top-level JSON value of a body that arrives in pieces.
//!
//! A chunked body has no announced length, and its last chunk must stay unread until the engine
//! connection exists (proxy/body.rs says why). One pass, three numbers of state, no allocation,
//! and no opinion on whether the JSON is valid.

/// Scanner state between pieces.
#[derive(Debug, Default)]
pub struct JsonEnd {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl JsonEnd {
    /// Scans one piece; true once the outermost object or array has been closed in it.
    ///
    /// A body that does not start with an object or array never closes; the caller reads it to
    /// its end and refuses it anyway.
    pub fn closes_in(&mut self, piece: &[u8]) -> bool {
        let mut closed = false;
        for &byte in piece {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    closed |= self.depth == 1;
                    self.depth = self.depth.saturating_sub(1);
                }
                _ => {}
            }
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_close_is_found_wherever_the_body_is_cut() {
        let body = br#" {"a":"}\"]","b":[1,{"c":"\\"}]} "#;
        let close = body.len() - 2;
        for cut in 0..body.len() {
            let mut end = JsonEnd::default();
            let first = end.closes_in(&body[..cut]);
            let second = end.closes_in(&body[cut..]);
            assert_eq!((first, second), (cut > close, cut <= close), "cut at {cut}");
        }
    }

    #[test]
    fn unclosed_and_scalar_bodies_never_close() {
        for body in [&b"{\"a\":[1}"[..], b"3", b"\"}\"", b"}{", b""] {
            assert!(!JsonEnd::default().closes_in(body), "{body:?}");
        }
    }
}
