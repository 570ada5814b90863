//! Where pieces, chunks and the end of a body fall does not matter.

use super::{assert_arrived, assert_reused, pair};
use crate::support::body::{chunked, chunks, head, sized, small, with_length};
use crate::support::fleet::newest;
use crate::support::pause;

#[tokio::test]
async fn chunk_borders_do_not_matter() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    for (size, chunk) in [
        (200, 1),
        (200, 7),
        (3_000, 7),
        (65_536, 7_777),
        (65_537, 65_536),
        (70_000, 69_999),
        (131_072, 65_536),
        (200_000, 65_537),
        (1 << 20, 4_096),
    ] {
        let body = sized(size);
        client.send(&chunked(&body, chunk, "")).await;
        let answer = client.answer().await;
        assert_arrived(&engine, &body, &format!("{size} in chunks of {chunk}"));
        assert_reused(&mut client, &engine, &answer, "chunk borders").await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn one_byte_per_write_arrives() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    let body = sized(200);
    for request in [with_length(&body, ""), chunked(&body, 50, "")] {
        for byte in request {
            client.send(&[byte]).await;
            tokio::task::yield_now().await;
        }
        let answer = client.answer().await;
        assert_arrived(&engine, &body, "one byte per write");
        assert_reused(&mut client, &engine, &answer, "one byte per write").await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn a_body_in_slow_steps_arrives() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    let body = sized(80_000);
    client
        .send(head(&format!("content-length: {}\r\n\r\n", body.len())).as_bytes())
        .await;
    for piece in body.chunks(1024) {
        client.send(piece).await;
        pause(3).await;
    }
    let answer = client.answer().await;
    assert_arrived(&engine, &body, "1 KiB steps");
    assert_reused(&mut client, &engine, &answer, "1 KiB steps").await;
    proxy.finish().await;
}

#[tokio::test]
async fn the_end_of_the_chunks_may_come_late_or_with_blanks() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    for size in [200, 70_000] {
        let body = sized(size);
        let start = head("transfer-encoding: chunked\r\n\r\n");
        let late = chunks(&body, 65_537);
        let newline: &[u8] = b"1\r\n\n\r\n";
        for (first, second, wait) in [
            (late.clone(), &b"0\r\n\r\n"[..], 1000),
            ([&late, &b"0"[..]].concat(), b"\r\n\r\n", 200),
            (late.clone(), b"1\r\n\n\r\n0\r\n\r\n", 200),
            ([&late, newline].concat(), b"0\r\n\r\n", 200),
        ] {
            client.send(start.as_bytes()).await;
            client.send(&first).await;
            pause(wait).await;
            client.send(second).await;
            let answer = client.answer().await;
            assert_arrived(&engine, &body, "late end");
            assert_reused(&mut client, &engine, &answer, "late end").await;
        }
    }
    proxy.finish().await;
}

#[tokio::test]
async fn blanks_around_the_json_arrive_with_it() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    let blank = [b" \n", &sized(300)[..], b"\r\n\n "].concat();
    for request in [with_length(&blank, ""), chunked(&blank, 1 << 20, "")] {
        client.send(&request).await;
        let answer = client.answer().await;
        assert_arrived(&engine, &blank, "blanks");
        assert_reused(&mut client, &engine, &answer, "blanks").await;
    }
    proxy.finish().await;
}

#[tokio::test]
async fn chunk_extensions_and_trailers_do_not_reach_an_engine() {
    let (engine, proxy) = pair().await;
    let mut client = proxy.client().await;
    let body = small();
    let request = format!(
        "{}{:x};ext=1\r\n{}\r\n0\r\n\r\n",
        head("transfer-encoding: chunked\r\n\r\n"),
        body.len(),
        String::from_utf8(body.clone()).expect("text")
    );
    client.send(request.as_bytes()).await;
    let answer = client.answer().await;
    assert_arrived(&engine, &body, "extension");
    assert_reused(&mut client, &engine, &answer, "extension").await;
    // Trailers are read away or refused.
    let coded = [
        head("transfer-encoding: chunked\r\n\r\n").into_bytes(),
        chunks(&body, 999),
        b"0\r\nx-trailer: 1\r\n\r\n".to_vec(),
    ];
    client.send(&coded.concat()).await;
    let answer = client.answer().await;
    assert!(matches!(answer.status, 200 | 400), "{}", answer.text());
    assert!(newest(&engine).headers.get("x-trailer").is_none());
    client.assert_honest(&answer).await;
    proxy.finish().await;
}
