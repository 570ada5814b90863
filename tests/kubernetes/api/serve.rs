//! The routes of the stand-in.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Cluster, Entry, Gone, Mood, Seen, Shared, TOKEN, selector};

/// Slices per page of a list; clients would take 500.
const PAGE: usize = 2;

/// From the last line of a watch that is cut to the cut.
const BEFORE_A_CUT: Duration = Duration::from_millis(50);

type Asked = HashMap<String, String>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let all = async |State(shared): State<Arc<Shared>>, headers, Query(asked): Query<Asked>| {
        answer(shared, headers, None, asked).await
    };
    let one = async |State(shared): State<Arc<Shared>>,
                     headers,
                     Path(namespace): Path<String>,
                     Query(asked): Query<Asked>| {
        answer(shared, headers, Some(namespace), asked).await
    };
    let root = "/apis/discovery.k8s.io/v1";
    Router::new()
        .route(&format!("{root}/endpointslices"), get(all))
        .route(
            &format!("{root}/namespaces/{{namespace}}/endpointslices"),
            get(one),
        )
        .with_state(shared)
}

async fn answer(
    shared: Arc<Shared>,
    headers: HeaderMap,
    namespace: Option<String>,
    asked: Asked,
) -> Response {
    let watch = asked.get("watch").is_some_and(|watch| watch == "true");
    let version = asked
        .get("resourceVersion")
        .and_then(|text| text.parse().ok());
    let scope = Scope {
        namespace,
        selector: asked.get("labelSelector").cloned(),
    };
    let mood = {
        let mut cluster = shared.cluster.lock();
        cluster.seen.push(Seen {
            watch,
            namespace: scope.namespace.clone(),
            selector: scope.selector.clone(),
            version,
        });
        cluster.mood
    };
    let authorized = headers.get("authorization").map(|value| value.as_bytes());
    if authorized != Some(format!("Bearer {TOKEN}").as_bytes()) {
        return status(401, "Unauthorized", "Unauthorized");
    }
    match mood {
        Mood::Well => {}
        Mood::Hangs => std::future::pending().await,
        Mood::Forbids => {
            let text =
                "endpointslices.discovery.k8s.io is forbidden: User \"edge\" cannot list resource";
            return status(403, "Forbidden", text);
        }
    }
    if watch {
        let bookmarks = asked
            .get("allowWatchBookmarks")
            .is_some_and(|allow| allow == "true");
        return follow(shared, scope, version.unwrap_or(0), bookmarks);
    }
    let offset = asked.get("continue").and_then(|text| text.parse().ok());
    list(&shared.cluster.lock(), &scope, offset.unwrap_or(0))
}

/// Which slices a request means.
struct Scope {
    namespace: Option<String>,
    selector: Option<String>,
}

impl Scope {
    fn has(&self, slice: &Value) -> bool {
        let namespace = slice["metadata"]["namespace"].as_str();
        let here = self.namespace.is_none() || self.namespace.as_deref() == namespace;
        here && selector::matches(slice, self.selector.as_deref())
    }

    /// A change as this scope sees it: what leaves it is deleted.
    fn event(&self, entry: &Entry) -> Option<Value> {
        let seen = |slice: &Option<Value>| slice.clone().filter(|slice| self.has(slice));
        let (kind, mut object) = match (seen(&entry.before), seen(&entry.after)) {
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
            (None, None) => return None,
        };
        object["metadata"]["resourceVersion"] = json!(entry.version.to_string());
        Some(json!({"type": kind, "object": object}))
    }
}

fn list(cluster: &Cluster, scope: &Scope, offset: usize) -> Response {
    let all = cluster.slices.values().filter(|slice| scope.has(slice));
    let page: Vec<&Value> = all.clone().skip(offset).take(PAGE).collect();
    let end = offset + page.len();
    let more = (end < all.count()).then(|| end.to_string());
    let body = json!({
        "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": cluster.version.to_string(), "continue": more},
        "items": page,
    });
    json_answer(200, &body)
}

/// Where one watch stands.
struct Place {
    scope: Scope,
    version: u64,
    bookmarks: Option<u64>,
    cuts: u64,
    /// Nothing follows.
    over: bool,
    changed: watch::Receiver<()>,
    shared: Arc<Shared>,
}

fn follow(shared: Arc<Shared>, scope: Scope, version: u64, bookmarks: bool) -> Response {
    let mut place = {
        let cluster = shared.cluster.lock();
        if version < cluster.oldest && cluster.gone == Gone::Status {
            return status(410, "Expired", "too old resource version");
        }
        Place {
            scope,
            version,
            bookmarks: bookmarks.then_some(cluster.bookmarks),
            cuts: cluster.cuts,
            over: false,
            changed: shared.changed.subscribe(),
            shared: Arc::clone(&shared),
        }
    };
    place.changed.mark_changed();
    let lines = stream::unfold(place, async |mut place| {
        loop {
            if place.over || place.changed.changed().await.is_err() {
                return None;
            }
            if place.breaks() {
                // What was sent before arrives before.
                tokio::time::sleep(BEFORE_A_CUT).await;
                place.over = true;
                return Some((Err(io::Error::other("cut")), place));
            }
            if let Some(next) = place.next() {
                // There may be more than what goes out now.
                place.changed.mark_changed();
                return Some((next, place));
            }
        }
    });
    let json = [("content-type", "application/json")];
    (json, Body::from_stream(lines)).into_response()
}

impl Place {
    /// Whether it was cut and has nothing left to say.
    fn breaks(&self) -> bool {
        let cluster = self.shared.cluster.lock();
        let told = self.bookmarks.is_none_or(|sent| sent == cluster.bookmarks);
        let newest = cluster.log.last().map_or(0, |entry| entry.version);
        cluster.cuts != self.cuts && told && newest <= self.version
    }

    fn next(&mut self) -> Option<io::Result<Bytes>> {
        let shared = Arc::clone(&self.shared);
        let cluster = shared.cluster.lock();
        if self.version < cluster.oldest {
            self.over = true;
            let gone = failure(410, "Expired", "too old resource version");
            return Some(Ok(line(&json!({"type": "ERROR", "object": gone}))));
        }
        for entry in &cluster.log {
            if entry.version > self.version {
                self.version = entry.version;
                if let Some(event) = self.scope.event(entry) {
                    return Some(Ok(line(&event)));
                }
            }
        }
        if self.bookmarks.is_some_and(|sent| sent != cluster.bookmarks) {
            self.bookmarks = Some(cluster.bookmarks);
            self.version = cluster.version;
            let object = json!({
                "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": cluster.version.to_string()},
            });
            return Some(Ok(line(&json!({"type": "BOOKMARK", "object": object}))));
        }
        None
    }
}

fn line(event: &Value) -> Bytes {
    format!("{event}\n").into()
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    json_answer(code, &failure(code, reason, message))
}

fn json_answer(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).expect("a status");
    let json = [("content-type", "application/json")];
    (code, json, body.to_string()).into_response()
}
