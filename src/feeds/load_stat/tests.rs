use serde_json::{Value, json};

use super::*;

/// engine-wire §2.2: `["LoadStat",2,3,4096,100000,0,500,6000,64,12345,67890]`.
const GOLDEN: &str = "9ba84c6f6164537461740203cd1000ce000186a000cd01f4cd177040cd3039ce00010932";

fn hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// An array of this header, the tag, and these raw elements.
fn frame(header: u8, elements: &[&[u8]]) -> Vec<u8> {
    [&[header][..], b"\xa8LoadStat", &elements.concat()].concat()
}

fn golden() -> Report {
    Report {
        running_requests: 2,
        waiting_requests: 3,
        used_tokens: 4096,
        max_total_tokens: 100_000,
        native: Some(NativeReport {
            waiting_uncached_tokens: 500,
            total_tokens: 6000,
            max_running_requests: 64,
            prefilled_tokens: 12_345,
            prefill_busy_us: 67_890,
        }),
    }
}

#[test]
fn the_golden_report_is_read() {
    assert_eq!(load_stat(&hex(GOLDEN)), Ok(golden()));
}

#[test]
fn a_report_without_extension_is_basic_with_or_without_its_rank() {
    let basic = Report {
        native: None,
        ..golden()
    };
    let counts: [&[u8]; 4] = [&[2], &[3], &[0xcd, 0x10, 0], &[0xce, 0, 1, 0x86, 0xa0]];
    assert_eq!(load_stat(&frame(0x95, &counts)), Ok(basic));
    for rank in [&[0_u8][..], &[0xc0], &[0xff]] {
        let with_rank = [&counts[..], &[rank]].concat();
        assert_eq!(load_stat(&frame(0x96, &with_rank)), Ok(basic));
    }
}

#[test]
fn half_an_extension_is_no_report_and_more_than_all_of_it_is_one() {
    let whole = hex(GOLDEN);
    for length in 7..=10_u8 {
        let mut cut = whole.clone();
        cut[0] = 0x90 | length;
        assert_eq!(load_stat(&cut), Err(Malformed::Extension), "{length}");
    }
    let mut longer = whole;
    longer[0] = 0x9d;
    longer.extend([0xc0, 0xa1, b'x']);
    assert_eq!(load_stat(&longer), Ok(golden()));
}

#[test]
fn counts_are_unsigned_integers_of_64_bits() {
    let most = [&[0xcf][..], &[0xff; 8]].concat();
    let report = load_stat(&frame(0x95, &[&most, &[0], &[0], &[0]])).unwrap();
    assert_eq!(report.running_requests, u64::MAX);
    let negative: &[u8] = &[0xff];
    let float: &[u8] = &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0];
    let signed = [&[0xd3][..], &[0xff; 8]].concat();
    for bad in [
        negative,
        float,
        &signed,
        b"\xa11",
        &[0xc0],
        &[0xc3],
        &[0x91, 1],
    ] {
        for place in 0..4 {
            let mut counts: [&[u8]; 4] = [&[1]; 4];
            counts[place] = bad;
            assert_eq!(
                load_stat(&frame(0x95, &counts)),
                Err(Malformed::Count),
                "{bad:?}"
            );
        }
    }
    let bad_rank = frame(0x96, &[&[1], &[1], &[1], &[1], b"\xa11"]);
    assert_eq!(load_stat(&bad_rank), Err(Malformed::Rank));
}

#[test]
fn anything_else_is_malformed_and_nothing_panics() {
    let rows: [&[u8]; 8] = [
        b"",
        b"\xc0",
        b"\x81\xa1a\x01",
        b"\x95\xa8LoadStaT\x01\x01\x01\x01",
        b"\x94\xa8LoadStat\x01\x01\x01",
        b"\x95\x01\x01\x01\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\x95\xdb\xff\xff\xff\xff",
    ];
    for row in rows {
        assert_eq!(load_stat(row), Err(Malformed::Shape), "{row:?}");
    }
    let whole = hex(GOLDEN);
    for end in 0..whole.len() {
        assert!(load_stat(&whole[..end]).is_err(), "cut at {end}");
    }
    for at in 0..whole.len() {
        for byte in 0..=255 {
            let mut changed = whole.clone();
            changed[at] = byte;
            let _ = load_stat(&changed);
        }
    }
}

/// What real publishers sent (`tests/fixtures/loads`), against what their schedulers said.
#[test]
fn every_recorded_report_is_read_as_its_scheduler_meant_it() {
    let mut seen = 0;
    for line in include_str!("../../../tests/fixtures/loads/recorded.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let report = load_stat(&hex(line["payload"].as_str().unwrap())).unwrap();
        let row: Row = serde_json::from_value(line["snapshot"].clone()).unwrap();
        assert_eq!(report, row.report().unwrap());
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

fn row(rank: u64) -> Value {
    json!({
        "dp_rank": rank, "num_running_reqs": 2, "num_waiting_reqs": 3, "num_used_tokens": 4096,
        "max_total_num_tokens": 100_000, "num_waiting_uncached_tokens": 500,
        "num_total_tokens": 6000, "max_running_requests": 64,
        "total_prefill_uncached_tokens": 12_345, "total_prefill_busy_us": 67_890,
        "token_usage": 0.5, "decode_moments": null,
    })
}

fn answer(rows: &[Value]) -> Result<Vec<(u32, Report)>, Malformed> {
    let body = json!({"version": "x", "loads": rows});
    loads_answer(body.to_string().as_bytes())
}

#[test]
fn an_http_answer_has_one_report_per_rank() {
    let found = answer(&[row(0), row(1)]).unwrap();
    assert_eq!(found, [(0, golden()), (1, golden())]);
    assert_eq!(answer(&[]), Ok(Vec::new()));
}

#[test]
fn one_bad_row_spoils_an_http_answer() {
    let with = |key: &str, value: Value| {
        let mut bad = row(1);
        bad[key] = value;
        answer(&[row(0), bad])
    };
    assert_eq!(answer(&[row(0), row(0)]), Err(Malformed::Rank));
    for value in [json!(-1), json!(1.5), json!("1"), json!(null)] {
        assert_eq!(with("num_running_reqs", value), Err(Malformed::Shape));
    }
    assert_eq!(with("dp_rank", json!(-1)), Err(Malformed::Shape));
    assert_eq!(
        with("num_total_tokens", json!(null)),
        Err(Malformed::Extension)
    );
    let mut short = row(1);
    short.as_object_mut().unwrap().remove("num_used_tokens");
    assert_eq!(answer(&[short]), Err(Malformed::Shape));
    for body in ["", "[]", "{}", "{\"loads\": 1}", "<html>"] {
        assert_eq!(
            loads_answer(body.as_bytes()),
            Err(Malformed::Shape),
            "{body}"
        );
    }
}
