//! Bodies and conversations that try to break things (L54): a fall with a reason, never a failure.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, json};
use sgl_edge::tokenizer::{ChatTemplate, FallReason, RenderedChat};

use crate::fixtures::{DEMO, text};

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::try_new(source, &Map::new()).expect("compiles")
}

fn render(source: &str, content: &str) -> Result<RenderedChat, FallReason> {
    let body = json!({"messages": [{"role": "user", "content": content}]});
    template(source).render(body.to_string().as_bytes())
}

#[test]
fn bodies_that_are_no_object_give_nothing() {
    let deep = format!(r#"{{"messages":{}}}"#, nested(10_000));
    let bodies: [&[u8]; 10] = [
        b"",
        b"[]",
        b"null",
        b"3",
        b"\"x\"",
        br#"{"messages":[{"role":"user","content":"hi"}"#,
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
        br#"{"messages":[]} x"#,
        br#"{"messages":[{"role":"user","content":"\ud800"}]}"#,
        deep.as_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
        assert_eq!(
            DEMO.try_encode_chat(body),
            Err(FallReason::NotAnObject),
            "{shown}"
        );
    }
}

#[test]
fn odd_types_fall_with_a_reason() {
    let user = r#""messages":[{"role":"user","content":"hi"}]"#;
    let table = [
        (
            r#""messages":"hi","text":"hi""#.to_owned(),
            FallReason::NoMessages,
        ),
        (
            r#""messages":{"role":"user"},"text":"hi""#.to_owned(),
            FallReason::NoMessages,
        ),
        (
            r#""messages":[null],"text":"hi""#.to_owned(),
            FallReason::Shape,
        ),
        (
            r#""messages":[{"role":7}],"text":"hi""#.to_owned(),
            FallReason::Shape,
        ),
        (
            r#""messages":[{"role":"user","content":7}],"text":"hi""#.to_owned(),
            FallReason::Shape,
        ),
        (
            r#""messages":[{"role":"user","content":["x"]}],"text":"hi""#.to_owned(),
            FallReason::Shape,
        ),
        (
            r#""messages":[{"role":"user","content":[{"type":"text"}]}],"text":"hi""#.to_owned(),
            FallReason::Shape,
        ),
        (
            r#""messages":[{"role":"assistant","tool_calls":7},{"role":"user","content":"hi"}]"#
                .to_owned(),
            FallReason::Shape,
        ),
        (format!(r#"{user},"tools":"hammer""#), FallReason::Shape),
        (
            format!(r#"{user},"tools":[{{"function":{{}}}}]"#),
            FallReason::Shape,
        ),
        (
            format!(r#"{user},"chat_template_kwargs":[1]"#),
            FallReason::Shape,
        ),
        (
            format!(r#"{user},"chat_template_kwargs":{{"messages":[]}}"#),
            FallReason::Shape,
        ),
        (
            format!(r#"{user},"continue_final_message":"yes""#),
            FallReason::Shape,
        ),
        (format!(r#"{user},"reasoning_effort":3"#), FallReason::Shape),
        (
            format!(r#"{user},"chat_template":"{{{{ 1 }}}}""#),
            FallReason::CallerTemplate,
        ),
        (
            format!(r#"{user},"chat_template_kwargs":{{"chat_template":"x"}}"#),
            FallReason::CallerTemplate,
        ),
    ];
    for (fields, reason) in table {
        let prompt = DEMO
            .encode_chat(format!("{{{fields}}}").as_bytes())
            .expect("raw text");
        assert_eq!(prompt.fell, Some(reason), "{fields}");
        assert_eq!(
            prompt.ids,
            DEMO.encode_text("hi", true).expect("ids"),
            "{fields}"
        );
    }
}

#[test]
fn deep_tool_arguments_are_refused_by_their_own_parse() {
    let call = json!({"type": "function", "function": {"name": "f", "arguments": nested(10_000)}});
    let body = json!({"messages": [
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "user", "content": "hi"},
    ]});
    let prompt = DEMO
        .encode_chat(body.to_string().as_bytes())
        .expect("raw text");
    assert_eq!(prompt.fell, Some(FallReason::Shape));
}

/// gpt-oss walks a tool's schema with a recursive macro; the thread has 2 MiB of stack, like a
/// blocking thread of the server.
#[test]
fn a_deeply_nested_tool_schema_cannot_overflow_the_stack() {
    assert!(render_nested_schema(20).is_ok());
    assert_eq!(render_nested_schema(110), Err(FallReason::TemplateError));
}

fn render_nested_schema(depth: usize) -> Result<RenderedChat, FallReason> {
    let schema = (0..depth).fold(
        json!({"type": "string"}),
        |schema, _| json!({"type": "array", "items": schema}),
    );
    let parameters = json!({"type": "object", "properties": {"x": schema}});
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {
            "name": "f", "description": "d", "parameters": parameters,
        }}],
    })
    .to_string();
    let source = text("templates/LLMWildling-gpt-oss-220a20b.jinja");
    let work = move || template(&source).render(body.as_bytes());
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work);
    thread.expect("thread").join().expect("no panic")
}

#[test]
fn endless_recursion_is_a_template_error() {
    let source = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert_eq!(render(source, "x"), Err(FallReason::TemplateError));
}

#[test]
fn instructions_are_limited() {
    let source = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    assert_eq!(render(source, "x"), Err(FallReason::TemplateLimit));
}

#[test]
fn output_is_limited_in_proportion_to_the_body() {
    let content = "x".repeat(400_000);
    let times =
        |n: u32| format!("{{% for i in range({n}) %}}{{{{ messages[0].content }}}}{{% endfor %}}");
    let chat = render(&times(8), &content).expect("within the limit");
    assert_eq!(chat.text.len(), 8 * content.len());
    assert_eq!(render(&times(12), &content), Err(FallReason::TemplateLimit));
}

#[test]
fn failures_inside_the_template_are_told_apart() {
    let table = [
        ("{{ raise_exception('no') }}", FallReason::TemplateRefused),
        (
            "{% macro f() %}{{ raise_exception('no') }}{% endmacro %}{{ f() }}",
            FallReason::TemplateRefused,
        ),
        ("{{ nobody.home }}", FallReason::TemplateError),
        ("{{ 1 + 'x' }}", FallReason::TemplateError),
        ("{{ messages.append(1) }}", FallReason::TemplateError),
        ("{{ strftime_now('%!') }}", FallReason::TemplateError),
        ("{{ nobody | tojson }}", FallReason::TemplateError),
    ];
    for (source, reason) in table {
        assert_eq!(render(source, "x"), Err(reason), "{source}");
    }
}

#[test]
fn template_syntax_in_content_stays_text() {
    let content = "{{ 7 * 7 }}{% raw %}{# x #}";
    let chat = render("{{ messages[0].content }}", content).expect("rendered");
    assert_eq!(chat.text, content);
}

/// Where the log of one test goes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0.lock().write(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_has_the_reason_and_not_the_prompt() {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let body = br#"{"messages":[{"role":"s3cret","content":"s3cret"}],"chat_template":"s3cret"}"#;
    tracing::subscriber::with_default(subscriber, || DEMO.encode_chat(body)).expect("raw text");
    let log = String::from_utf8(sink.0.lock().clone()).expect("utf-8");
    assert!(log.contains("reason=\"shape\""), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}
