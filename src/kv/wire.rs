//! The payload of one event message: msgpack, both generations of shapes, both ways.
//!
//! Engines up to 0.5.19 send events as arrays (`["BlockStored", hashes, parent, …]`, trailing nulls
//! trimmed), later ones as maps with the class name under `type`. Decoding takes both, skips what
//! it does not know, and keeps no token ids: names and parents are enough for an index. Bounds:
//! [`MAX_HASHES`] per event, and the caller bounds the message. Source: engine-wire §1.5.

mod decode;
mod encode;

use thiserror::Error;

pub use decode::decode;
pub use encode::{Shape, StoredTokens, encode};

/// Most names in one event; a larger event rejects its message. Source: engine-wire §1.9.
pub const MAX_HASHES: usize = 65_536;

/// Where a copy of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Device memory, `GPU`.
    Device,
    /// Host memory, `CPU_PINNED`.
    Host,
    /// Local disk, `DISK`.
    Disk,
    /// A pool shared by engines, `EXTERNAL`.
    External,
}

impl Tier {
    /// All tiers, nearest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::External];

    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "GPU",
            Self::Host => "CPU_PINNED",
            Self::Disk => "DISK",
            Self::External => "EXTERNAL",
        }
    }

    /// One bit per tier: 1, 2, 4, 8. Source: engine-wire §1.9.
    #[must_use]
    pub const fn bit(self) -> u8 {
        match self {
            Self::Device => 1,
            Self::Host => 2,
            Self::Disk => 4,
            Self::External => 8,
        }
    }
}

/// The `medium` of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Null or left out.
    Absent,
    /// A tier.
    Known(Tier),
    /// A name nobody knows.
    Unknown,
}

impl Medium {
    /// Reads the name on the wire.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        let tier = Tier::ALL.into_iter().find(|tier| tier.as_str() == name);
        tier.map_or(Self::Unknown, Self::Known)
    }
}

/// One change of an engine's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks were stored, each the child of the one before.
    Stored {
        /// Their names.
        hashes: Vec<i64>,
        /// The block before the first; `None` at the start of a prompt.
        parent: Option<i64>,
        /// Units per block.
        block_size: u32,
        /// Where.
        medium: Medium,
    },
    /// Blocks are gone.
    Removed {
        /// Their names.
        hashes: Vec<i64>,
        /// From where.
        medium: Medium,
    },
    /// Everything is gone.
    Cleared,
    /// A class that nobody knows.
    Unknown,
}

/// The events of one message, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct EventBatch {
    /// Seconds since the epoch, by the engine's clock.
    pub timestamp: f64,
    /// The changes.
    pub events: Vec<KvEvent>,
    /// The rank as the engine says; whose events they are is known from the socket.
    pub rank: Option<i64>,
}

/// A payload that is not an event batch.
#[derive(Debug, Error)]
#[error("not an event batch: {0}")]
pub struct WireError(String);

#[cfg(test)]
mod tests;
