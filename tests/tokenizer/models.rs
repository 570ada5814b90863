//! Golden prompts and strings of every tokenizer at hand: the shipped one always, the others when
//! `tests/fixtures/tokenizer/fetch.sh` has fetched them.

use std::path::{Path, PathBuf};

use chrono::NaiveDateTime;
use sgl_edge::tokenizer::{Backend, FallReason, TokenSource, Tokenizer};

use crate::fixtures::{assert_exactly, cases, golden_now, lines, name, same_ids, same_text};

/// One tokenizer and what is known about it.
struct Model {
    name: &'static str,
    /// Whether it has a chat template, and with it golden prompts.
    chats: bool,
    /// Cases whose ids differ from the engine's, with the reason. None at present.
    different: &'static [&'static str],
    /// Cases that the engine refuses, and how the router leaves them.
    refused: &'static [(&'static str, FallReason)],
}

/// The arguments of a tool call are not JSON.
const REFUSED: (&str, FallReason) = ("toolcall-019", FallReason::Shape);

/// Cases in which the engine's two released front ends differ from each other, so that neither can be
/// "the" prompt; the goldens, and the router, follow the Python one. The Rust one joins content parts
/// with a newline and refuses images (`parts`), puts reasoning back into assistant turns (`reason`),
/// keeps list content of tool messages and passes invalid arguments on (`toolcall`), and was run
/// without a tool-call parser for deepseek_v3, where forced tools fail (`tools`).
const TWO_ANSWERS: [(&str, &[&str]); 3] = [
    (
        "qwen3",
        &[
            "toolcall-013",
            "toolcall-020",
            "parts-050",
            "parts-052",
            "parts-053",
        ],
    ),
    (
        "llama3_1",
        &[
            "toolcall-019",
            "toolcall-020",
            "parts-050",
            "parts-052",
            "parts-053",
            "reason-064",
        ],
    ),
    (
        "deepseek_v3",
        &[
            "toolcall-013",
            "tools-017",
            "tools-018",
            "toolcall-020",
            "parts-050",
            "parts-052",
            "parts-053",
            "reason-064",
        ],
    ),
];

#[test]
fn both_front_ends_agree_with_the_goldens_but_for_the_named_cases() {
    for (model, two_answers) in TWO_ANSWERS {
        let golden = lines(&format!("golden-prompts-{model}.jsonl"));
        let tokens = |id: &str| {
            let line = golden
                .iter()
                .find(|line| line["id"] == id)
                .expect("a golden");
            line["engine"]["tokens"].clone()
        };
        let front = lines(&format!("front-{model}.jsonl"));
        let different = front[1..].iter().filter(|line| {
            let theirs = &line["tokens"];
            let ours = tokens(&name(line, "id"));
            (theirs["count"].clone(), theirs["sha256"].clone())
                != (ours["count"].clone(), ours["sha256"].clone())
        });
        let different: Vec<_> = different.map(|line| name(line, "id")).collect();
        assert_exactly(&different, two_answers, model);
    }
}

const MODELS: [Model; 3] = [
    Model {
        name: "llama3_1",
        chats: true,
        different: &[],
        refused: &[REFUSED],
    },
    Model {
        name: "deepseek_v3",
        chats: true,
        different: &[],
        refused: &[REFUSED],
    },
    Model {
        name: "llama2",
        chats: false,
        different: &[],
        refused: &[],
    },
];

fn folder() -> PathBuf {
    std::env::var_os("SGL_EDGE_TOKENIZERS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tokenizers"),
        PathBuf::from,
    )
}

/// The models whose files are there.
fn at_hand() -> Vec<(&'static Model, Tokenizer)> {
    let clock: fn() -> NaiveDateTime = golden_now;
    let load = |model: &'static Model| {
        let path = folder().join(model.name);
        if !path.is_dir() {
            println!("{}: not fetched, not compared", model.name);
            return None;
        }
        let tokenizer = Tokenizer::load(&path).expect("a fetched tokenizer loads");
        tokenizer.settle();
        Some((model, tokenizer.with_clock(clock)))
    };
    MODELS.iter().filter_map(load).collect()
}

/// One test, because a tokenizer takes seconds to load.
#[test]
fn every_fetched_tokenizer_gives_the_engines_ids() {
    let bodies = cases();
    for (model, tokenizer) in at_hand() {
        assert_eq!(tokenizer.backend(), Backend::Fast, "{}", model.name);
        strings(model, &tokenizer);
        if model.chats {
            prompts(model, &tokenizer, &bodies);
        }
    }
}

fn prompts(
    model: &Model,
    tokenizer: &Tokenizer,
    bodies: &std::collections::BTreeMap<String, Vec<u8>>,
) {
    let template = tokenizer.template().expect("a chat template");
    let (mut different, mut refused) = (Vec::new(), Vec::new());
    for line in &lines(&format!("golden-prompts-{}.jsonl", model.name))[1..] {
        let id = name(line, "id");
        let engine = &line["engine"];
        let prompt = tokenizer.encode_chat(&bodies[&id]).expect("ids");
        if engine["error"].is_string() {
            assert_eq!(prompt.source, TokenSource::Text, "{}: {id}", model.name);
            refused.push((id, prompt.fell.expect("a reason")));
            continue;
        }
        let text = template.render(&bodies[&id]).ok().map(|chat| chat.text);
        let equal = prompt.source == TokenSource::Chat
            && text.is_some_and(|text| same_text(&text, engine))
            && same_ids(&prompt.ids, &engine["tokens"]);
        if !equal {
            different.push(id);
        }
    }
    assert_exactly(&different, model.different, model.name);
    let refused: Vec<_> = refused
        .iter()
        .map(|(id, why)| (id.as_str(), *why))
        .collect();
    assert_eq!(refused, model.refused, "{}", model.name);
}

fn strings(model: &Model, tokenizer: &Tokenizer) {
    let texts = lines("encode-texts.jsonl");
    for line in &lines(&format!("golden-encode-{}.jsonl", model.name))[1..] {
        let id = line["id"].as_u64().expect("number") as usize;
        let text = texts[id]["text"].as_str().expect("text");
        let plain = tokenizer.encode_text(text, false).expect("encoded");
        assert!(same_ids(&plain, &line["plain"]), "{}: {text:?}", model.name);
        let special = tokenizer.encode_text(text, true).expect("encoded");
        let golden = line.get("with_special").unwrap_or(&line["plain"]);
        assert!(same_ids(&special, golden), "{}: {text:?}", model.name);
    }
}
