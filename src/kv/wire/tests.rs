use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect()
}

const HASH: i64 = -3_488_128_144_981_237_669;
const CLEARED: &str =
    "93 cb41d954fc40200000 91 81 a474797065 b0416c6c426c6f636b73436c6561726564 01";
const STORED: &str = "93 cb41d954fc40200000 91 87 a474797065 ab426c6f636b53746f726564
    ac626c6f636b5f686173686573 91 d3cf97adeedb59e05b b1706172656e745f626c6f636b5f68617368 c0
    a9746f6b656e5f696473 94 01020304 aa626c6f636b5f73697a65 04 a76c6f72615f6964 c0
    a66d656469756d a3475055 01";
const REMOVED: &str = "93 cb41d954fc40200000 91 83 a474797065 ac426c6f636b52656d6f766564
    ac626c6f636b5f686173686573 91 d3cf97adeedb59e05b a66d656469756d a3475055 01";

fn batch(event: KvEvent) -> EventBatch {
    EventBatch {
        timestamp: 1_700_000_000.5,
        events: vec![event],
        rank: Some(1),
    }
}

fn stored(medium: Medium) -> KvEvent {
    KvEvent::Stored {
        hashes: vec![HASH],
        parent: None,
        block_size: 4,
        medium,
    }
}

/// Golden bytes of engine-wire §1.5, both ways.
#[test]
fn golden_payloads_are_read_and_written_byte_for_byte() {
    let device = Medium::Known(Tier::Device);
    let rows = [
        (CLEARED, KvEvent::Cleared, vec![]),
        (STORED, stored(device), vec![1, 2, 3, 4]),
        (
            REMOVED,
            KvEvent::Removed {
                hashes: vec![HASH],
                medium: device,
            },
            vec![],
        ),
    ];
    for (bytes, event, tokens) in rows {
        let batch = batch(event);
        assert_eq!(decode(&hex(bytes)).unwrap(), batch);
        let written = encode(&batch, &[tokens], Shape::Map).unwrap();
        assert_eq!(written, hex(bytes));
    }
}

#[test]
fn the_array_shape_is_read_with_and_without_its_trailing_fields() {
    let full = encode(&batch(stored(Medium::Absent)), &[vec![1]], Shape::Array).unwrap();
    assert_eq!(decode(&full).unwrap(), batch(stored(Medium::Absent)));
    // ["BlockStored", [1], nil, [], 4]: lora id and medium trimmed; a batch without a rank.
    let short = hex("92 00 91 95 ab426c6f636b53746f726564 91 01 c0 90 04");
    let KvEvent::Stored { hashes, medium, .. } = &decode(&short).unwrap().events[0] else {
        panic!("not a store");
    };
    assert_eq!((hashes.as_slice(), *medium), (&[1][..], Medium::Absent));
}

#[test]
fn unknown_names_are_kept_apart() {
    // {"type": "BlockRemoved", "block_hashes": [1], "medium": "TAPE", "new": {"a": [1]}}
    let removed =
        "93 00 91 84 a474797065 ac426c6f636b52656d6f766564 ac626c6f636b5f686173686573 91 01
        a66d656469756d a454415045 a36e6577 81 a161 91 01 c0";
    let event = KvEvent::Removed {
        hashes: vec![1],
        medium: Medium::Unknown,
    };
    assert_eq!(decode(&hex(removed)).unwrap().events, [event]);
    // ["Teleported", 1] beside a clear; a fourth element of the batch.
    let other = "94 00 92 92 aa54656c65706f72746564 01 91 b0416c6c426c6f636b73436c6561726564 c0 07";
    let events = decode(&hex(other)).unwrap().events;
    assert_eq!(events, [KvEvent::Unknown, KvEvent::Cleared]);
}

#[test]
fn payloads_that_are_no_batch_are_refused_and_never_panic() {
    let good = hex(STORED);
    for cut in 0..good.len() {
        assert!(decode(&good[..cut]).is_err(), "cut at {cut}");
    }
    let rows = [
        ("80", "a map"),
        ("93 00 c0 00", "events null"),
        ("93 00 91 01 00", "an event that is a number"),
        ("93 00 91 81 a16101 00", "no type"),
        (
            "93 00 91 91 ab426c6f636b53746f726564 00",
            "a store without fields",
        ),
        (
            "93 00 91 93 ac426c6f636b52656d6f766564 a178 c0 00",
            "hashes that are text",
        ),
        (
            "93 00 91 93 ac426c6f636b52656d6f766564 91 cfffffffffffffffff c0 00",
            "above 63 bits",
        ),
        (
            "93 00 91 93 ac426c6f636b52656d6f766564 ddffffffff 01",
            "a length that lies",
        ),
        ("93 00 90 00 00", "bytes after it"),
        ("dd 7fffffff", "a batch that lies"),
    ];
    for (bytes, why) in rows {
        assert!(decode(&hex(bytes)).is_err(), "{why}");
    }
    let nested = [vec![0x93, 0x00, 0x91, 0x92, 0xa1, 0x78], vec![0x91; 10_000]].concat();
    assert!(decode(&nested).is_err());
    let mut long = hex("93 00 91 93 ac426c6f636b52656d6f766564 dd00010001");
    long.extend(std::iter::repeat_n(1, MAX_HASHES + 1));
    long.extend([0xc0, 0x00]);
    assert!(decode(&long).is_err());
}

#[test]
fn random_damage_never_panics() {
    let good = hex(STORED);
    let mut state = 0x1234_5678_u64;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % bytes.len();
            bytes[at] = state.to_le_bytes()[3];
        }
        // Any answer will do.
        let _ = decode(&bytes);
    }
}
