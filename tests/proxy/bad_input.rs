//! What no client should send: a clear error each, nothing lost, and the proxy serves on.

mod framing;
mod slow;

use serde_json::json;

use crate::support::body::{self, head, small};
use crate::support::child::Proxy;
use crate::support::client::Answer;
use crate::support::fleet::{engine, newest, plain};
use crate::support::h2c::H2Client;
use crate::support::{SOON, within};

#[tokio::test]
async fn bodies_that_are_no_json_object() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    let long_key = format!(r#"{{"{}":1,"model":}}"#, "k".repeat(5 << 20));
    let garbage: Vec<Vec<u8>> = vec![
        b"[]".to_vec(),
        b"null".to_vec(),
        b"true".to_vec(),
        b"3".to_vec(),
        b"-1e999".to_vec(),
        b"\"x\"".to_vec(),
        b"{}".to_vec(),
        b"[{\"model\":\"m\"}]".to_vec(),
        b"{\"model\":\"m\"".to_vec(),
        b"{\"model\":\"m\",}".to_vec(),
        b"{\"model\":\"m\"}}".to_vec(),
        b"{\"model\":\"m\"}{\"model\":\"m\"}".to_vec(),
        b"{\"model\":\"m\"} x".to_vec(),
        b"{'model':'m'}".to_vec(),
        b"{model:\"m\"}".to_vec(),
        b"{\"model\":\"m\",\"x\":NaN}".to_vec(),
        b"{\"model\":\"m\",\"x\":01}".to_vec(),
        b"{\"model\":\"m\",\"x\":\"\xff\xfe\"}".to_vec(),
        b"{\"model\":\"m\xc3\"}".to_vec(),
        b"{\"model\":\"\\ud800\"}".to_vec(),
        b"{\"model\":\"m\",\"x\":\"a\nb\"}".to_vec(),
        b"\xef\xbb\xbf{\"model\":\"m\"}".to_vec(),
        b"\0\0\0\0".to_vec(),
        b"model=m&messages=x".to_vec(),
        b"--x\r\ncontent-disposition: form-data\r\n\r\n{}\r\n--x--".to_vec(),
        b"\x1f\x8b\x08\0\0\0\0\0".to_vec(),
        deep("[", "]").into_bytes(),
        deep("{\"a\":", "}").into_bytes(),
        "{".repeat(100_000).into_bytes(),
        long_key.into_bytes(),
    ];
    let mut client = proxy.client().await;
    let mut h2 = H2Client::connect(proxy.data).await;
    for body in garbage {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = client.chat(&body).await;
        assert_clear(&answer, &shown);
        client.assert_kept(&answer).await;
        let mut other = proxy.client().await;
        other.send(&body::chunked(&body, 50_000, "")).await;
        let answer = other.answer().await;
        assert_clear(&answer, &shown);
        other.assert_honest(&answer).await;
        assert_clear(&h2.chat(&body, true).await, &shown);
    }
    assert_eq!(engine.stats().requests, 0, "nothing of it is dispatched");
    proxy.finish().await;
}

/// A 400 that shows nothing of the parser.
#[track_caller]
fn assert_clear(answer: &Answer, shown: &str) {
    assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
    answer.assert_refusal(400, "bad_request");
    for parser in ["line", "column", "expected", "EOF", "recursion", "utf"] {
        assert!(
            !answer.text().contains(parser),
            "{shown}: {}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn routing_keys_given_twice() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    for (key, a, b) in [
        ("model", "\"m\"", "\"m\""),
        ("model", "null", "\"m\""),
        ("stream", "true", "true"),
        ("stream", "null", "null"),
        ("max_tokens", "1", "2"),
        ("max_completion_tokens", "1", "null"),
    ] {
        let model = if key == "model" {
            ""
        } else {
            r#""model":"m","#
        };
        let body = format!(r#"{{{model}"{key}":{a},"messages":[],"{key}":{b}}}"#);
        let answer = client.chat(body.as_bytes()).await;
        answer.assert_refusal(400, "bad_request");
        assert!(answer.text().contains(key), "{}", answer.text());
        client.assert_kept(&answer).await;
        let escaped = body.replacen(
            &format!("\"{key}\""),
            &format!("\"\\u{:04x}{}\"", key.as_bytes()[0], &key[1..]),
            1,
        );
        client
            .chat(escaped.as_bytes())
            .await
            .assert_refusal(400, "bad_request");
    }
    assert_eq!(engine.stats().requests, 0);
    proxy.finish().await;
}

#[tokio::test]
async fn what_the_engine_judges_goes_to_the_engine() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut client = proxy.client().await;
    for messages in [
        json!(null),
        json!([]),
        json!("x"),
        json!([1]),
        json!([{"role": 3}]),
        json!({}),
    ] {
        let body = json!({"model": "m", "messages": messages}).to_string();
        let answer = client.chat(body.as_bytes()).await;
        answer.assert_engine(400);
        assert_eq!(answer.json()["object"], "error", "the engine's own words");
        assert_eq!(newest(&engine).body, body.as_bytes());
    }
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = format!(r#"{{"model":"m","messages":[],"x":{nested}}}"#);
    client.chat(deep.as_bytes()).await.assert_engine(400);
    let no_messages = br#"{"model":"m"}"#;
    client.chat(no_messages).await.assert_engine(400);
    proxy.finish().await;
}

#[tokio::test]
async fn absurd_headers() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let many: String = (0..300).map(|i| format!("x-h{i}: {i}\r\n")).collect();
    let several: String = (0..200).map(|i| format!("x-h{i}: {i}\r\n")).collect();
    let wide = format!("x-wide: {}\r\n", "w".repeat(200 << 10));
    let huge = format!("x-huge: {}\r\n", "h".repeat(2 << 20));
    let forwarded = format!("x-sgl-wide: {}\r\n", "w".repeat(20 << 10));
    for (headers, allowed) in [
        (&several, &[200][..]),
        (&many, &[400, 431, 200]),
        // What the mock engine's own limit says of a forwarded one is the engine's answer.
        (&forwarded, &[200, 431]),
        (&wide, &[200, 400, 431]),
        (&huge, &[400, 431]),
    ] {
        let mut client = proxy.client().await;
        // It may be refused before all of it was read.
        let _ = client.try_send(&body::with_length(&small(), headers)).await;
        let answer = client.try_answer().await;
        let answer = answer.unwrap_or_else(|| panic!("{}: no answer", &headers[..12]));
        assert!(
            allowed.contains(&answer.status),
            "{}: {}",
            &headers[..12],
            answer.status
        );
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    for line in [
        "no colon here\r\n",
        ": no name\r\n",
        "bad name: x\r\n",
        "x\0: y\r\n",
        "x: a\0b\r\n",
        "x : space before colon\r\n",
    ] {
        let mut client = proxy.client().await;
        let _ = client.try_send(&body::with_length(&small(), line)).await;
        let answer = client.try_answer().await;
        let status = answer.map_or(0, |answer| answer.status);
        assert!(matches!(status, 0 | 400), "{line:?}: {status}");
    }
    proxy.chat_bytes(&small()).await.assert_engine(200);
    proxy.finish().await;
}

#[tokio::test]
async fn what_is_no_http() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let mut random = vec![0_u8; 4_096];
    for (i, byte) in random.iter_mut().enumerate() {
        *byte = (i * 31 % 251) as u8;
    }
    random.extend_from_slice(b"\r\n\r\n");
    let cases: [&[u8]; 9] = [
        b"\r\n\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"CONNECT evil:80 HTTP/1.1\r\nhost: evil\r\n\r\n",
        &random,
    ];
    for bytes in cases {
        let mut client = proxy.client().await;
        client.send(bytes).await;
        // Half of it stays: some of these wait for more until the head's time is over.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.socket).await;
        let status = client.try_answer().await.map_or(0, |answer| answer.status);
        assert!(matches!(status, 0 | 400..=505), "{bytes:?}: {status}");
        proxy.chat_bytes(&small()).await.assert_engine(200);
    }
    // An absolute target and a missing host are allowed or refused, and nothing worse.
    let body = small();
    for start in [
        format!(
            "POST http://evil/v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ),
        head("content-length: 0\r\n\r\n"),
    ] {
        let mut client = proxy.client().await;
        client.send(&[start.as_bytes(), &body].concat()).await;
        let answer = client.answer().await;
        assert!(
            matches!(answer.status, 200 | 400..=404),
            "{start}: {}",
            answer.status
        );
    }
    proxy.finish().await;
}

#[tokio::test]
async fn absurd_headers_over_http2() {
    let engine = engine("E1").await;
    let proxy = Proxy::start(plain(&[&engine])).await;
    let body = small();
    for (count, length) in [(50, 100), (1_000, 10), (1, 200 << 10), (20, 10 << 10)] {
        let mut client = H2Client::connect(proxy.data).await;
        let mut request = http::Request::post("http://edge/v1/chat/completions")
            .header("content-length", body.len());
        for i in 0..count {
            request = request.header(format!("x-h{i}"), "h".repeat(length));
        }
        let request = request.body(()).expect("a legal head");
        let mut exchange = client.send_request(request, false).await;
        exchange.send(&body).await;
        // A stream error is an answer too.
        let response = within(SOON, "an end", exchange.response).await;
        let status = response.map_or(0, |response| response.status().as_u16());
        let is_sane = count == 50;
        let refused = !is_sane && matches!(status, 0 | 400 | 431);
        assert!(status == 200 || refused, "{count} of {length}: {status}");
        proxy.chat_bytes(&body).await.assert_engine(200);
    }
    proxy.finish().await;
}
