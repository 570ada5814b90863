//! Request ids that this router gives to engines, so that it can abort by id.
//!
//! Minted for streams to plain engines whose caller set none and asked for one choice: with more
//! choices the engine renames ids, and an id of a caller must not be used for an abort that
//! matches by prefix. A pair gets none: its two halves would share it. A body that is not streamed
//! gets none either and stays byte for byte as it was sent: its engine looks for its client every
//! 4 s by itself. Source: http-and-operations §10, engine-wire §3.4.

use rand::Rng;

use crate::config::{Sampling, SamplingParam};
use crate::server::chat_body::ChatFields;
use crate::server::sampling;

/// An id for this request, 32 hex digits, or none where the rules forbid one.
#[must_use]
pub fn mint(fields: &ChatFields, body: &[u8], contract: &Sampling, pair: bool) -> Option<String> {
    let choices = fields.sampling(body, SamplingParam::N);
    if pair || !fields.stream || fields.has_rid || sampling::several_choices(contract, choices) {
        return None;
    }
    Some(random())
}

#[expect(clippy::disallowed_methods, reason = "an id, not a policy's choice")]
fn random() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::chat_body;

    fn minted(body: &str, pair: bool) -> Option<String> {
        let fields = chat_body::parse(body.as_bytes()).unwrap();
        mint(&fields, body.as_bytes(), &Sampling::default(), pair)
    }

    #[test]
    fn an_id_is_minted_only_where_the_rules_allow_it() {
        let rows = [
            (r#"{"model":"m","stream":true}"#, true),
            (r#"{"model":"m","stream":true,"n":1}"#, true),
            (r#"{"model":"m","stream":true,"n":null,"rid":null}"#, true),
            (r#"{"model":"m","stream":true,"n":2}"#, false),
            (r#"{"model":"m","stream":true,"n":"2"}"#, false),
            (r#"{"model":"m","stream":true,"n":[]}"#, false),
            (r#"{"model":"m","stream":true,"rid":"x"}"#, false),
            (r#"{"model":"m","stream":true,"rid":["x"]}"#, false),
            (r#"{"model":"m","stream":true,"r\u0069d":"x"}"#, false),
            (r#"{"model":"m"}"#, false),
        ];
        for (body, expected) in rows {
            assert_eq!(minted(body, false).is_some(), expected, "{body}");
            assert_eq!(minted(body, true), None, "{body}");
        }
    }

    #[test]
    fn ids_are_32_hex_digits_and_differ() {
        let body = r#"{"model":"m","stream":true}"#;
        let (a, b) = (minted(body, false).unwrap(), minted(body, false).unwrap());
        assert_ne!(a, b);
        assert!(a.len() == 32 && a.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
