//! The admin listener: metrics, probes, state, reload. Local by default.
//!
//! Runs on a runtime of its own, so that probes answer while the data listener is busy. With a
//! token configured, everything except metrics and probes needs it. Source: contract §4.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, Response, StatusCode, header};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use serde_json::json;

use crate::server::ApiError;
use crate::server::app::App;
use crate::server::reload::Reloader;
use crate::server::state_view;

/// Serves the admin routes.
#[derive(Debug)]
pub struct AdminApp {
    app: Arc<App>,
    reloader: Option<Arc<Reloader>>,
}

impl AdminApp {
    /// `reloader` is absent when there is no file to read again (the demo).
    #[must_use]
    pub const fn new(app: Arc<App>, reloader: Option<Arc<Reloader>>) -> Self {
        Self { app, reloader }
    }

    async fn answer(&self, method: &Method, path: &str, authorization: Option<&[u8]>) -> Reply {
        let allowed = match path {
            "/metrics" | "/healthz" | "/readyz" | "/admin/state" => Method::GET,
            "/admin/reload" => Method::POST,
            _ => return refuse(&ApiError::NotFound),
        };
        if method != allowed {
            let listed = if allowed == Method::GET {
                "GET"
            } else {
                "POST"
            };
            return refuse(&ApiError::MethodNotAllowed(listed));
        }
        let open = matches!(path, "/metrics" | "/healthz" | "/readyz");
        if !open && !self.app.routing().secrets.admit_admin(authorization) {
            return refuse(&ApiError::Unauthorized);
        }
        match path {
            "/metrics" => reply(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                self.app.render_metrics(),
            ),
            "/healthz" => reply(200, "application/json", Vec::new()),
            "/readyz" => match self.app.unready() {
                None => json_reply(200, &json!({"ready": true})),
                Some(reason) => json_reply(503, &json!({"ready": false, "reason": reason})),
            },
            "/admin/state" => json_reply(200, &state_view::state(&self.app)),
            _ => self.reload().await,
        }
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
        header::HeaderValue::from_static(error.code()),
    );
    if let ApiError::MethodNotAllowed(allowed) = error {
        headers.insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    }
    refusal
}

#[async_trait]
impl ServeHttp for AdminApp {
    async fn response(&self, session: &mut ServerSession) -> Reply {
        let head = session.req_header();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let authorization = head
            .headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes().to_vec());
        self.answer(&method, &path, authorization.as_deref()).await
    }
}
