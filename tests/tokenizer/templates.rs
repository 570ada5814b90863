//! 35 published chat templates against what the engine renders with them.

use std::collections::BTreeMap;

use serde_json::Value;
use sgl_edge::tokenizer::ChatTemplate;

use crate::fixtures::{assert_exactly, cases, golden_now, lines, name, same_text, text};

/// `template/case` pairs that do not give the engine's text, or the engine's refusal.
const DIFFERENT_FROM_ENGINE: &[&str] = &[];

#[test]
fn every_template_renders_what_the_engine_renders() {
    let bodies = cases();
    let golden = lines("golden-templates.jsonl");
    let config = golden[0]["special_tokens"].as_object().expect("header");
    assert_eq!(golden[0]["now"], "2025-07-26T12:34:56");
    let mut different = Vec::new();
    let mut compared = 0;
    for line in &golden[1..] {
        let template_name = name(line, "template");
        let source = text(&format!("templates/{template_name}.jinja"));
        let template = ChatTemplate::try_new(&source, config)
            .unwrap_or_else(|error| panic!("{template_name}: {error}"))
            .with_clock(golden_now);
        let results = line["results"].as_object().expect("results");
        compared += results.len();
        different.extend(
            results
                .iter()
                .filter(|(id, result)| !renders_as(&template, &bodies, id, result))
                .map(|(id, _)| format!("{template_name}/{id}")),
        );
    }
    assert_eq!(compared, 35 * 46);
    assert_exactly(&different, DIFFERENT_FROM_ENGINE, "rendered templates");
}

fn renders_as(
    template: &ChatTemplate,
    bodies: &BTreeMap<String, Vec<u8>>,
    id: &str,
    result: &Value,
) -> bool {
    let engine = result.get("both").unwrap_or(&result["engine"]);
    match template.render(&bodies[id]) {
        Ok(chat) => engine["error"].is_null() && same_text(&chat.text, engine),
        Err(_) => engine["error"].is_string(),
    }
}

#[test]
fn content_format_is_the_engines_own_detection() {
    for line in &lines("golden-templates.jsonl")[1..] {
        let template_name = name(line, "template");
        let source = text(&format!("templates/{template_name}.jinja"));
        let template = ChatTemplate::try_new(&source, &serde_json::Map::new()).expect("compiles");
        let format = template.content_format().expect("has a template").label();
        assert_eq!(line["content_format"], format, "{template_name}");
    }
}
