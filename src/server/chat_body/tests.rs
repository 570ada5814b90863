use super::*;

fn message(body: impl AsRef<[u8]>) -> String {
    let error = parse(body.as_ref()).unwrap_err();
    assert_eq!((error.status(), error.code()), (400, "bad_request"));
    error.message().into_owned()
}

#[test]
fn garbage_is_refused_with_a_fixed_text() {
    let bodies: [&[u8]; 14] = [
        b"",
        b" ",
        b"[]",
        b"null",
        b"3",
        b"\"x\"",
        b"{",
        b"{\"model\":",
        b"{\"model\":\"m\"",
        b"{\"model\":\"m\"} x",
        b"{\"model\":\"m\"}{}",
        b"{\"model\":\"m\",}",
        b"{\"model\":\"m\",\"x\":\"\xff\"}",
        b"\xef\xbb\xbf{\"model\":\"m\"}",
    ];
    for body in bodies {
        assert_eq!(
            message(body),
            NOT_AN_OBJECT,
            "{}",
            String::from_utf8_lossy(body)
        );
    }
}

#[test]
fn a_missing_or_null_model_is_named() {
    for body in [r#"{}"#, r#"{"model":null}"#, r#"{"messages":[]}"#] {
        assert!(message(body).contains("`model` is missing"), "{body}");
    }
}

#[test]
fn each_routing_key_is_refused_when_repeated_even_as_null_or_escaped() {
    for key in ["model", "stream", "max_tokens", "max_completion_tokens"] {
        let body = format!(r#"{{"model":"m","{key}":null,"{key}":null}}"#);
        assert!(
            message(body).contains(&format!("`{key}` is given more than once")),
            "{key}"
        );
    }
    let text = message(r#"{"model":"a","mod\u0065l":"b"}"#);
    assert!(text.contains("`model` is given more than once"));
}

#[test]
fn wrong_types_are_refused_by_name() {
    let rows = [
        ("model", "3"),
        ("model", "[]"),
        ("stream", "\"true\""),
        ("stream", "1"),
        ("max_tokens", "-1"),
        ("max_tokens", "1.0"),
        ("max_tokens", "\"5\""),
        ("max_completion_tokens", "true"),
        ("max_completion_tokens", "18446744073709551616"),
    ];
    for (key, value) in rows {
        let body = match key {
            "model" => format!(r#"{{"model":{value}}}"#),
            _ => format!(r#"{{"model":"m","{key}":{value}}}"#),
        };
        let text = message(&body);
        assert!(text.contains(&format!("`{key}` must be")), "{body}: {text}");
    }
}

#[test]
fn output_tokens_come_from_the_newer_name_first() {
    let rows = [
        (r#"{"model":"m"}"#, None),
        (r#"{"model":"m","max_tokens":5}"#, Some(5)),
        (
            r#"{"model":"m","max_tokens":5,"max_completion_tokens":7}"#,
            Some(7),
        ),
        (
            r#"{"model":"m","max_tokens":5,"max_completion_tokens":0}"#,
            Some(5),
        ),
        (
            r#"{"model":"m","max_tokens":5,"max_completion_tokens":null}"#,
            Some(5),
        ),
        (r#"{"model":"m","max_tokens":0}"#, Some(0)),
    ];
    for (body, expected) in rows {
        assert_eq!(
            parse(body.as_bytes()).unwrap().output_tokens,
            expected,
            "{body}"
        );
    }
}

#[test]
fn the_model_span_covers_the_json_string() {
    let body = r#"{ "n": 1e400, "model" : "m\u0041x", "stream":true}"#;
    let fields = parse(body.as_bytes()).unwrap();
    assert_eq!(fields.model, "mAx");
    assert!(fields.stream);
    assert_eq!(&body[fields.model_span], r#""m\u0041x""#);
}

#[test]
fn caller_ids_are_taken_only_as_a_flat_list_of_ids() {
    let rows = [
        ("[1,2,3]", Some(vec![1, 2, 3])),
        ("[]", None),
        ("[[1]]", None),
        ("[-1]", None),
        ("[4294967296]", None),
        ("\"1\"", None),
        ("null", None),
    ];
    for (ids, expected) in rows {
        let body = format!(r#"{{"model":"m","input_ids":{ids}}}"#);
        assert_eq!(parse(body.as_bytes()).unwrap().input_ids, expected, "{ids}");
    }
}

#[test]
fn unknown_fields_of_any_shape_are_skipped() {
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let body = format!(
        r#"{{"x":{deep},"big":123456789012345678901234567890,"model":"m","y":{{"model":1}},"y":2}}"#
    );
    assert_eq!(parse(body.as_bytes()).unwrap().model, "m");
}

#[test]
fn bootstrap_fields_of_the_caller_are_noticed() {
    for key in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
        let body = format!(r#"{{"model":"m","{key}":1}}"#);
        assert!(parse(body.as_bytes()).unwrap().has_bootstrap);
    }
}

#[test]
fn sampling_values_are_located_whatever_they_are_and_the_last_one_wins() {
    let body =
        r#"{"n":1e400,"model":"m","top_\u006b" : [1, {"n":2}] ,"n":"x","n": null,"min_p":-0.0}"#;
    let fields = parse(body.as_bytes()).unwrap();
    let text = |param| fields.sampling(body.as_bytes(), param);
    for param in SamplingParam::ALL {
        let expected: Option<&[u8]> = match param {
            SamplingParam::N => Some(b"null"),
            SamplingParam::TopK => Some(br#"[1, {"n":2}]"#),
            SamplingParam::MinP => Some(b"-0.0"),
            _ => None,
        };
        assert_eq!(text(param), expected, "{param:?}");
    }
}

#[test]
fn sampling_values_must_still_be_json() {
    for value in ["NaN", "Infinity", "01", "1.", ".5", "+1", "'1'", "0x1"] {
        let body = format!(r#"{{"model":"m","temperature":{value}}}"#);
        assert_eq!(message(&body), NOT_AN_OBJECT, "{value}");
    }
}
