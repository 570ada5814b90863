//! Golden prompts of the engine (sglang 0.5.23) for the shipped tokenizer.

use sgl_edge::tokenizer::{FallReason, TokenSource};

use crate::fixtures::{DEMO, assert_exactly, cases, lines, name, same_ids, same_text};

/// Cases whose ids differ from the engine's, with the reason. None at present.
const DIFFERENT_FROM_ENGINE: &[&str] = &[];

/// The case the engine answers with 400: the arguments of a tool call are not JSON.
const REFUSED_BY_ENGINE: &[(&str, FallReason)] = &[("toolcall-019", FallReason::Shape)];

#[test]
fn every_case_gives_the_engines_token_ids() {
    let bodies = cases();
    let golden = lines("golden-prompts-qwen3.jsonl");
    let mut different = Vec::new();
    let mut compared = 0;
    for line in golden
        .iter()
        .filter(|line| line["engine"]["tokens"].is_object())
    {
        let id = name(line, "id");
        let prompt = DEMO.encode_chat(&bodies[&id]).expect("ids");
        compared += 1;
        let equal = prompt.source == TokenSource::Chat
            && prompt.fell.is_none()
            && same_ids(&prompt.ids, &line["engine"]["tokens"]);
        if !equal {
            different.push(id);
        }
    }
    assert_eq!(compared + REFUSED_BY_ENGINE.len(), bodies.len());
    assert_exactly(&different, DIFFERENT_FROM_ENGINE, "token ids");
}

#[test]
fn every_case_gives_the_engines_prompt_text() {
    let template = DEMO
        .template()
        .expect("the shipped tokenizer has a template");
    let bodies = cases();
    for line in lines("golden-prompts-qwen3.jsonl") {
        let engine = &line["engine"];
        if !engine["tokens"].is_object() {
            continue;
        }
        let id = name(&line, "id");
        let chat = template.render(&bodies[&id]).expect("rendered");
        assert!(same_text(&chat.text, engine), "{id}: {}", chat.text);
        let prefix = engine["assistant_prefix"].as_str();
        assert_eq!(chat.assistant_prefix.as_deref(), prefix, "{id}");
    }
}

#[test]
fn a_case_the_engine_refuses_falls_to_raw_text() {
    let bodies = cases();
    let golden = lines("golden-prompts-qwen3.jsonl");
    let refused = golden
        .iter()
        .filter(|line| line["engine"]["error"].is_string());
    let refused: Vec<_> = refused.map(|line| name(line, "id")).collect();
    let listed: Vec<_> = REFUSED_BY_ENGINE.iter().map(|(id, _)| *id).collect();
    assert_eq!(refused, listed);
    for (id, reason) in REFUSED_BY_ENGINE {
        let prompt = DEMO.encode_chat(&bodies[*id]).expect("raw text has ids");
        assert_eq!(prompt.source, TokenSource::Text, "{id}");
        assert_eq!(prompt.fell, Some(*reason), "{id}");
    }
}
