//! Bare strings: the encoder alone, without a template.

use crate::fixtures::{DEMO, lines, same_ids};

#[test]
fn every_string_gives_the_published_ids() {
    let texts = lines("encode-texts.jsonl");
    let mut compared = 0;
    for line in lines("golden-encode-qwen3.jsonl").iter().skip(1) {
        let id = line["id"].as_u64().expect("number") as usize;
        let text = texts[id]["text"].as_str().expect("text");
        let plain = DEMO.encode_text(text, false).expect("encoded");
        assert!(same_ids(&plain, &line["plain"]), "{id}: {text:?}");
        let special = DEMO.encode_text(text, true).expect("encoded");
        let golden = line.get("with_special").unwrap_or(&line["plain"]);
        assert!(
            same_ids(&special, golden),
            "{id} with special tokens: {text:?}"
        );
        compared += 1;
    }
    assert_eq!(compared, texts.len());
}

#[test]
fn decoding_gives_back_what_was_encoded() {
    let text = "naïve <b>&中</b> 👩‍👩‍👧\n\tx";
    let ids = DEMO.encode_text(text, false).expect("encoded");
    assert_eq!(DEMO.decode(&ids, false).expect("decoded"), text);
}

#[test]
fn decoding_drops_special_tokens_on_request_and_unknown_ids_always() {
    let mut ids = DEMO
        .encode_text("<|im_start|>user", false)
        .expect("encoded");
    ids.push(u32::MAX);
    assert_eq!(
        DEMO.decode(&ids, false).expect("decoded"),
        "<|im_start|>user"
    );
    assert_eq!(DEMO.decode(&ids, true).expect("decoded"), "user");
}
