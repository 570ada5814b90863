//! From events to bytes, as the engine writes them.

use rmp_serde::encode::Error;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::{EventBatch, KvEvent, Medium};

/// Which generation of engines to write like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// Maps tagged with `type`, absent fields left out: 0.5.20 onwards.
    #[default]
    Map,
    /// Arrays with the class name first: up to 0.5.19.
    Array,
}

/// Token ids that go with the stored blocks of a batch: one list per event, empty for others.
pub type StoredTokens<'a> = &'a [Vec<u32>];

/// Writes one payload. `tokens` belongs to `batch.events` by position; a missing list is empty.
///
/// # Errors
/// None that memory does not give; the encoder's own type is passed on.
pub fn encode(
    batch: &EventBatch,
    tokens: StoredTokens<'_>,
    shape: Shape,
) -> Result<Vec<u8>, Error> {
    let events: Vec<Event<'_>> = batch
        .events
        .iter()
        .enumerate()
        .map(|(at, event)| Event {
            event,
            tokens: tokens.get(at).map_or(&[][..], Vec::as_slice),
            shape,
        })
        .collect();
    rmp_serde::to_vec(&(batch.timestamp, events, batch.rank))
}

struct Event<'a> {
    event: &'a KvEvent,
    tokens: &'a [u32],
    shape: Shape,
}

fn medium(medium: Medium) -> Option<&'static str> {
    match medium {
        Medium::Known(tier) => Some(tier.as_str()),
        Medium::Absent | Medium::Unknown => None,
    }
}

impl Serialize for Event<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.shape {
            Shape::Map => self.map(serializer),
            Shape::Array => self.array(serializer),
        }
    }
}

impl Event<'_> {
    fn map<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.event {
            KvEvent::Stored {
                hashes,
                parent,
                block_size,
                medium: at,
            } => {
                let medium = medium(*at);
                let mut map = serializer.serialize_map(Some(6 + usize::from(medium.is_some())))?;
                map.serialize_entry("type", "BlockStored")?;
                map.serialize_entry("block_hashes", hashes)?;
                map.serialize_entry("parent_block_hash", parent)?;
                map.serialize_entry("token_ids", self.tokens)?;
                map.serialize_entry("block_size", block_size)?;
                map.serialize_entry("lora_id", &None::<u32>)?;
                if let Some(medium) = medium {
                    map.serialize_entry("medium", medium)?;
                }
                map.end()
            }
            KvEvent::Removed { hashes, medium: at } => {
                let medium = medium(*at);
                let mut map = serializer.serialize_map(Some(2 + usize::from(medium.is_some())))?;
                map.serialize_entry("type", "BlockRemoved")?;
                map.serialize_entry("block_hashes", hashes)?;
                if let Some(medium) = medium {
                    map.serialize_entry("medium", medium)?;
                }
                map.end()
            }
            KvEvent::Cleared | KvEvent::Unknown => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("type", "AllBlocksCleared")?;
                map.end()
            }
        }
    }

    fn array<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.event {
            KvEvent::Stored {
                hashes,
                parent,
                block_size,
                medium: at,
            } => {
                let mut seq = serializer.serialize_seq(Some(7))?;
                seq.serialize_element("BlockStored")?;
                seq.serialize_element(hashes)?;
                seq.serialize_element(parent)?;
                seq.serialize_element(self.tokens)?;
                seq.serialize_element(block_size)?;
                seq.serialize_element(&None::<u32>)?;
                seq.serialize_element(&medium(*at))?;
                seq.end()
            }
            KvEvent::Removed { hashes, medium: at } => {
                let mut seq = serializer.serialize_seq(Some(3))?;
                seq.serialize_element("BlockRemoved")?;
                seq.serialize_element(hashes)?;
                seq.serialize_element(&medium(*at))?;
                seq.end()
            }
            KvEvent::Cleared | KvEvent::Unknown => {
                let mut seq = serializer.serialize_seq(Some(1))?;
                seq.serialize_element("AllBlocksCleared")?;
                seq.end()
            }
        }
    }
}
