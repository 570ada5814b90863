use super::*;
use serde_json::Value;

const VECTORS: &str = include_str!("../../../tests/fixtures/hashes/hashes-0.5.23.jsonl");

fn format(size: u32, unit: BlockUnit) -> BlockFormat {
    BlockFormat::new(size, unit).unwrap()
}

/// First `count` values of splitmix64 modulo `vocab`, or a list of ids and such recipes.
fn tokens(spec: &Value) -> Vec<u32> {
    match spec {
        Value::Array(list) => list.iter().flat_map(tokens).collect(),
        Value::Number(id) => vec![u32::try_from(id.as_u64().unwrap()).unwrap()],
        recipe => {
            let mut state = recipe["seed"].as_u64().unwrap();
            let vocab = recipe["vocab"].as_u64().unwrap_or(151_936);
            let next = || {
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                u32::try_from((z ^ (z >> 31)) % vocab).unwrap()
            };
            let count = usize::try_from(recipe["count"].as_u64().unwrap()).unwrap();
            std::iter::repeat_with(next).take(count).collect()
        }
    }
}

fn integers(list: &Value) -> Vec<i64> {
    let list = list.as_array().unwrap();
    list.iter().map(|name| name.as_i64().unwrap()).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// Names of the whole blocks of one vector.
fn names(row: &Value, ids: &[u32], size: usize) -> Vec<i64> {
    let mut chain = Chain::new(row["cache_salt"].as_str());
    if let Some(prior) = row["prior_hex"].as_str() {
        chain.prior = Some(bytes(prior).try_into().unwrap());
    }
    let whole = ids.chunks_exact(size);
    whole
        .map(|block| chain.next(block.iter().copied()))
        .collect()
}

#[test]
fn every_vector_of_the_engine_that_a_router_can_know_comes_out() {
    let mut checked = 0;
    for line in VECTORS.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let id = row["id"].as_str().unwrap_or_default();
        // Ids above 32 bits, adapters and the other event format: nothing a request can ask for.
        let adapter = row["adapter_known"] == true || row["event_format"] == "dynamo";
        if row["header"] == true || id.starts_with("wide-") || adapter {
            continue;
        }
        let ids = tokens(&row["tokens"]);
        let size = u32::try_from(row["page_size"].as_u64().unwrap()).unwrap();
        let got = names(&row, &ids, usize::try_from(size).unwrap());
        if let Some(first) = row.get("int64_first") {
            assert_eq!(got[..3], integers(first), "{id}");
            assert_eq!(got[got.len() - 3..], integers(&row["int64_last"]), "{id}");
            let joined: Vec<String> = got.iter().map(ToString::to_string).collect();
            let sum: String = Sha256::digest(joined.join("\n"))
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(sum, row["int64_sha256"].as_str().unwrap(), "{id}");
        } else {
            assert_eq!(got, integers(&row["int64"]), "{id}");
        }
        if row.get("prior_hex").is_none() {
            let format = format(size, BlockUnit::Unigram);
            let all = block_hashes(&ids, format, row["cache_salt"].as_str());
            assert_eq!(all[..got.len()], got, "{id}");
            assert_eq!(all.len(), block_count(ids.len(), format), "{id}");
        }
        checked += 1;
    }
    assert_eq!(checked, 70);
}

type Row = (
    Vec<u32>,
    u32,
    BlockUnit,
    Option<&'static str>,
    &'static [i64],
);

/// Rows of engine-wire §1.8.
#[test]
fn the_worked_values_come_out_for_single_tokens_pairs_and_salts() {
    let one_to = |last: u32| (1..=last).collect::<Vec<u32>>();
    let tens = |last: u32| (1..=last).map(|n| n * 10).collect::<Vec<u32>>();
    let rows: [Row; 9] = [
        (
            one_to(4),
            4,
            BlockUnit::Unigram,
            None,
            &[-3_488_128_144_981_237_669],
        ),
        (
            one_to(8),
            4,
            BlockUnit::Unigram,
            None,
            &[-3_488_128_144_981_237_669, 5_674_439_469_042_975_057],
        ),
        (
            one_to(5),
            4,
            BlockUnit::Unigram,
            None,
            &[-3_488_128_144_981_237_669, -3_787_494_577_174_227_566],
        ),
        (
            tens(4),
            4,
            BlockUnit::Bigram,
            None,
            &[-2_735_951_481_331_064_195],
        ),
        (
            tens(5),
            2,
            BlockUnit::Bigram,
            None,
            &[-8_847_804_484_166_691_499, 4_989_791_362_144_317_498],
        ),
        (
            one_to(6),
            4,
            BlockUnit::Bigram,
            None,
            &[-638_950_109_823_820_341, 3_604_587_133_525_381_017],
        ),
        (
            one_to(8),
            4,
            BlockUnit::Unigram,
            Some("tenant-a"),
            &[3_718_046_898_735_569_995, 3_308_615_664_605_479_373],
        ),
        (vec![7], 4, BlockUnit::Bigram, None, &[]),
        (vec![], 4, BlockUnit::Unigram, None, &[]),
    ];
    for (ids, size, unit, salt, expected) in rows {
        let format = format(size, unit);
        assert_eq!(block_hashes(&ids, format, salt), expected, "{ids:?}");
        assert_eq!(block_count(ids.len(), format), expected.len(), "{ids:?}");
    }
}

#[test]
fn an_empty_salt_is_no_salt_and_a_size_of_zero_is_no_format() {
    let format = format(4, BlockUnit::Unigram);
    let ids = [1, 2, 3, 4];
    assert_eq!(
        block_hashes(&ids, format, Some("")),
        block_hashes(&ids, format, None)
    );
    assert_eq!(BlockFormat::new(0, BlockUnit::Bigram), None);
}

#[test]
fn a_name_is_the_top_of_its_digest() {
    let digest: Digest32 = Sha256::digest(b"").into();
    assert_eq!(name(&digest), -2_039_914_840_885_289_964);
}
