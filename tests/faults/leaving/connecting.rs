//! The client leaves while an engine is being connected to: that ends, and nobody is blamed.
//!
//! Seen for HTTP/1.1 clients only; for HTTP/2 the connect limit is the bound (`proxy/dial.rs`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, Role};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::visit::{AT_ONCE, How, Visit, assert_not_blamed, held, released};
use crate::matrix::cell::{Cell, Leg, ROUNDS, Wire, model, request};
use crate::matrix::run::settings;
use crate::matrix::watched::Watched;
use crate::support::fleet::entry;
use crate::support::{eventually, pause};

/// An address that neither accepts nor refuses: a listener whose queue is full.
struct Full {
    address: SocketAddr,
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

async fn full() -> Full {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(([127, 0, 0, 1], 0).into())
        .expect("a free port");
    let listener = socket.listen(1).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut queue = Vec::new();
    loop {
        let connect = TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(500), connect).await {
            Ok(connected) => queue.push(connected.expect("room in the queue")),
            Err(_) => break,
        }
    }
    Full {
        address,
        _listener: listener,
        _queue: queue,
    }
}

impl Full {
    fn entry(&self, id: &str, role: Role) -> Value {
        let url = format!("http://{}", self.address);
        json!({"id": id, "url": url, "role": role.as_str()})
    }
}

/// A proxy over one model per form, `json` and `stream`, whose engine `full` does not accept.
async fn proxy_over(entries: impl Fn(&str) -> Vec<Value>, connect: &str) -> Arc<Watched> {
    let models: Vec<_> = ["json", "stream"]
        .iter()
        .map(|form| model(form, &entries(form)))
        .collect();
    let mut settings = settings(&models);
    settings["timeouts"] = json!({"connect": connect});
    Watched::start(&settings).await
}

async fn begin(proxy: &Watched, form: &str, how: How) -> (Visit, String) {
    let id = format!("{form}-full");
    let visit = Visit::begin(proxy, how, &request(form, form == "stream")).await;
    eventually("it is being connected", async || {
        held(proxy, &id).await == 1.0
    })
    .await;
    pause(300).await;
    (visit, id)
}

/// Leaves while the answering engine is being connected to.
async fn leave_three_times(proxy: &Watched) {
    for form in ["json", "stream"] {
        for how in [How::Close, How::Reset, How::Close] {
            let (visit, id) = begin(proxy, form, how).await;
            let left = visit.leave().await;
            released(proxy, &id, left, AT_ONCE).await;
        }
        assert_not_blamed(proxy, &format!("{form}-full"), &["cancelled"], ROUNDS).await;
    }
    proxy.idle().await;
}

#[tokio::test]
async fn a_plain_engine() {
    let full = full().await;
    let proxy = proxy_over(
        |form| vec![full.entry(&format!("{form}-full"), Role::Plain)],
        "60s",
    )
    .await;
    leave_three_times(&proxy).await;
    Watched::finish(proxy).await;
}

async fn other_half(leg: Leg) -> Engine {
    Cell::new(leg, "half", false, Wire::Http1).await.faulty
}

#[tokio::test]
async fn a_decode_engine_so_that_prefill_hears_nothing() {
    let (full, prefill) = (full().await, other_half(Leg::Prefill).await);
    let entries = |form: &str| {
        let mut prefill = entry(&prefill, Role::Prefill);
        prefill["id"] = format!("{form}-prefill").into();
        vec![full.entry(&format!("{form}-full"), Role::Decode), prefill]
    };
    let proxy = proxy_over(entries, "60s").await;
    leave_three_times(&proxy).await;
    for form in ["json", "stream"] {
        assert_not_blamed(&proxy, &format!("{form}-prefill"), &["cancelled"], ROUNDS).await;
    }
    assert_eq!(prefill.stats().requests, 0);
    Watched::finish(proxy).await;
}

#[tokio::test]
async fn a_prefill_engine_which_lets_decode_go_at_once() {
    let (full, decode) = (full().await, other_half(Leg::Decode).await);
    let entries = |form: &str| {
        let mut decode = entry(&decode, Role::Decode);
        decode["id"] = format!("{form}-decode").into();
        vec![full.entry(&format!("{form}-full"), Role::Prefill), decode]
    };
    // The prefill leg may go on connecting for that long.
    let proxy = proxy_over(entries, "4s").await;
    for form in ["json", "stream"] {
        for how in [How::Close, How::Reset, How::Stream] {
            let (visit, id) = begin(&proxy, form, how).await;
            let left = visit.leave().await;
            released(&proxy, &format!("{form}-decode"), left, AT_ONCE).await;
            released(&proxy, &id, left, Duration::from_secs(4) + AT_ONCE).await;
        }
        for engine in ["full", "decode"] {
            let engine = format!("{form}-{engine}");
            assert_not_blamed(&proxy, &engine, &["cancelled"], ROUNDS).await;
        }
    }
    eventually("decode is let go", async || decode.stats().inflight == 0).await;
    assert_eq!(decode.stats().completed, 0);
    Watched::finish(proxy).await;
}

#[tokio::test]
async fn for_an_http2_client_the_connect_limit_is_the_bound() {
    let full = full().await;
    let proxy = proxy_over(
        |form| vec![full.entry(&format!("{form}-full"), Role::Plain)],
        "2s",
    )
    .await;
    for form in ["json", "stream"] {
        let (visit, id) = begin(&proxy, form, How::Stream).await;
        let left = visit.leave().await;
        released(&proxy, &id, left, Duration::from_secs(2) + AT_ONCE).await;
    }
    Watched::finish(proxy).await;
}
