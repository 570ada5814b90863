//! The rules of `index.rs`, against worked cases and against a model of plain sets.

mod model;
mod recorded;

use super::*;

const SIZE: u32 = 16;

fn stored(parent: Option<i64>, hashes: &[i64]) -> KvEvent {
    on(Tier::Device, parent, hashes)
}

fn on(tier: Tier, parent: Option<i64>, hashes: &[i64]) -> KvEvent {
    KvEvent::Stored {
        hashes: hashes.to_vec(),
        parent,
        block_size: SIZE,
        medium: Medium::Known(tier),
    }
}

fn removed(hashes: &[i64], medium: Medium) -> KvEvent {
    KvEvent::Removed {
        hashes: hashes.to_vec(),
        medium,
    }
}

const DEVICE: Medium = Medium::Known(Tier::Device);

/// `engine/rank:blocks` of every holder, sorted.
fn holders(index: &PrefixIndex, names: &[i64]) -> Vec<String> {
    let found = index.lookup(names);
    let mut shown: Vec<String> = found
        .holders()
        .map(|holder| format!("{}/{}:{}", holder.engine, holder.rank, holder.blocks))
        .collect();
    shown.sort();
    shown
}

fn swept(index: &PrefixIndex) {
    while index.sweep(1000) {}
}

/// field-lessons L18.
#[test]
fn only_an_unbroken_run_from_the_first_block_counts() {
    let index = PrefixIndex::default();
    index.apply("A", 0, SIZE, &[stored(None, &[10, 11, 12])]);
    index.apply("B", 0, SIZE, &[stored(None, &[19])]);
    assert_eq!(holders(&index, &[19, 10, 11, 12]), ["B/0:1"]);
    index.apply("A", 0, SIZE, &[removed(&[11], DEVICE)]);
    assert_eq!(holders(&index, &[10, 11, 12]), ["A/0:1"]);
    index.apply("A", 0, SIZE, &[stored(Some(10), &[11])]);
    assert_eq!(holders(&index, &[10, 11, 12]), ["A/0:3"]);
}

/// field-lessons L19.
#[test]
fn an_unknown_block_does_not_stop_a_removal_and_other_owners_keep_theirs() {
    let index = PrefixIndex::default();
    for engine in ["A", "B"] {
        index.apply(engine, 0, SIZE, &[stored(None, &[1, 2, 3])]);
    }
    let applied = index.apply("A", 0, SIZE, &[removed(&[1, 99, 3], DEVICE)]);
    assert_eq!((applied.removed, applied.unknown_removals), (2, 1));
    assert_eq!(index.blocks_of("A", 0), 1);
    assert_eq!(holders(&index, &[1, 2, 3]), ["B/0:3"]);
    let again = index.apply("A", 0, SIZE, &[removed(&[1, 99, 3], DEVICE)]);
    assert_eq!((again.removed, again.unknown_removals), (0, 3));
    assert_eq!(index.size().holdings, 4);
}

/// field-lessons L15.
#[test]
fn a_clear_takes_exactly_that_rank_and_what_it_stores_next_is_all_it_has() {
    let index = PrefixIndex::default();
    for (engine, rank) in [("A", 0), ("A", 1), ("B", 0)] {
        index.apply(engine, rank, SIZE, &[stored(None, &[1, 2, 3])]);
    }
    index.apply("A", 0, SIZE, &[KvEvent::Cleared]);
    assert_eq!(holders(&index, &[1, 2, 3]), ["A/1:3", "B/0:3"]);
    index.apply("A", 0, SIZE, &[stored(None, &[1])]);
    let expected = ["A/0:1", "A/1:3", "B/0:3"];
    assert_eq!(holders(&index, &[1, 2, 3]), expected);
    swept(&index);
    assert_eq!(holders(&index, &[1, 2, 3]), expected);
    assert_eq!(index.blocks_of("A", 0), 1);
}

#[test]
fn an_owner_leaves_with_its_last_tier() {
    let index = PrefixIndex::default();
    index.apply(
        "A",
        0,
        SIZE,
        &[stored(None, &[1, 2]), on(Tier::Host, None, &[1, 2])],
    );
    index.apply("A", 0, SIZE, &[removed(&[1, 2], DEVICE)]);
    assert_eq!(holders(&index, &[1, 2]), ["A/0:2"]);
    // Write-back: the device copy goes before the disk copy comes.
    index.apply("A", 0, SIZE, &[removed(&[2], Medium::Known(Tier::Host))]);
    assert_eq!(holders(&index, &[1, 2]), ["A/0:1"]);
    index.apply("A", 0, SIZE, &[on(Tier::Disk, Some(1), &[2])]);
    assert_eq!(holders(&index, &[1, 2]), ["A/0:2"]);
    assert_eq!(index.blocks_of("A", 0), 2);
}

#[test]
fn mediums_without_a_known_name_follow_their_rules() {
    for medium in [Medium::Absent, Medium::Unknown] {
        let index = PrefixIndex::default();
        index.apply(
            "A",
            0,
            SIZE,
            &[stored(None, &[1]), on(Tier::External, None, &[1])],
        );
        index.apply("A", 0, SIZE, &[removed(&[1], medium)]);
        assert_eq!(
            holders(&index, &[1]),
            [""; 0],
            "{medium:?} removes every copy"
        );
        let store = KvEvent::Stored {
            hashes: vec![1],
            parent: None,
            block_size: SIZE,
            medium,
        };
        let applied = index.apply("A", 0, SIZE, &[store]);
        let unknown = u64::from(medium == Medium::Unknown);
        assert_eq!(
            (applied.stored, applied.unknown_mediums),
            (1 - unknown, unknown)
        );
    }
}

#[test]
fn an_orphan_counts_once_its_ancestors_have_come() {
    let index = PrefixIndex::default();
    index.apply("A", 0, SIZE, &[stored(Some(2), &[3, 4])]);
    assert_eq!(holders(&index, &[1, 2, 3, 4]), [""; 0]);
    // Another engine's copy of the ancestors does not help A.
    index.apply("B", 0, SIZE, &[stored(None, &[1, 2])]);
    assert_eq!(holders(&index, &[1, 2, 3, 4]), ["B/0:2"]);
    index.apply("A", 0, SIZE, &[stored(None, &[1, 2])]);
    assert_eq!(holders(&index, &[1, 2, 3, 4]), ["A/0:4", "B/0:2"]);
}

#[test]
fn blocks_of_another_size_and_unknown_events_are_counted_and_left_out() {
    let index = PrefixIndex::default();
    let other = KvEvent::Stored {
        hashes: vec![1],
        parent: None,
        block_size: SIZE + 1,
        medium: DEVICE,
    };
    let applied = index.apply("A", 0, SIZE, &[other, KvEvent::Unknown]);
    assert_eq!(
        (applied.wrong_sizes, applied.unknown_events, applied.stored),
        (1, 1, 0)
    );
    assert_eq!(index.size().blocks, 0);
}

/// field-lessons L14.
#[test]
fn a_removed_engine_is_gone_at_once_and_its_memory_is_used_again() {
    let index = PrefixIndex::default();
    let names = |engine: i64| {
        (1..=1000)
            .map(|block| engine * 10_000 + 10 + block)
            .collect::<Vec<_>>()
    };
    let engines: Vec<String> = (0..20).map(|engine| format!("http://e{engine}")).collect();
    for (at, engine) in (0..).zip(&engines) {
        index.apply(
            engine,
            0,
            SIZE,
            &[stored(None, &[7, 8]), stored(Some(8), &names(at))],
        );
    }
    let full = index.size();
    assert_eq!((full.blocks, full.owners), (20_002, 20));
    for engine in &engines[2..] {
        index.remove_engine(engine);
    }
    assert_eq!(holders(&index, &[7, 8]), ["http://e0/0:2", "http://e1/0:2"]);
    assert_eq!(index.size().holdings, 2 * 1002);
    swept(&index);
    let small = index.size();
    assert_eq!((small.blocks, small.owners), (2002, 2));
    for (at, engine) in (0..).zip(&engines[2..]) {
        index.apply(engine, 0, SIZE, &[stored(None, &names(100 + at))]);
    }
    assert_eq!(index.size().blocks, 2002 + 18_000);
    assert!(
        index.size().bytes <= full.bytes * 5 / 4,
        "{:?} {full:?}",
        index.size()
    );
}

/// field-lessons L20.
#[test]
fn three_thousand_engines_with_two_ranks_each_have_a_place() {
    let index = PrefixIndex::default();
    for engine in 0..3000_i64 {
        let url = format!("http://e{engine}");
        for rank in 0..2 {
            let own = [engine * 2 + i64::from(rank) + 1_000_000];
            index.apply(
                &url,
                rank,
                SIZE,
                &[stored(None, &[1]), stored(Some(1), &own)],
            );
        }
    }
    let found = index.lookup(&[1, 2999 * 2 + 1 + 1_000_000]);
    let found: Vec<_> = found.holders().collect();
    assert_eq!(found.len(), 6000);
    let deepest: Vec<_> = found.iter().filter(|holder| holder.blocks == 2).collect();
    assert_eq!(
        (&*deepest[0].engine, deepest[0].rank, deepest.len()),
        ("http://e2999", 1, 1)
    );
}

#[test]
fn a_query_of_nothing_and_a_query_of_strangers_find_nobody() {
    let index = PrefixIndex::default();
    assert_eq!(holders(&index, &[]), [""; 0]);
    assert_eq!(holders(&index, &[0, -1]), [""; 0]);
    index.apply("A", 0, SIZE, &[stored(None, &[0, -1, i64::MAX, i64::MIN])]);
    assert_eq!(holders(&index, &[0, -1, i64::MAX, i64::MIN]), ["A/0:4"]);
    assert_eq!(
        holders(&index, &[-1]),
        ["A/0:1"],
        "a name is its own prefix"
    );
    assert_eq!(holders(&index, &[5]), [""; 0]);
}
