//! From bytes to events.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::{Deserialize, de};

use super::{EventBatch, KvEvent, MAX_HASHES, Medium, WireError};

/// Reads one payload.
///
/// # Errors
/// [`WireError`] for anything but one batch, nothing after it, at most [`MAX_HASHES`] names in
/// each event.
pub fn decode(payload: &[u8]) -> Result<EventBatch, WireError> {
    let mut bytes = payload;
    let mut reader = rmp_serde::Deserializer::new(&mut bytes);
    reader.set_max_depth(32);
    let batch = EventBatch::deserialize(&mut reader).map_err(|e| WireError(e.to_string()))?;
    match bytes {
        [] => Ok(batch),
        rest => Err(WireError(format!("{} bytes after the batch", rest.len()))),
    }
}

impl<'de> Deserialize<'de> for EventBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = EventBatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[time, events, rank]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<EventBatch, A::Error> {
        let timestamp = seq
            .next_element()?
            .ok_or_else(|| A::Error::missing_field("time"))?;
        let events = seq
            .next_element()?
            .ok_or_else(|| A::Error::missing_field("events"))?;
        let rank = seq.next_element::<Option<i64>>()?.flatten();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(EventBatch {
            timestamp,
            events,
            rank,
        })
    }
}

impl<'de> Deserialize<'de> for KvEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EventVisitor)
    }
}

/// Fields of an event as they come.
#[derive(Default)]
struct Fields {
    hashes: Option<Vec<i64>>,
    parent: Option<i64>,
    block_size: Option<u32>,
    medium: Option<Medium>,
}

impl Fields {
    fn event<E: Error>(self, class: &str) -> Result<KvEvent, E> {
        let medium = self.medium.unwrap_or(Medium::Absent);
        let hashes = || self.hashes.ok_or_else(|| E::missing_field("block_hashes"));
        Ok(match class {
            "BlockStored" => KvEvent::Stored {
                hashes: hashes()?,
                parent: self.parent,
                block_size: self
                    .block_size
                    .ok_or_else(|| E::missing_field("block_size"))?,
                medium,
            },
            "BlockRemoved" => KvEvent::Removed {
                hashes: hashes()?,
                medium,
            },
            "AllBlocksCleared" => KvEvent::Cleared,
            _ => KvEvent::Unknown,
        })
    }
}

/// Fields after the class name in the array shape.
const STORED: [&str; 6] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
];
const REMOVED: [&str; 2] = ["block_hashes", "medium"];

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = KvEvent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event as an array or a map")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<KvEvent, A::Error> {
        let class: String = seq
            .next_element()?
            .ok_or_else(|| A::Error::missing_field("type"))?;
        let order: &[&str] = match class.as_str() {
            "BlockStored" => &STORED,
            "BlockRemoved" => &REMOVED,
            _ => &[],
        };
        let mut fields = Fields::default();
        for key in order {
            if !take(&mut fields, key, |seed| {
                seq.next_element_seed(seed).map(|got| got.is_some())
            })? {
                break;
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        fields.event(&class)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KvEvent, A::Error> {
        let mut class = None;
        let mut fields = Fields::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "type" {
                class = Some(map.next_value::<String>()?);
            } else {
                take(&mut fields, &key, |seed| {
                    map.next_value_seed(seed).map(|()| true)
                })?;
            }
        }
        let class = class.ok_or_else(|| A::Error::missing_field("type"))?;
        fields.event(&class)
    }
}

/// Reads the value of `key` into `fields` through `next`; what it answers is passed on.
fn take<E>(
    fields: &mut Fields,
    key: &str,
    next: impl FnOnce(Slot<'_>) -> Result<bool, E>,
) -> Result<bool, E> {
    next(match key {
        "block_hashes" => Slot::Hashes(&mut fields.hashes),
        "parent_block_hash" => Slot::Parent(&mut fields.parent),
        "block_size" => Slot::BlockSize(&mut fields.block_size),
        "medium" => Slot::Medium(&mut fields.medium),
        _ => Slot::Ignored,
    })
}

/// Where a value goes.
enum Slot<'a> {
    Hashes(&'a mut Option<Vec<i64>>),
    Parent(&'a mut Option<i64>),
    BlockSize(&'a mut Option<u32>),
    Medium(&'a mut Option<Medium>),
    Ignored,
}

impl<'de> DeserializeSeed<'de> for Slot<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self {
            Self::Hashes(slot) => *slot = Some(deserializer.deserialize_seq(HashesVisitor)?),
            Self::Parent(slot) => {
                *slot = Option::<Name>::deserialize(deserializer)?.map(|name| name.0);
            }
            Self::BlockSize(slot) => *slot = Some(u32::deserialize(deserializer)?),
            Self::Medium(slot) => {
                let name = Option::<String>::deserialize(deserializer)?;
                *slot = name.map(|name| Medium::parse(&name));
            }
            Self::Ignored => {
                IgnoredAny::deserialize(deserializer)?;
            }
        }
        Ok(())
    }
}

/// A block's name: encoders write non-negative ones as unsigned. Source: engine-wire §1.5.
struct Name(i64);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(NameVisitor).map(Self)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block hash of 64 bits")
    }

    fn visit_i64<E: Error>(self, name: i64) -> Result<i64, E> {
        Ok(name)
    }

    fn visit_u64<E: Error>(self, name: u64) -> Result<i64, E> {
        i64::try_from(name).map_err(|_| E::invalid_value(Unexpected::Unsigned(name), &self))
    }
}

struct HashesVisitor;

impl<'de> Visitor<'de> for HashesVisitor {
    type Value = Vec<i64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_HASHES} block hashes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<i64>, A::Error> {
        let announced = seq.size_hint().unwrap_or(0);
        if announced > MAX_HASHES {
            return Err(de::Error::invalid_length(announced, &self));
        }
        let mut hashes = Vec::with_capacity(announced);
        while let Some(Name(hash)) = seq.next_element()? {
            hashes.push(hash);
        }
        Ok(hashes)
    }
}
