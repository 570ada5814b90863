//! Streams of the real publisher of five releases, decoded from their bytes and replayed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::kv::wire::decode;
use crate::kv::{BlockFormat, BlockUnit, block_hashes};

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv_events");
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .collect();
    files.sort();
    files
}

/// One publisher's stream.
struct Replay {
    index: PrefixIndex,
    rank: u32,
    size: u32,
    unit: BlockUnit,
    /// Published in the other event format.
    renamed: bool,
    next: u64,
}

impl Replay {
    fn of(header: &Value) -> Self {
        let number = |key: &str| u32::try_from(header[key].as_u64().unwrap()).unwrap();
        let bigram = header["stream"].as_str().unwrap().starts_with("bigram");
        Self {
            index: PrefixIndex::default(),
            rank: number("dp_rank"),
            size: number("page_size"),
            unit: if bigram {
                BlockUnit::Bigram
            } else {
                BlockUnit::Unigram
            },
            renamed: header["format"] == "dynamo",
            next: 0,
        }
    }

    fn frame(&mut self, line: &Value) {
        let frames: Vec<_> = line["frames"].as_array().unwrap().iter().collect();
        let sequence = bytes(frames[1].as_str().unwrap());
        assert_eq!(sequence, self.next.to_be_bytes());
        self.next += 1;
        let payload = bytes(frames[2].as_str().unwrap());
        let batch = decode(&payload).unwrap();
        let meaning = &line["batch"];
        assert_eq!(Some(batch.timestamp), meaning["ts"].as_f64());
        assert_eq!(batch.rank, meaning["attn_dp_rank"].as_i64());
        assert_eq!(
            batch.events.len(),
            meaning["events"].as_array().unwrap().len()
        );
        for (event, meaning) in batch
            .events
            .iter()
            .zip(meaning["events"].as_array().unwrap())
        {
            same(event, meaning);
        }
        self.index.apply("e", self.rank, self.size, &batch.events);
    }

    /// Live names of one tier.
    fn state(&self, tier: Tier) -> (usize, String) {
        let mut names = self.index.names_on("e", self.rank, tier);
        names.sort_unstable();
        let joined: Vec<String> = names.iter().map(ToString::to_string).collect();
        let digest = Sha256::digest(joined.join("\n"));
        let sum = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        (names.len(), sum)
    }
}

fn same(event: &KvEvent, meaning: &Value) {
    let names = |hashes: &[i64]| {
        let wanted = meaning["block_hashes"].as_array().unwrap();
        let wanted: Vec<_> = wanted.iter().map(|hash| hash.as_i64().unwrap()).collect();
        assert_eq!(hashes, wanted);
    };
    let wanted = meaning["medium"]
        .as_str()
        .map_or(Medium::Absent, Medium::parse);
    match (event, meaning["type"].as_str().unwrap()) {
        (
            KvEvent::Stored {
                hashes,
                parent,
                block_size,
                medium,
            },
            "BlockStored",
        ) => {
            names(hashes);
            assert_eq!(*parent, meaning["parent_block_hash"].as_i64());
            assert_eq!(Some(u64::from(*block_size)), meaning["block_size"].as_u64());
            assert_eq!(*medium, wanted);
        }
        (KvEvent::Removed { hashes, medium }, "BlockRemoved") => {
            names(hashes);
            assert_eq!(*medium, wanted);
        }
        (KvEvent::Cleared, "AllBlocksCleared") => {}
        (event, class) => panic!("{event:?} is not {class}"),
    }
}

/// What the real tree held of a prompt on the device, tokens.
fn matched(replay: &Replay, line: &Value) {
    // What an adapter's blocks are called, nobody but the engine knows; nor is it announced that a
    // publisher uses the other event format, which renames salted blocks.
    if line["extra_key"].is_string() || replay.renamed && line["cache_salt"].is_string() {
        return;
    }
    let ids: Vec<u32> = line["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect();
    let format = BlockFormat::new(replay.size, replay.unit).unwrap();
    let names = block_hashes(&ids, format, line["cache_salt"].as_str());
    let held = replay.index.names_on("e", replay.rank, Tier::Device);
    let whole = ids.len() / replay.size as usize;
    let blocks = names[..whole]
        .iter()
        .take_while(|name| held.contains(name))
        .count();
    let found: Vec<_> = replay.index.lookup(&names[..whole]).holders().collect();
    assert!(found.len() <= 1);
    let depth = found.first().map_or(0, |holder| holder.blocks as usize);
    // On every tier at least as deep as on the device alone.
    assert!((blocks..=whole).contains(&depth), "{depth} of {whole}");
    let tokens = blocks * replay.size as usize;
    assert_eq!(Some(tokens as u64), line["matched"].as_u64());
}

#[test]
fn recorded_streams_replay_to_exactly_the_state_they_name() {
    let (mut frames, mut matches, mut states) = (0, 0, 0);
    for file in files() {
        let mut replay = None;
        for line in fs::read_to_string(&file).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            if line["kind"] == "header" {
                replay = Some(Replay::of(&line));
                continue;
            }
            let replay = replay.as_mut().unwrap();
            match line["kind"].as_str().unwrap() {
                "frame" => {
                    replay.frame(&line);
                    frames += 1;
                }
                "match" => {
                    matched(replay, &line);
                    matches += 1;
                }
                "state" => {
                    for tier in Tier::ALL {
                        let wanted = &line["alive"][tier.as_str()];
                        let blocks = wanted["blocks"].as_u64().unwrap_or(0);
                        let (count, sum) = replay.state(tier);
                        assert_eq!(count as u64, blocks, "{file:?} {tier:?}");
                        if let Some(wanted) = wanted["sha256"].as_str() {
                            assert_eq!(sum, wanted, "{file:?} {tier:?}");
                        }
                    }
                    states += 1;
                }
                "encoded" => {
                    let batch = decode(&bytes(line["payload"].as_str().unwrap())).unwrap();
                    assert_eq!(batch.rank, line["batch"]["attn_dp_rank"].as_i64());
                }
                "replay" => {}
                other => panic!("a line of kind {other}"),
            }
        }
    }
    assert_eq!((frames, matches, states), (758, 279, 28));
}
