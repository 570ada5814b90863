//! Adding fields to a JSON object without touching its bytes.
//!
//! Key order, big integers, odd spellings and repeated keys survive, which no parse and
//! re-serialize could promise. An added field wins over one of the same name, because engines take
//! the last of two equal keys. Parses nothing and checks nothing: callers hold a body that
//! preparation has accepted. Source: http-and-operations §8, §10.

use bytes::{BufMut, Bytes, BytesMut};

/// `body` with `fields` added at its end.
///
/// * `body`: one JSON object with at least one key and nothing but blanks after it.
/// * `fields`: `"key":value`, joined by commas; not empty.
#[must_use]
pub fn before_last_brace(body: &Bytes, fields: &str) -> Bytes {
    let close = body
        .iter()
        .rposition(|byte| *byte == b'}')
        .expect("preparation admits only JSON objects");
    let mut longer = BytesMut::with_capacity(body.len() + fields.len() + 1);
    longer.put_slice(&body[..close]);
    longer.put_u8(b',');
    longer.put_slice(fields.as_bytes());
    longer.put_slice(&body[close..]);
    longer.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_last_and_every_other_byte_survives() {
        let rows = [
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
            (
                "{\"a\":{\"b\":\"}\"} , \"a\":1e400\n}\r\n ",
                "{\"a\":{\"b\":\"}\"} , \"a\":1e400\n,\"b\":2}\r\n ",
            ),
        ];
        for (body, expected) in rows {
            let longer = before_last_brace(&Bytes::from_static(body.as_bytes()), r#""b":2"#);
            assert_eq!(longer, expected);
        }
    }
}
