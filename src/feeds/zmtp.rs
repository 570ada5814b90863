//! The part of ZMTP 3.0 that a SUB or DEALER socket without security needs.
//!
//! Bytes in, messages out; no sockets and no clock. Memory follows what has arrived, never what a
//! peer announces, and nothing above the limit is kept: a length field cannot make the process
//! allocate. Refuses every security mechanism but NULL and every version below 3.
//! Source: rfc.zeromq.org/spec/23.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// Bytes of a greeting.
pub(super) const GREETING: usize = 64;
/// Most frames of one message.
const MAX_FRAMES: usize = 64;

const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// A peer that does not keep to the protocol or to the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ZmtpError {
    /// Not a ZMTP 3 peer, or one that wants security.
    #[error("not a ZMTP 3 peer without security: {0}")]
    Greeting(&'static str),
    /// A message above the limit.
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
    /// A message of more than 64 frames.
    #[error("a message of more than 64 frames")]
    TooManyFrames,
    /// Reserved bits set, or a command inside a message.
    #[error("malformed frame")]
    Frame,
    /// The handshake did not end with READY.
    #[error("the peer did not say READY")]
    NotReady,
}

/// One thing that a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A command, whole body.
    Command(Bytes),
    /// A message, frame by frame.
    Message(Vec<Bytes>),
}

/// Our greeting: version 3.0, mechanism NULL.
pub(super) fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Whether a peer with this greeting can be talked to.
pub(super) fn check_greeting(bytes: &[u8; GREETING]) -> Result<(), ZmtpError> {
    if bytes[0] != 0xff || bytes[9] & 1 == 0 {
        return Err(ZmtpError::Greeting("bad signature"));
    }
    if bytes[10] < 3 {
        return Err(ZmtpError::Greeting("version below 3"));
    }
    if bytes[12..32] != greeting()[12..32] {
        return Err(ZmtpError::Greeting("mechanism other than NULL"));
    }
    Ok(())
}

/// The READY command of a `socket_type` socket.
pub(super) fn ready(socket_type: &str) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_slice(b"\x05READY\x0bSocket-Type");
    body.put_u32(u32::try_from(socket_type.len()).unwrap_or(u32::MAX));
    body.put_slice(socket_type.as_bytes());
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, COMMAND, &body);
    bytes
}

/// Whether a command body is READY.
pub(super) fn is_ready(command: &[u8]) -> bool {
    command.starts_with(b"\x05READY")
}

/// A message on the wire.
pub(super) fn message(frames: &[&[u8]]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        put_frame(&mut bytes, more, frame);
    }
    bytes
}

fn put_frame(bytes: &mut BytesMut, flags: u8, body: &[u8]) {
    if let Ok(length) = u8::try_from(body.len()) {
        bytes.put_slice(&[flags, length]);
    } else {
        bytes.put_u8(flags | LONG);
        bytes.put_u64(body.len() as u64);
    }
    bytes.put_slice(body);
}

/// Assembles frames into messages of at most `limit` bytes.
#[derive(Debug)]
pub(super) struct Decoder {
    limit: usize,
    frames: Vec<Bytes>,
    size: usize,
}

impl Decoder {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            frames: Vec::new(),
            size: 0,
        }
    }

    /// Takes the next item from the front of `buffer`; `None` while it is not complete.
    ///
    /// # Errors
    /// [`ZmtpError`]; the stream is beyond repair then.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Item>, ZmtpError> {
        while let Some((flags, length, head)) = header(buffer)? {
            let size = usize::try_from(length)
                .ok()
                .and_then(|n| n.checked_add(self.size));
            let Some(size) = size.filter(|size| *size <= self.limit) else {
                return Err(ZmtpError::TooLarge(self.limit));
            };
            let length = size - self.size;
            if buffer.len() - head < length {
                return Ok(None);
            }
            buffer.advance(head);
            let body = buffer.split_to(length).freeze();
            if flags & COMMAND != 0 {
                if !self.frames.is_empty() {
                    return Err(ZmtpError::Frame);
                }
                return Ok(Some(Item::Command(body)));
            }
            if self.frames.len() == MAX_FRAMES {
                return Err(ZmtpError::TooManyFrames);
            }
            if self.frames.is_empty() {
                self.frames.reserve(3);
            }
            self.frames.push(body);
            self.size = size;
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.frames))));
            }
        }
        Ok(None)
    }
}

/// What is at the front of some bytes, read in place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Front<'b> {
    /// A command, which is passed over.
    Command,
    /// A message.
    Message(Frames<'b>),
}

/// The frames of a message in place; of more than three only the number is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frames<'b> {
    first: [&'b [u8]; 3],
    count: usize,
}

impl<'b> Frames<'b> {
    /// The frames, if they are exactly three.
    pub(super) fn three(&self) -> Option<[&'b [u8]; 3]> {
        (self.count == 3).then_some(self.first)
    }
}

/// The whole item at the front of `bytes` and how many bytes it is; `None` while it is not
/// complete. Accepts and refuses what [`Decoder`] does, and keeps nothing.
///
/// # Errors
/// [`ZmtpError`]; the stream is beyond repair then.
pub(super) fn front(bytes: &[u8], limit: usize) -> Result<Option<(Front<'_>, usize)>, ZmtpError> {
    let mut frames = Frames {
        first: [&[]; 3],
        count: 0,
    };
    let (mut at, mut size) = (0, 0_usize);
    while let Some((flags, length, head)) = header(&bytes[at..])? {
        let length = usize::try_from(length).ok();
        let sum = length.and_then(|length| length.checked_add(size));
        let (Some(length), Some(sum)) = (length, sum.filter(|sum| *sum <= limit)) else {
            return Err(ZmtpError::TooLarge(limit));
        };
        let Some(body) = bytes.get(at + head..at + head + length) else {
            return Ok(None);
        };
        (at, size) = (at + head + length, sum);
        if flags & COMMAND != 0 {
            return match frames.count {
                0 => Ok(Some((Front::Command, at))),
                _ => Err(ZmtpError::Frame),
            };
        }
        if frames.count == MAX_FRAMES {
            return Err(ZmtpError::TooManyFrames);
        }
        if let Some(place) = frames.first.get_mut(frames.count) {
            *place = body;
        }
        frames.count += 1;
        if flags & MORE == 0 {
            return Ok(Some((Front::Message(frames), at)));
        }
    }
    Ok(None)
}

/// Flags, body length and header length of the frame at the front of `buffer`.
fn header(buffer: &[u8]) -> Result<Option<(u8, u64, usize)>, ZmtpError> {
    let Some(&flags) = buffer.first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
        return Err(ZmtpError::Frame);
    }
    if flags & LONG == 0 {
        return Ok(buffer.get(1).map(|length| (flags, u64::from(*length), 2)));
    }
    let length = buffer.get(1..9).map(|mut bytes| bytes.get_u64());
    Ok(length.map(|length| (flags, length, 9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(bytes: &[u8], limit: usize, step: usize) -> Result<Vec<Item>, ZmtpError> {
        let (mut decoder, mut buffer, mut found) =
            (Decoder::new(limit), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(item) = decoder.next(&mut buffer)? {
                found.push(item);
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_of_any_size_survive_any_cutting() {
        let (empty, short, long) = (vec![], vec![7_u8; 255], vec![9_u8; 70_000]);
        let mut bytes = ready("SUB");
        bytes.unsplit(message(&[&empty, &short, &long]));
        bytes.unsplit(message(&[b"x"]));
        for step in [1, 2, 7, 300, bytes.len()] {
            let found = items(&bytes, 100_000, step).unwrap();
            let whole = |parts: &[&[u8]]| {
                Item::Message(
                    parts
                        .iter()
                        .map(|part| Bytes::copy_from_slice(part))
                        .collect(),
                )
            };
            assert!(matches!(&found[0], Item::Command(body) if is_ready(body)));
            assert_eq!(found[1], whole(&[&empty, &short, &long]));
            assert_eq!(found[2], whole(&[b"x"]));
            assert_eq!(found.len(), 3);
        }
    }

    #[test]
    fn an_announced_length_above_the_limit_is_refused_before_anything_is_kept() {
        for length in [11_u64, 1 << 40, u64::MAX] {
            let mut bytes = BytesMut::from(&[LONG][..]);
            bytes.put_u64(length);
            assert_eq!(items(&bytes, 10, 1), Err(ZmtpError::TooLarge(10)));
        }
        // The limit is of the message, not of one frame, and it is inclusive.
        assert!(items(&message(&[b"12345", b"67890"]), 10, 1).is_ok());
        let over = message(&[b"12345", b"678901"]);
        assert_eq!(items(&over, 10, 1), Err(ZmtpError::TooLarge(10)));
    }

    #[test]
    fn malformed_frames_are_errors() {
        assert_eq!(items(&[0x08, 0], 10, 2), Err(ZmtpError::Frame));
        assert_eq!(items(&[COMMAND | MORE, 0], 10, 2), Err(ZmtpError::Frame));
        assert_eq!(items(&[MORE, 0, COMMAND, 0], 10, 4), Err(ZmtpError::Frame));
        let many = [MORE, 0].repeat(MAX_FRAMES + 1);
        assert_eq!(items(&many, 10, 2), Err(ZmtpError::TooManyFrames));
    }

    /// In place or assembled: the same items and the same refusals, however much has come.
    #[test]
    fn reading_in_place_agrees_with_the_decoder() {
        let long = [b'x'; 300];
        let whole: [BytesMut; 6] = [
            message(&[b"load", &[0; 8], b"payload"]),
            message(&[b"", &long, b""]),
            message(&[b"one"]),
            message(&[b"1", b"2", b"3", b"4"]),
            ready("PUB"),
            message(&[&long, &long]),
        ];
        let broken: [&[u8]; 4] = [
            &[0x08, 0],
            &[COMMAND | MORE, 0],
            &[MORE, 0, COMMAND, 0],
            &[2, 0, 0],
        ];
        let many = [MORE, 0].repeat(MAX_FRAMES + 1);
        let all = whole
            .iter()
            .map(|bytes| &bytes[..])
            .chain(broken)
            .chain([&many[..]]);
        for bytes in all {
            for end in 0..=bytes.len() {
                let mut buffer = BytesMut::from(&bytes[..end]);
                let assembled = Decoder::new(400).next(&mut buffer);
                let in_place = front(&bytes[..end], 400);
                let came = match (&assembled, &in_place) {
                    (
                        Ok(Some(Item::Message(frames))),
                        Ok(Some((Front::Message(found), length))),
                    ) => {
                        let three =
                            (frames.len() == 3).then(|| [&frames[0][..], &frames[1], &frames[2]]);
                        assert_eq!((found.three(), *length), (three, end));
                        true
                    }
                    (Ok(Some(Item::Command(_))), Ok(Some((Front::Command, length)))) => {
                        *length == end
                    }
                    (Ok(None), Ok(None)) => true,
                    (Err(one), Err(other)) => one == other,
                    _ => false,
                };
                assert!(came, "{assembled:?} {in_place:?} of {:?}", &bytes[..end]);
            }
        }
    }

    #[test]
    fn greetings_of_other_protocols_are_refused() {
        assert_eq!(check_greeting(&greeting()), Ok(()));
        let mut newer = greeting();
        newer[11] = 1;
        assert_eq!(check_greeting(&newer), Ok(()));
        let rows: [(usize, u8); 4] = [(0, b'H'), (9, 0x7e), (10, 2), (12, b'C')];
        for (at, byte) in rows {
            let mut bytes = greeting();
            bytes[at] = byte;
            assert!(matches!(
                check_greeting(&bytes),
                Err(ZmtpError::Greeting(_))
            ));
        }
    }
}
