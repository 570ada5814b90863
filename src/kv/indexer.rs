//! The messages of a remote prefix indexer, package `kv_indexer.v1`, service `KVIndexer`.
//!
//! Written from the field table: the numbers are the interface, unknown fields are skipped. Only what
//! a router asks and what keeps a small indexer filled. Source: engine-wire §5.

/// Path of the call that a router makes.
pub const MATCH_PATH: &str = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix";
/// Path of the call by which an engine's changes arrive.
pub const APPLY_PATH: &str = "/kv_indexer.v1.KVIndexer/ApplyExternalKvBatch";
/// Largest request that an indexer takes, bytes.
pub const MAX_REQUEST: usize = 8 << 20;
/// Hashes that fit into one request beside its other fields.
pub const MAX_HASHES: usize = (MAX_REQUEST - 64) / size_of::<i64>();

/// `MatchExternalKvPrefixRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MatchRequest {
    /// Block hashes in prompt order.
    #[prost(sfixed64, repeated, tag = "1")]
    pub hashes: Vec<i64>,
    /// No deeper than this; 0 is no limit.
    #[prost(uint32, tag = "2")]
    pub max_blocks: u32,
}

/// One engine that holds a prefix.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrefixMatch {
    /// The engine's URL, exactly as the router has it.
    #[prost(string, tag = "1")]
    pub worker_address: String,
    /// Blocks from the start.
    #[prost(uint32, tag = "2")]
    pub matched_prefix_blocks: u32,
    /// The indexer's own name of it.
    #[prost(string, tag = "3")]
    pub worker_id: String,
}

/// `MatchExternalKvPrefixResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MatchResponse {
    /// Longest first.
    #[prost(message, repeated, tag = "1")]
    pub matches: Vec<PrefixMatch>,
    /// Depth of the first.
    #[prost(uint32, tag = "2")]
    pub best_prefix_blocks: u32,
    /// Diagnostic.
    #[prost(uint32, tag = "3")]
    pub blocks_read: u32,
}

/// `ApplyExternalKvBatchRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ApplyRequest {
    /// The writer's name of the engine.
    #[prost(string, tag = "1")]
    pub worker_id: String,
    /// Counts up per engine.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// The changes, in order.
    #[prost(message, repeated, tag = "3")]
    pub actions: Vec<Action>,
    /// The engine's URL.
    #[prost(string, tag = "4")]
    pub worker_address: String,
}

/// `ExternalKvAction`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Action {
    /// 1 report, 2 revoke, 3 clear everything at the tier.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// 1 device, 2 host, 3 disk.
    #[prost(int32, tag = "2")]
    pub tier: i32,
    /// The blocks; empty for a clear.
    #[prost(sfixed64, repeated, tag = "3")]
    pub hashes: Vec<i64>,
}

/// `ApplyExternalKvBatchResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ApplyResponse {}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Field 1 packed as 8-byte little-endian numbers, field 2 a varint: what any other
    /// implementation of the table writes.
    #[test]
    fn a_request_has_the_bytes_of_the_field_table() {
        let request = MatchRequest {
            hashes: vec![1, -2],
            max_blocks: 300,
        };
        let mut expected = vec![0x0a, 16, 1, 0, 0, 0, 0, 0, 0, 0, 0xfe];
        expected.extend([0xff; 7]);
        expected.extend([0x10, 0xac, 0x02]);
        assert_eq!(request.encode_to_vec(), expected);
        assert_eq!(MatchRequest::decode(expected.as_slice()).unwrap(), request);
    }

    #[test]
    fn the_longest_hash_list_fits_and_unknown_fields_are_skipped() {
        let request = MatchRequest {
            hashes: vec![i64::MIN; MAX_HASHES],
            max_blocks: u32::MAX,
        };
        assert!(request.encoded_len() <= MAX_REQUEST);
        // Field 1 of a match, then a field 9 nobody knows.
        let bytes = [0x0a, 1, b'a', 0x10, 5, 0x4a, 2, 7, 7];
        let found = PrefixMatch::decode(&bytes[..]).unwrap();
        assert_eq!(
            (found.worker_address.as_str(), found.matched_prefix_blocks),
            ("a", 5)
        );
    }
}
