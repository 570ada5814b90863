//! A small API server: EndpointSlices to list (in pages) and to watch, with label selectors,
//! resource versions, bookmarks, a memory that can be cut short (410) and connections that break.
//!
//! Lives in a runtime of its own, so that stopping it closes every socket at once.

mod selector;
mod serve;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::support::child::free_address;

/// The bearer token that it wants.
const TOKEN: &str = "a-service-account";

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// 403 to everything.
    Forbids,
    /// Takes requests and never answers.
    Hangs,
}

/// How a watch is told that its place is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// As an event of the stream.
    Event,
    /// As the status of the answer.
    Status,
}

/// One request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) watch: bool,
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Option<String>,
    pub(crate) version: Option<u64>,
}

/// One change: what was there before and after it.
#[derive(Debug, Clone)]
struct Entry {
    version: u64,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Debug)]
struct Cluster {
    version: u64,
    slices: BTreeMap<(String, String), Value>,
    log: Vec<Entry>,
    /// Versions below it are forgotten.
    oldest: u64,
    gone: Gone,
    mood: Mood,
    seen: Vec<Seen>,
    /// How often bookmarks were sent, and connections cut.
    bookmarks: u64,
    cuts: u64,
}

/// The state, which outlives a stop, and what wakes watches.
#[derive(Debug)]
struct Shared {
    cluster: Mutex<Cluster>,
    changed: watch::Sender<()>,
}

/// A stand-in.
#[derive(Debug)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    address: SocketAddr,
    runtime: Option<Runtime>,
    pub(crate) kubeconfig: PathBuf,
}

impl Api {
    /// One that does not listen yet.
    pub(crate) fn new() -> Self {
        let cluster = Cluster {
            version: 1000,
            slices: BTreeMap::new(),
            log: Vec::new(),
            oldest: 0,
            gone: Gone::Event,
            mood: Mood::Well,
            seen: Vec::new(),
            bookmarks: 0,
            cuts: 0,
        };
        let address = free_address();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let name = format!("kubeconfig-{}-{}", std::process::id(), address.port());
        let kubeconfig = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&kubeconfig, config.to_string()).expect("a writable target directory");
        Self {
            shared: Arc::new(Shared {
                cluster: Mutex::new(cluster),
                changed: watch::Sender::new(()),
            }),
            address,
            runtime: None,
            kubeconfig,
        }
    }

    /// One that listens.
    pub(crate) fn started() -> Self {
        let mut api = Self::new();
        api.start();
        api
    }

    pub(crate) fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind(self.address).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let router = serve::router(Arc::clone(&self.shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, router).await
        });
        self.runtime = Some(runtime);
    }

    /// Closes everything; the state stays.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Makes `slice` ([`slice`]) what its name says.
    pub(crate) fn apply(&self, mut slice: Value) {
        self.change(|cluster| {
            cluster.version += 1;
            slice["metadata"]["resourceVersion"] = json!(cluster.version.to_string());
            let key = key(&slice);
            let before = cluster.slices.insert(key, slice.clone());
            cluster.log.push(Entry {
                version: cluster.version,
                before,
                after: Some(slice),
            });
        });
    }

    /// Takes a slice away.
    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        self.change(|cluster| {
            cluster.version += 1;
            let version = cluster.version;
            let before = cluster
                .slices
                .remove(&(namespace.to_owned(), name.to_owned()));
            cluster.log.push(Entry {
                version,
                before: Some(before.expect("it was there")),
                after: None,
            });
        });
    }

    /// Sends every watch the present version; gives it.
    pub(crate) fn bookmark(&self) -> u64 {
        self.change(|cluster| {
            cluster.version += 1;
            cluster.bookmarks += 1;
            cluster.version
        })
    }

    /// Breaks every watch off in the middle.
    pub(crate) fn cut(&self) {
        self.change(|cluster| cluster.cuts += 1);
    }

    /// Forgets every change up to now: who asks to go on from before is told so.
    pub(crate) fn forget(&self, gone: Gone) {
        self.change(|cluster| {
            cluster.version += 1;
            (cluster.oldest, cluster.gone) = (cluster.version, gone);
            cluster.log.clear();
        });
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.change(|cluster| cluster.mood = mood);
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.cluster.lock().seen.clone()
    }

    pub(crate) fn lists(&self) -> usize {
        self.seen().iter().filter(|seen| !seen.watch).count()
    }

    pub(crate) fn watches(&self) -> usize {
        self.seen().iter().filter(|seen| seen.watch).count()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Cluster) -> T) -> T {
        let result = change(&mut self.shared.cluster.lock());
        self.shared.changed.send_replace(());
        result
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

fn key(slice: &Value) -> (String, String) {
    let text = |key: &str| slice["metadata"][key].as_str().expect("a name").to_owned();
    (text("namespace"), text("name"))
}
