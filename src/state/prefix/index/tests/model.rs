//! Random operations against plain maps, and queries beside a writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Tiers by rank and block.
type Model = BTreeMap<(String, u32), BTreeMap<i64, u8>>;

/// Names of a prompt: a walk in a tree with two children per block.
fn prompt(random: &mut Random, length: u64) -> Vec<i64> {
    let mut node = 1_u64;
    let steps = (0..length).map(|_| {
        node = node * 2 + random.below(2);
        i64::try_from(node).unwrap()
    });
    steps.collect()
}

fn expected(model: &Model, names: &[i64]) -> Vec<String> {
    let mut shown: Vec<String> = model
        .iter()
        .map(|((engine, rank), held)| {
            let run = names
                .iter()
                .take_while(|name| held.contains_key(name))
                .count();
            (run, format!("{engine}/{rank}:{run}"))
        })
        .filter(|(run, _)| *run > 0)
        .map(|(_, text)| text)
        .collect();
    shown.sort();
    shown
}

fn step(random: &mut Random, index: &PrefixIndex, model: &mut Model) {
    let engine = format!("e{}", random.below(5));
    let rank = u32::try_from(random.below(2)).unwrap();
    let held = model.entry((engine.clone(), rank)).or_default();
    let tier = Tier::ALL[usize::try_from(random.below(4)).unwrap()];
    match random.below(100) {
        0..55 => {
            let names = prompt(random, 20);
            let from = usize::try_from(random.below(10)).unwrap();
            let parent = from.checked_sub(1).map(|at| names[at]);
            index.apply(&engine, rank, SIZE, &[on(tier, parent, &names[from..])]);
            for name in &names[from..] {
                *held.entry(*name).or_default() |= tier.bit();
            }
        }
        55..90 => {
            let names = prompt(random, 20);
            let from = usize::try_from(random.below(20)).unwrap();
            index.apply(
                &engine,
                rank,
                SIZE,
                &[removed(&names[from..], Medium::Known(tier))],
            );
            for name in &names[from..] {
                if let Some(tiers) = held.get_mut(name) {
                    *tiers &= !tier.bit();
                }
            }
            held.retain(|_, tiers| *tiers != 0);
        }
        90..94 => {
            index.apply(&engine, rank, SIZE, &[KvEvent::Cleared]);
            held.clear();
        }
        94..96 => {
            index.remove_engine(&engine);
            model.retain(|(other, _), _| *other != engine);
        }
        _ => {
            index.sweep(usize::try_from(random.below(100_000)).unwrap());
        }
    }
}

#[test]
fn random_histories_agree_with_plain_sets() {
    for seed in 0..4 {
        let mut random = Random(seed);
        let index = PrefixIndex::default();
        let mut model = Model::new();
        for at in 0..2000 {
            step(&mut random, &index, &mut model);
            let names = prompt(&mut random, 20);
            assert_eq!(
                holders(&index, &names),
                expected(&model, &names),
                "seed {seed}, step {at}"
            );
        }
        swept(&index);
        swept(&index);
        let blocks: BTreeSet<i64> = model
            .values()
            .flat_map(|held| held.keys().copied())
            .collect();
        let holdings: usize = model.values().map(BTreeMap::len).sum();
        let size = index.size();
        assert_eq!(size.blocks, blocks.len(), "seed {seed}");
        assert_eq!(size.holdings, holdings as u64, "seed {seed}");
    }
}

/// Every reader sees, of every engine, a depth that it had at some moment of the query: engines
/// that hold everything throughout are always found whole, whatever the others do.
#[test]
fn queries_beside_a_writer_see_what_is_there() {
    let index = PrefixIndex::default();
    let mut random = Random(7);
    let steady = prompt(&mut random, 40);
    index.apply("steady", 0, SIZE, &[stored(None, &steady)]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut queries = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let found: Vec<_> = index.lookup(&steady).holders().collect();
                        let whole = found.iter().find(|holder| &*holder.engine == "steady");
                        assert_eq!(whole.map(|holder| holder.blocks), Some(40));
                        assert!(found.iter().all(|holder| holder.blocks <= 40));
                        queries += 1;
                    }
                    queries
                })
            })
            .collect();
        let mut model = Model::new();
        for _ in 0..8_000 {
            step(&mut random, &index, &mut model);
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}
