//! The fast encoder: where it is used, that it is exact there, and what it remembers.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sgl_edge::tokenizer::{Backend, Tokenizer, Unfit};

use crate::fixtures::{DEMO, Dir, cases, demo_dir, text};

/// The Hugging Face crate on a `tokenizer.json`.
fn reference(json: &str) -> tokenizers::Tokenizer {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).expect("loads");
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).expect("unset");
    tokenizer
}

fn same(tokenizer: &Tokenizer, reference: &tokenizers::Tokenizer, text: &str) {
    for special in [false, true] {
        let right = reference.encode_fast(text, special).expect("encoded");
        for _ in 0..2 {
            let ids = tokenizer.encode_text(text, special).expect("encoded");
            assert_eq!(ids, right.get_ids(), "{text:?}");
        }
    }
}

#[test]
fn the_shipped_tokenizer_is_encoded_by_the_fast_library_with_equal_ids() {
    assert_eq!(DEMO.backend(), Backend::Fast);
    let json = std::fs::read_to_string(demo_dir().join("tokenizer.json")).expect("readable");
    let reference = reference(&json);
    let template = DEMO.template().expect("a template");
    for body in cases().into_values() {
        same(&DEMO, &reference, std::str::from_utf8(&body).expect("text"));
        if let Ok(chat) = template.render(&body) {
            same(&DEMO, &reference, &chat.text);
        }
    }
    for name in ["cases.jsonl", "golden-templates.jsonl"] {
        same(&DEMO, &reference, &text(name));
    }
}

/// A byte-level tokenizer over the 256 bytes with one merge and one added token.
fn letters(added: &Value, pre_tokenizer: &Value) -> String {
    let mut vocabulary = serde_json::Map::new();
    let mut hidden = 256..;
    for byte in 0..=255_u8 {
        let shown = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
        let stands_for = if shown {
            Some(u32::from(byte))
        } else {
            hidden.next()
        };
        let letter = stands_for.and_then(char::from_u32).expect("a character");
        vocabulary.insert(letter.to_string(), json!(byte));
    }
    vocabulary.insert("ab".to_owned(), json!(256));
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added], "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": byte_level(),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "byte_fallback": false, "vocab": vocabulary, "merges": [["a", "b"]]},
    })
    .to_string()
}

fn added(single_word: bool) -> Value {
    json!({"id": 257, "content": "cc", "single_word": single_word, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

#[test]
fn a_tokenizer_is_encoded_by_whoever_is_exact_for_it() {
    let table = [
        (
            "plain bytes",
            letters(&added(false), &byte_level()),
            Backend::Fast,
        ),
        (
            "an added token that matches whole words only",
            letters(&added(true), &byte_level()),
            Backend::Fast,
        ),
        (
            "a part that the fast library does not have",
            letters(
                &added(false),
                &json!({"type": "Metaspace", "replacement": "▁",
                "prepend_scheme": "always", "split": true}),
            ),
            Backend::Plain(Unfit::Unsupported),
        ),
    ];
    for (what, json, backend) in table {
        let tokenizer = Dir::with("backend", &[("tokenizer.json", &json)]).load();
        let tokenizer = tokenizer.expect("loads");
        tokenizer.settle();
        assert_eq!(tokenizer.backend(), backend, "{what}");
        let reference = reference(&json);
        for text in ["abc", "xccy", "cc", "x cc y", "ab cc\nab", "abab ccab"] {
            same(&tokenizer, &reference, text);
        }
    }
}

/// A file of the old form, whose model does not name its type.
#[test]
fn a_model_without_a_type_is_still_encoded_fast() {
    let json = letters(&added(false), &byte_level()).replace(r#""type":"BPE","#, "");
    let tokenizer = Dir::with("untyped", &[("tokenizer.json", &json)])
        .load()
        .expect("loads");
    tokenizer.settle();
    assert_eq!(tokenizer.backend(), Backend::Fast);
    same(&tokenizer, &reference(&json), "abc cc ab");
}

/// Follow-up turns of a tokenizer that the fast library does not take.
#[test]
fn the_slower_library_does_not_repeat_itself_either() {
    let mut token = added(false);
    token["content"] = json!("<|x|>");
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
    let json = letters(&token, &metaspace);
    let tokenizer = Dir::with("slow-pieces", &[("tokenizer.json", &json)]).load();
    let tokenizer = tokenizer.expect("loads");
    tokenizer.settle();
    assert_eq!(tokenizer.backend(), Backend::Plain(Unfit::Unsupported));
    let reference = reference(&json);
    let mut text = "ab".to_owned();
    for turn in 0..9 {
        let _ = write!(text, "<|x|> turn {turn} abab");
        same(&tokenizer, &reference, &text);
    }
    let stats = tokenizer.cache_stats();
    assert_eq!(stats.misses, 10, "{stats:?}");
}

fn conversation(seed: usize, turns: usize) -> Vec<u8> {
    let mut messages = Vec::new();
    for turn in 0..turns {
        let mut content = String::new();
        for word in 0..400 {
            let _ = write!(
                content,
                "{} ",
                (seed * 7919 + turn * 104_729 + word) % 99_991
            );
        }
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": content}));
    }
    json!({"messages": messages}).to_string().into_bytes()
}

#[test]
fn a_following_turn_encodes_only_what_is_new() {
    let tokenizer = Tokenizer::load(&demo_dir()).expect("loads");
    tokenizer.settle();
    tokenizer.encode_chat(&conversation(1, 9)).expect("ids");
    let before = tokenizer.cache_stats();
    let next = tokenizer.encode_chat(&conversation(1, 11)).expect("ids");
    let after = tokenizer.cache_stats();
    let (hit, missed) = (
        after.hit_bytes - before.hit_bytes,
        after.miss_bytes - before.miss_bytes,
    );
    assert!(after.hits - before.hits >= 9, "{before:?} {after:?}");
    assert!(hit > 4 * missed, "{hit} remembered, {missed} encoded");
    let json = std::fs::read_to_string(demo_dir().join("tokenizer.json")).expect("readable");
    let chat = tokenizer
        .template()
        .expect("a template")
        .render(&conversation(1, 11));
    let right = reference(&json).encode_fast(chat.expect("rendered").text, false);
    assert_eq!(next.ids, right.expect("encoded").get_ids());
}

/// Conversations that never repeat, for longer than the memory is large.
#[test]
fn what_is_remembered_stays_within_its_bound() {
    let tokenizer = Tokenizer::load(&demo_dir()).expect("loads");
    tokenizer.settle();
    let base = text("cases.jsonl");
    let base = &base[..base.floor_char_boundary(6 << 10)];
    let mut most = 0;
    for seed in 0..1_100 {
        let turns = (0..11).map(|turn| format!("<|im_start|>{seed} {turn} {base}<|im_end|>"));
        tokenizer
            .encode_text(&turns.collect::<String>(), false)
            .expect("ids");
        most = most.max(tokenizer.cache_stats().held_bytes);
    }
    let stats = tokenizer.cache_stats();
    assert!(
        stats.miss_bytes > 64 << 20,
        "the trace is larger than the bound: {stats:?}"
    );
    assert!(most <= 64 << 20, "{most}");
    assert!(most > 16 << 20, "the bound is used: {most}");
}
