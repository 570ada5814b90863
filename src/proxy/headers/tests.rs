use http::HeaderValue;

use super::*;

fn map(rows: &[(&'static str, &str)]) -> HeaderMap {
    let rows = rows.iter().map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
        (HeaderName::from_static(name), value)
    });
    rows.collect()
}

#[test]
fn the_clients_request_id_is_taken_from_the_first_sane_name_else_minted() {
    let long = "x".repeat(257);
    let rows = [
        (vec![("x-request-id", "abc")], Some("abc")),
        (
            vec![("request-id", "d"), ("x-correlation-id", "b")],
            Some("b"),
        ),
        (vec![("x-request-id", ""), ("x-trace-id", "c")], Some("c")),
        (vec![("x-request-id", "two words")], None),
        (vec![("x-request-id", long.as_str())], None),
        (vec![("x-request-id", "gr\u{fc}n")], None),
        (vec![], None),
    ];
    for (headers, expected) in rows {
        let id = request_id(&map(&headers));
        match expected {
            Some(expected) => assert_eq!(id, expected),
            None => {
                let minted = id.strip_prefix("chatcmpl-").expect("a minted id");
                assert!(minted.len() == 24 && minted.bytes().all(|b| b.is_ascii_alphanumeric()));
            }
        }
    }
}

#[test]
fn only_the_whitelist_passes_to_an_engine() {
    let passing = [
        "authorization",
        "x-correlation-id",
        "traceparent",
        "tracestate",
        "x-request-id-session",
        "x-sgl-anything",
    ];
    let stopped = [
        "cookie",
        "x-request-id",
        "x-request-id2",
        "x-sglfoo",
        "x-sgl-decode-url",
        "x-data-parallel-rank",
        "x-edge-bucket",
        "host",
        "content-length",
        "accept-encoding",
    ];
    for name in passing {
        assert!(passes(&HeaderName::from_static(name)), "{name}");
    }
    for name in stopped {
        assert!(!passes(&HeaderName::from_static(name)), "{name}");
    }
}

#[test]
fn what_connection_names_is_hop_by_hop_except_framing() {
    let headers = map(&[("connection", "close, X-Hop , content-length,keep-alive,te")]);
    assert_eq!(nominated(&headers), ["x-hop", "te"]);
}

#[test]
fn an_id_that_is_an_address_is_hidden_and_stays_distinct() {
    assert_eq!(public_id(&"E1".into()), "E1");
    let ids = ["http://a:1", "http://b:1"].map(WorkerId::from);
    let [a, b] = ids.each_ref().map(public_id);
    assert_ne!(a, b);
    for id in [a, b] {
        assert!(id.starts_with("engine-") && !id.contains(":1"), "{id}");
    }
}
