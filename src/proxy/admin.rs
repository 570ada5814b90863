//! The admin listener: metrics, probes, state, reload, calls to every engine. Local by default.
//!
//! Runs on a runtime of its own, so that probes answer while the data listener is busy. With a
//! token configured, everything except metrics and probes needs it. Source: contract §4.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use pingora::apps::http_app::{HttpServer, ServeHttp};
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use serde_json::json;

use crate::config::Timeouts;
use crate::proxy::CLIENT_KEEPALIVE_SECS;
use crate::proxy::engine_call::EngineClient;
use crate::proxy::fanout;
use crate::server::ApiError;
use crate::server::app::App;
use crate::server::explain::{self, Explained, Subject};
use crate::server::reload::Reloader;
use crate::server::routing::Routing;
use crate::server::state_view;

/// Serves the admin routes.
#[derive(Debug)]
pub struct AdminApp {
    app: Arc<App>,
    reloader: Option<Arc<Reloader>>,
    engines: EngineClient,
}

/// Idle time of a kept connection, as on the data listener, plus what one exchange may take: the
/// head within `client_header`, the calls to engines within `request`. Pingora bounds only each
/// read, which a drip of bytes never reaches.
fn exchange_limit(timeouts: &Timeouts) -> Duration {
    Duration::from_secs(CLIENT_KEEPALIVE_SECS)
        + timeouts.client_header
        + timeouts.client_body_idle
        + timeouts.request
}

/// The admin listener's application: [`AdminApp`] with a limit on every exchange.
pub struct AdminDoor {
    http: Arc<HttpServer<AdminApp>>,
    app: Arc<App>,
}

impl std::fmt::Debug for AdminDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminDoor").finish_non_exhaustive()
    }
}

impl AdminDoor {
    /// Serves `admin` to everybody who comes in time.
    #[must_use]
    pub fn new(admin: AdminApp) -> Self {
        let app = Arc::clone(&admin.app);
        Self {
            http: Arc::new(HttpServer::new_app(admin)),
            app,
        }
    }
}

#[async_trait]
impl HttpServerApp for AdminDoor {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let limit = exchange_limit(&self.app.routing().config.timeouts);
        let exchange = self.http.process_new_http(session, shutdown);
        tokio::time::timeout(limit, exchange).await.ok().flatten()
    }

    async fn http_cleanup(&self) {
        self.http.http_cleanup().await;
    }
}

/// The admin routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Metrics,
    Alive,
    Ready,
    State,
    Reload,
    FlushCache,
    AbortRequest,
    Explain,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/metrics" => Self::Metrics,
            "/healthz" => Self::Alive,
            "/readyz" => Self::Ready,
            "/admin/state" => Self::State,
            "/admin/reload" => Self::Reload,
            "/flush_cache" => Self::FlushCache,
            "/abort_request" => Self::AbortRequest,
            "/admin/explain" => Self::Explain,
            _ => return None,
        })
    }

    const fn method(self) -> &'static str {
        match self {
            Self::Metrics | Self::Alive | Self::Ready | Self::State => "GET",
            Self::Reload | Self::FlushCache | Self::AbortRequest | Self::Explain => "POST",
        }
    }

    /// Whether the route needs no token.
    const fn open(self) -> bool {
        matches!(self, Self::Metrics | Self::Alive | Self::Ready)
    }
}

impl AdminApp {
    /// `reloader` is absent when there is no file to read again (the demo).
    #[must_use]
    pub fn new(app: Arc<App>, reloader: Option<Arc<Reloader>>, pools: &ServerConf) -> Self {
        Self {
            app,
            reloader,
            engines: EngineClient::new(pools),
        }
    }

    async fn answer(&self, session: &mut ServerSession) -> Reply {
        let head = session.req_header();
        let Some(route) = Route::of(head.uri.path()) else {
            return refuse(&ApiError::NotFound);
        };
        if head.method.as_str() != route.method() {
            return refuse(&ApiError::MethodNotAllowed(route.method()));
        }
        let authorization = head.headers.get(header::AUTHORIZATION).cloned();
        let given = authorization.as_ref().map(HeaderValue::as_bytes);
        let routing = self.app.routing();
        if !route.open() && !routing.secrets.admit_admin(given) {
            return refuse(&ApiError::Unauthorized);
        }
        // With a token configured, `Authorization` is for us and not for the engines.
        let for_engines = authorization.filter(|_| !routing.secrets.guards_admin());
        match route {
            Route::Metrics => reply(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                self.app.render_metrics(),
            ),
            Route::Alive => reply(200, "application/json", Vec::new()),
            Route::Ready => match self.app.unready() {
                None => json_reply(200, &json!({"ready": true})),
                Some(reason) => json_reply(503, &json!({"ready": false, "reason": reason})),
            },
            Route::State => json_reply(200, &state_view::state(&self.app)),
            Route::Reload => self.reload().await,
            Route::FlushCache => {
                self.fan_out("/flush_cache", Bytes::new(), for_engines)
                    .await
            }
            Route::Explain => {
                let (headers, show_prompt) = explained(session.req_header());
                let limit = routing.config.limits.max_body;
                match read_body(session, usize::try_from(limit).unwrap_or(usize::MAX)).await {
                    Ok(body) => self.explain(&routing, &headers, body, show_prompt).await,
                    // What a real request would get is the answer, not a failure of this call.
                    Err(refusal @ ApiError::PayloadTooLarge) => {
                        json_reply(200, &json!(Explained::refused(None, &refusal)))
                    }
                    Err(refusal) => refuse(&refusal),
                }
            }
            Route::AbortRequest => match read_body(session, MAX_BODY).await {
                Ok(body) => self.fan_out("/abort_request", body, for_engines).await,
                Err(refusal) => refuse(&refusal),
            },
        }
    }

    /// Explains a chat body against the live state, dispatching nothing.
    async fn explain(
        &self,
        routing: &Routing,
        headers: &HeaderMap,
        body: Bytes,
        show_prompt: bool,
    ) -> Reply {
        let subject = Subject {
            routing,
            loads: &self.app.services.loads,
            pool: &self.app.pool,
            show_prompt,
        };
        let explained = explain::explain(subject, headers, body).await;
        json_reply(200, &json!(explained))
    }

    async fn fan_out(&self, path: &str, body: Bytes, authorization: Option<HeaderValue>) -> Reply {
        let (status, answer) =
            fanout::call(&self.app, &self.engines, path, body, authorization).await;
        json_reply(status, &answer)
    }

    async fn reload(&self) -> Reply {
        let Some(reloader) = self.reloader.clone() else {
            return json_reply(
                422,
                &json!({"problems": ["this process was not started from a file"]}),
            );
        };
        let app = Arc::clone(&self.app);
        let work = tokio::task::spawn_blocking(move || reloader.reload(&app));
        match work.await {
            Ok(Ok(reloaded)) => json_reply(
                200,
                &json!({"generation": reloaded.generation, "needs_restart": reloaded.needs_restart}),
            ),
            Ok(Err(problems)) => json_reply(422, &json!({"problems": problems})),
            Err(_) => refuse(&ApiError::Internal),
        }
    }
}

/// Names of request headers that travel inside names of admin headers: contract §4.
const EXPLAINED_HEADER: &str = "x-edge-header-";

/// The headers of the request to be explained, and whether its prompt is to be shown.
fn explained(head: &RequestHeader) -> (HeaderMap, bool) {
    let inner = |name: &HeaderName| {
        let name = name.as_str().strip_prefix(EXPLAINED_HEADER)?;
        HeaderName::try_from(name).ok()
    };
    let mut headers = HeaderMap::new();
    for (name, value) in &head.headers {
        if let Some(name) = inner(name) {
            headers.append(name, value.clone());
        }
    }
    let query = head.uri.query().unwrap_or_default();
    let show_prompt = query.split('&').any(|pair| pair == "prompt=true");
    (headers, show_prompt)
}

/// Largest body of an admin call, bytes.
const MAX_BODY: usize = 64 * 1024;

/// The whole body of an admin call.
async fn read_body(session: &mut ServerSession, limit: usize) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(piece)) if body.len() + piece.len() <= limit => {
                body.extend_from_slice(&piece);
            }
            Ok(Some(_)) => return Err(ApiError::PayloadTooLarge),
            Ok(None) => return Ok(body.freeze()),
            Err(_) => return Err(ApiError::bad_request("invalid request: the body is cut")),
        }
    }
}

type Reply = Response<Vec<u8>>;

fn reply(status: u16, content_type: &str, body: Vec<u8>) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let length = reply.body().len();
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    if let Ok(value) = content_type.parse() {
        headers.insert(header::CONTENT_TYPE, value);
    }
    reply
}

fn json_reply(status: u16, value: &serde_json::Value) -> Reply {
    reply(status, "application/json", value.to_string().into_bytes())
}

fn refuse(error: &ApiError) -> Reply {
    let mut refusal = reply(error.status(), "application/json", error.body().to_vec());
    let headers = refusal.headers_mut();
    headers.insert(
        "x-router-error-code",
        HeaderValue::from_static(error.code()),
    );
    if *error == ApiError::Unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let ApiError::MethodNotAllowed(allowed) = error {
        headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
    }
    refusal
}

#[async_trait]
impl ServeHttp for AdminApp {
    async fn response(&self, session: &mut ServerSession) -> Reply {
        self.answer(session).await
    }
}
