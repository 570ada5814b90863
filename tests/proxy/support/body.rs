//! Request bodies and the bytes they travel as.

use std::fmt::Write as _;
use std::sync::OnceLock;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// The largest body that passes, bytes.
pub(crate) const MAX_BODY: usize = 32 << 20;

/// `stream: false`, one message.
pub(crate) fn chat(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

/// The same as a stream.
pub(crate) fn stream(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "stream": true})
}

/// `body` with the keys of `more`.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("an object");
    for (key, value) in more {
        body[key] = value.clone();
    }
    body
}

/// A small chat body.
pub(crate) fn small() -> Vec<u8> {
    chat("ping").to_string().into_bytes()
}

/// A chat body of exactly this size whose every part differs from every other, so that a piece
/// lost, repeated or moved is seen.
pub(crate) fn sized(bytes: usize) -> Vec<u8> {
    sized_for("m", bytes)
}

/// The same for another model.
pub(crate) fn sized_for(model: &str, bytes: usize) -> Vec<u8> {
    let head = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":""#);
    let tail = r#""}]}"#;
    let filler = bytes
        .checked_sub(head.len() + tail.len())
        .expect("room for a chat");
    let body = [head.as_bytes(), &filling()[..filler], tail.as_bytes()].concat();
    assert_eq!(body.len(), bytes);
    body
}

fn filling() -> &'static [u8] {
    static FILLING: OnceLock<Vec<u8>> = OnceLock::new();
    FILLING.get_or_init(|| {
        const LETTERS: &[u8; 64] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
        let mut draw = StdRng::seed_from_u64(7);
        let mut text = Vec::with_capacity(MAX_BODY + 1024);
        while text.len() < MAX_BODY + 1024 {
            let mut bits: u64 = draw.random();
            for _ in 0..10 {
                text.push(LETTERS[(bits & 63) as usize]);
                bits >>= 6;
            }
        }
        text
    })
}

/// The request head of a chat, without the empty line.
pub(crate) fn head(more: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\n{more}")
}

/// A whole request with `content-length`.
pub(crate) fn with_length(body: &[u8], headers: &str) -> Vec<u8> {
    let head = head(&format!("content-length: {}\r\n{headers}\r\n", body.len()));
    [head.as_bytes(), body].concat()
}

/// A whole chunked request.
pub(crate) fn chunked(body: &[u8], chunk: usize, headers: &str) -> Vec<u8> {
    let head = head(&format!("transfer-encoding: chunked\r\n{headers}\r\n"));
    [head.as_bytes(), &chunks(body, chunk), b"0\r\n\r\n"].concat()
}

/// The chunks of `body`, without the last one.
pub(crate) fn chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut coded = Vec::with_capacity(body.len() + body.len() / size * 12 + 64);
    for chunk in body.chunks(size) {
        let mut line = String::new();
        write!(line, "{:x}\r\n", chunk.len()).expect("a string takes everything");
        coded.extend_from_slice(line.as_bytes());
        coded.extend_from_slice(chunk);
        coded.extend_from_slice(b"\r\n");
    }
    coded
}
