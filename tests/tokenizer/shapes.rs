//! What a template gets to see of a request, and how values print.

use chrono::NaiveDate;
use serde_json::{Map, Value, json};
use sgl_edge::tokenizer::{ChatTemplate, ContentFormat};

/// Wants content parts, by the engine's rule for templates that loop over them.
const PARTS: &str = "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}";

fn render(source: &str, body: &Value) -> String {
    let template = ChatTemplate::try_new(source, &Map::new()).expect("compiles");
    let chat = template.render(body.to_string().as_bytes());
    chat.unwrap_or_else(|reason| panic!("{}: {source} {body}", reason.label()))
        .text
}

/// Messages as the template sees them.
fn seen(source_prefix: &str, messages: Value) -> Value {
    let source = format!("{source_prefix}{{{{ messages | tojson }}}}");
    let text = render(&source, &json!({"messages": messages}));
    serde_json::from_str(&text).expect("JSON")
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

#[test]
fn unknown_keys_and_nulls_vanish_and_keys_have_the_engines_order() {
    let source = "{{ messages | tojson }}";
    let body = json!({"messages": [
        {"tool_call_id": "c1", "x": 1, "name": null, "content": "r", "role": "Tool"},
        {"role": "assistant", "reasoning_content": "why", "content": null},
        {"name": "ann", "content": "q", "role": "user"},
    ]});
    assert_eq!(
        render(source, &body),
        concat!(
            r#"[{"role": "tool", "content": "r", "tool_call_id": "c1"}, "#,
            r#"{"role": "assistant", "content": "", "reasoning_content": "why"}, "#,
            r#"{"role": "user", "content": "q"}]"#
        )
    );
}

#[test]
fn content_parts_are_flattened_for_templates_that_want_strings() {
    let parts = json!([
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "http://x"}},
        {"type": "text", "text": "b"},
    ]);
    let message = json!([{"role": "user", "content": parts}]);
    assert_eq!(seen("", message.clone())[0]["content"], "a b");
    let kept = json!([
        {"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"},
    ]);
    assert_eq!(seen(PARTS, message)[0]["content"], kept);
}

#[test]
fn tool_results_are_flattened_for_every_template() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = json!([{"role": "tool", "content": parts}, user("x")]);
    assert_eq!(seen(PARTS, messages)[0]["content"], "a b");
}

#[test]
fn tool_call_arguments_become_objects() {
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        let call = json!({"id": "c", "type": "function", "function": function});
        json!([{"role": "assistant", "tool_calls": [call]}, user("x")])
    };
    for arguments in [json!("{\"q\": 1}"), json!({"q": 1})] {
        let messages = seen("", call(arguments));
        assert_eq!(
            messages[0]["tool_calls"][0]["function"]["arguments"],
            json!({"q": 1})
        );
    }
}

#[test]
fn a_final_assistant_turn_becomes_a_user_turn_unless_it_is_continued() {
    let mut body = json!({"messages": [user("q"), {"role": "assistant", "content": "a"}]});
    let source = "{% for m in messages %}{{ m.role }} {% endfor %}";
    assert_eq!(render(source, &body), "user user ");
    body["continue_final_message"] = json!(true);
    assert_eq!(render(source, &body), "user ");
}

#[test]
fn tools_are_none_one_or_all_after_the_callers_choice() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let dump = |name: &str| {
        format!(
            r#"{{"type": "function", "function": {{"name": "{name}"}}, "defer_loading": null}}"#
        )
    };
    let named = json!({"type": "function", "function": {"name": "g"}});
    let table = [
        (json!("auto"), format!("[{}, {}]", dump("f"), dump("g"))),
        (json!(null), format!("[{}, {}]", dump("f"), dump("g"))),
        (json!("required"), format!("[{}, {}]", dump("f"), dump("g"))),
        (json!("none"), "null".to_owned()),
        (named, format!("[{}]", dump("g"))),
    ];
    for (choice, expected) in table {
        let body = json!({
            "messages": [user("x")], "tools": [tool("f"), tool("g")], "tool_choice": choice,
        });
        assert_eq!(render("{{ tools | tojson }}", &body), expected, "{choice}");
    }
}

#[test]
fn reasoning_switches_set_thinking_unless_the_caller_did() {
    let table = [
        (json!({}), "||"),
        (json!({"reasoning_effort": "low"}), "True|True|low"),
        (json!({"reasoning_effort": "none"}), "False|False|none"),
        (json!({"reasoning": {"effort": "high"}}), "True|True|high"),
        (json!({"reasoning": {"enabled": true}}), "True|True|"),
        (json!({"reasoning": {"enabled": "off"}}), "False|False|"),
        (
            json!({"reasoning_effort": "low", "chat_template_kwargs": {"thinking": false}}),
            "False|True|low",
        ),
    ];
    for (fields, expected) in table {
        let mut body = fields;
        body["messages"] = json!([user("x")]);
        let source = "{{ thinking }}|{{ enable_thinking }}|{{ reasoning_effort }}";
        assert_eq!(render(source, &body), expected, "{body}");
    }
}

#[test]
fn template_variables_are_those_of_the_engine() {
    let source = "{{ add_generation_prompt }} {{ documents }} {{ tools }} {{ bos_token is defined }} \
        {{ eos_token }} {{ additional_special_tokens }} {{ city }}";
    let config = json!({"bos_token": null, "eos_token": {"content": "</s>"},
        "additional_special_tokens": ["<a>", {"content": "<b>"}]});
    let config = config.as_object().expect("object");
    let template = ChatTemplate::try_new(source, config).expect("compiles");
    let body = json!({"messages": [user("x")], "chat_template_kwargs": {"city": "Rome"}});
    let chat = template
        .render(body.to_string().as_bytes())
        .expect("rendered");
    assert_eq!(chat.text, "True None None False </s> ['<a>', '<b>'] Rome");
}

/// Expected texts are what CPython 3 prints for the same values.
#[test]
fn values_print_as_in_python() {
    let table = [
        ("{{ none }} {{ true }} {{ undefined }}", "None True "),
        (
            "{{ 1.0 }} {{ 0.5 }} {{ k.f }}",
            "1.0 0.5 [1e+16, 1e-05, 0.0001, -2.5, 100000.0]",
        ),
        (
            "{{ k.d }}",
            r#"{'a': [None, True, 'x', "it's", '\n\\'], 'b': {}}"#,
        ),
        (
            "{{ k.d | string }}",
            r#"{'a': [None, True, 'x', "it's", '\n\\'], 'b': {}}"#,
        ),
        (
            "{{ k.d | tojson }}",
            r#"{"a": [null, true, "x", "it's", "\n\\"], "b": {}}"#,
        ),
        (
            "{{ k.f | tojson }}",
            "[1e+16, 1e-05, 0.0001, -2.5, 100000.0]",
        ),
        ("{{ k.t | tojson }}", "\"<é&👩\\u0001\\b\\f\u{7f}>\""),
        (
            "{{ k.t | tojson(ensure_ascii=true) }}",
            "\"<\\u00e9&\\ud83d\\udc69\\u0001\\b\\f\\u007f>\"",
        ),
        (
            "{{ k.o | tojson(separators=(',', ':')) }}",
            r#"{"b":1,"a":[1,2]}"#,
        ),
        (
            "{{ k.o | tojson(sort_keys=true) }}",
            r#"{"a": [1, 2], "b": 1}"#,
        ),
        (
            "{{ k.o | tojson(indent=2) }}",
            "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    2\n  ]\n}",
        ),
        ("{{ [] | tojson(indent=2) }}", "[]"),
    ];
    let k = json!({
        "f": [1e16, 1e-5, 1e-4, -2.5, 1e5],
        "d": {"a": [null, true, "x", "it's", "\n\\"], "b": {}},
        "t": "<é&👩\u{1}\u{8}\u{c}\u{7f}>",
        "o": {"b": 1, "a": [1, 2]},
    });
    let body = json!({"messages": [user("x")], "chat_template_kwargs": {"k": k}});
    for (source, expected) in table {
        assert_eq!(render(source, &body), expected, "{source}");
    }
}

#[test]
fn the_environment_has_what_transformers_gives_its_templates() {
    let table = [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        (
            "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "012",
        ),
        (
            "{% generation %}x{% set y = 1 %}{%- endgeneration -%} {{ y is defined }}",
            "xFalse",
        ),
        (
            "{% raw %}{% generation %}{% endraw %}{{ '{% generation %}' }}",
            "{% generation %}{% generation %}",
        ),
        (
            "{{ 'a b'.split()[-1].strip().upper() }}{{ {'k': 1}.get('z', 'd') }}",
            "Bd",
        ),
        (
            "{{ none is iterable }} {{ 'x' is iterable }} {{ 1 is sequence }}",
            "False True False",
        ),
    ];
    for (source, expected) in table {
        assert_eq!(
            render(source, &json!({"messages": [user("x")]})),
            expected,
            "{source}"
        );
    }
}

#[test]
fn the_clock_can_be_held_still() {
    let clock = || {
        NaiveDate::from_ymd_opt(2024, 2, 9)
            .and_then(|d| d.and_hms_opt(3, 4, 5))
            .expect("date")
    };
    let source = "{{ strftime_now('%d %b %Y, %-d %B %H:%M') }}";
    let template = ChatTemplate::try_new(source, &Map::new())
        .expect("compiles")
        .with_clock(clock);
    let chat = template.render(br#"{"messages":[{"role":"user","content":""}]}"#);
    assert_eq!(
        chat.expect("rendered").text,
        "09 Feb 2024, 9 February 03:04"
    );
}

#[test]
fn loops_over_content_are_found_behind_filters_and_slices() {
    let openai = [
        "{% for p in m.content %}{% endfor %}",
        "{%- for p in m['content'] | list -%}{% endfor %}",
        "{% for p in messages[0].content[1:] %}{% endfor %}",
        "{% for p in m[\"content\"] if p %}{% endfor %}",
        "{# an image #}",
    ];
    let string = [
        "{% for p in contents %}{% endfor %}",
        "{# {% for p in m.content %} #}",
        "{{ '{% for p in m.content %}' }}",
        "{% raw %}{% for p in m.content %}{% endraw %}",
        "{% if 'x' in m.content %}{% endif %}",
    ];
    let cases = openai.map(|s| (s, ContentFormat::OpenAi));
    let cases = cases
        .into_iter()
        .chain(string.map(|s| (s, ContentFormat::String)));
    for (source, format) in cases {
        let template = ChatTemplate::try_new(source, &Map::new()).expect("compiles");
        assert_eq!(template.content_format(), Some(format), "{source}");
    }
}
