//! Asking engines what they can do: `GET /server_info`.
//!
//! Today one answer matters: whether an engine speaks HTTP/2 on its cleartext port
//! (`enable_http2`), which must never be assumed. Nothing waits for it; until an engine has
//! answered it is spoken to over HTTP/1.1. Asked when an engine appears, three times on network
//! errors and 5xx, again every 30 s while unresolved; a 4xx or an answer that is not JSON is final.
//! Source: engine-wire §1.3, §4, http-and-operations §13.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::services::background::BackgroundService;
use pingora::{Error, ErrorType, Result};
use serde::Deserialize;
use tokio::time::Instant;

use crate::proxy::engine_call::{self, EngineClient};
use crate::proxy::peer;
use crate::server::app::App;
use crate::workers::Worker;

/// For one answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Pauses between the three attempts.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];
/// Until an engine that gave no answer is asked again.
const AGAIN: Duration = Duration::from_secs(30);
/// How often new engines are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Engines asked at the same time.
const AT_ONCE: usize = 32;
/// Largest answer that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Asks every engine of the active routing.
pub(crate) struct Introspection {
    app: Arc<App>,
    engines: EngineClient,
}

/// The keys that are read of `/server_info`.
#[derive(Debug, Deserialize)]
struct ServerInfo {
    #[serde(default)]
    enable_http2: bool,
}

/// What came of asking.
enum Answer {
    Info(ServerInfo),
    /// It will not answer otherwise.
    Final,
    /// It may answer later.
    Later,
}

impl Introspection {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            engines: EngineClient::new(&ServerConf::default()),
        }
    }

    async fn pass(&self) {
        let now = Instant::now();
        let engines = self.app.routing().workers.members().all();
        let due = engines
            .into_iter()
            .filter(|engine| engine.introspection().due(now));
        stream::iter(due)
            .for_each_concurrent(AT_ONCE, |engine| async move {
                match self.ask(&engine).await {
                    Answer::Info(info) => engine.introspection().resolved(info.enable_http2),
                    Answer::Final => engine.introspection().resolved(false),
                    Answer::Later => engine.introspection().ask_again(Instant::now() + AGAIN),
                }
            })
            .await;
    }

    async fn ask(&self, engine: &Worker) -> Answer {
        for pause in BACK_OFF.iter().map(Some).chain([None]) {
            match tokio::time::timeout(LIMIT, self.once(engine)).await {
                Ok(Ok((200, body))) => {
                    return serde_json::from_slice(&body).map_or(Answer::Final, Answer::Info);
                }
                // A key may be put right on either side.
                Ok(Ok((status @ (401 | 403), _))) => {
                    tracing::warn!(
                        engine = %engine.id(),
                        status,
                        "the engine refuses /server_info: engines.api_key_file names the key it wants"
                    );
                    return Answer::Later;
                }
                Ok(Ok((400..=499, _))) => return Answer::Final,
                Ok(Ok(_) | Err(_)) | Err(_) => {}
            }
            if let Some(pause) = pause {
                tokio::time::sleep(*pause).await;
            }
        }
        tracing::debug!(engine = %engine.id(), "no answer to /server_info; asked again later");
        Answer::Later
    }

    async fn once(&self, engine: &Worker) -> Result<(u16, Vec<u8>)> {
        let routing = self.app.routing();
        let peer = peer::http1(engine, &routing.config.timeouts)?;
        let head = engine_call::head("GET", "/server_info", engine, &routing.secrets, None, None)?;
        let mut call = self.engines.open(&peer).await?;
        call.request(head, bytes::Bytes::new()).await?;
        let status = call.answer_head().await?.status.as_u16();
        let mut body = Vec::new();
        while let Some(piece) = call.piece().await? {
            if body.len() + piece.len() > MAX_ANSWER {
                return Err(Error::new_up(ErrorType::ReadError));
            }
            body.extend_from_slice(&piece);
        }
        self.engines.release(call, &peer).await;
        Ok((status, body))
    }
}

#[async_trait]
impl BackgroundService for Introspection {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                () = self.pass() => {}
                _ = shutdown.changed() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}
