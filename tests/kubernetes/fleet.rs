//! Slices over mock engines, and requests that go on while slices change.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig};

use crate::api::Api;
use crate::support::body::{chat, stream};
use crate::support::child::Proxy;
use crate::support::client::{Client, End};
use crate::support::fleet::engine_with;
use crate::support::{eventually, pause};

/// The settings of one model `m` over `source`.
pub(crate) fn settings(source: Value) -> Value {
    json!({"models": [{"id": "m", "engines": {"kubernetes": source}}]})
}

/// The usual source.
pub(crate) fn plain() -> Value {
    json!({"namespace": "prod", "selector": {"app": "engines"}})
}

/// The program with these settings, looking at `api`.
pub(crate) async fn start(api: &Api, settings: Value) -> Proxy {
    let path = api.kubeconfig.to_str().expect("a plain path");
    Proxy::start_in(settings, &[("KUBECONFIG", path)]).await
}

/// An endpoint of a pod, ready.
pub(crate) fn pod(address: &str, uid: &str) -> Value {
    json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": uid, "uid": uid}})
}

/// A pod that is about to end.
pub(crate) fn leaving(address: &str, uid: &str) -> Value {
    let mut pod = pod(address, uid);
    pod["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    pod
}

/// A slice of a Service with these labels.
pub(crate) fn slice(at: [&str; 2], labels: Value, port: u16, endpoints: &[Value]) -> Value {
    let [namespace, name] = at;
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}, {"name": "zmq", "port": 1}],
    })
}

/// A slice of `prod`, named and labelled as usual, with one pod that has the engine's name.
pub(crate) fn only(name: &str, engine: &Engine) -> Value {
    let pods = [pod("127.0.0.1", engine.name())];
    let labels = json!({"app": "engines"});
    slice(["prod", name], labels, engine.addr().port(), &pods)
}

/// A plain engine at this address.
pub(crate) async fn engine_at(name: &str, address: SocketAddr) -> Engine {
    let config = EngineConfig {
        listen: address,
        ..EngineConfig::default()
    };
    engine_with(name, config).await
}

/// Engines of the first model, with roles other than plain.
pub(crate) async fn ids(proxy: &Proxy) -> Vec<String> {
    let state = proxy.state().await;
    let engines = state["models"][0]["engines"].as_array().cloned();
    let name = |engine: &Value| {
        let (id, role) = (engine["id"].as_str(), engine["role"].as_str());
        let (id, role) = (id.expect("an id"), role.expect("a role"));
        match role {
            "plain" => id.to_owned(),
            role => format!("{id} {role}"),
        }
    };
    engines.expect("a list").iter().map(name).collect()
}

/// Waits until the first model has these engines.
pub(crate) async fn known(proxy: &Proxy, wanted: &[&str]) {
    eventually(&format!("the engines {wanted:?}"), async || {
        ids(proxy).await == wanted
    })
    .await;
}

/// Waits until the log says something.
pub(crate) async fn logged(proxy: &Proxy, text: &str) {
    eventually(&format!("a line with `{text}`"), async || {
        proxy.log().contains(text)
    })
    .await;
}

/// Requests that go on until told to stop.
#[derive(Debug, Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    answered: AtomicU64,
}

impl Load {
    /// Chats on eight connections; every one must be answered whole.
    pub(crate) async fn run(&self, data: SocketAddr) {
        let workers = (0..8).map(|index| async move {
            let mut client = Client::connect(data).await;
            let body = if index % 2 == 0 {
                chat("a b c")
            } else {
                stream("a b c")
            };
            let body = body.to_string().into_bytes();
            while !self.stop.load(Ordering::Relaxed) {
                let answer = client.chat(&body).await;
                let ending = (answer.status, answer.end);
                assert_eq!(ending, (200, End::Clean), "{}", answer.text());
                self.answered.fetch_add(1, Ordering::Relaxed);
                pause(3).await;
            }
        });
        futures_util::future::join_all(workers).await;
    }

    /// Waits until some more requests have been answered.
    pub(crate) async fn progress(&self) {
        let goal = self.answered() + 40;
        eventually("the load goes on", async || self.answered() >= goal).await;
    }

    /// Waits until nothing can be on its way to `engine` any more, and then sees that nothing comes.
    pub(crate) async fn avoids(&self, engine: &Engine) {
        self.progress().await;
        let before = engine.stats().requests;
        self.progress().await;
        assert_eq!(engine.stats().requests, before, "a request after removal");
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
