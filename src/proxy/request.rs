//! From a request head to a dispatched selection: the two phases that decide.

use std::os::fd::RawFd;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use crate::buckets::BucketPick;
use crate::config::Timeouts;
use crate::proxy::answer::{self, Answer};
use crate::proxy::body::{self, ReadError};
use crate::proxy::ctx::{BodyState, Dispatch, RequestCtx};
use crate::proxy::prefill::PrefillJob;
use crate::proxy::{EdgeProxy, wire::Wire};
use crate::server::app::App;
use crate::server::dispatch::Leg;
use crate::server::live::{Exchange, ExchangeLimits};
use crate::server::prepare::Counting;
use crate::server::select::{Selection, select};
use crate::server::token_routes::{self, Conversion};
use crate::server::{ApiError, bootstrap, header_facts, models, prepare};

/// The routes that ask a tokenizer.
const TOKENIZE: &str = "/v1/tokenize";
const DETOKENIZE: &str = "/v1/detokenize";

/// Labels of the known routes and their methods.
fn route(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/v1/chat/completions" => Some(("/v1/chat/completions", "POST")),
        TOKENIZE => Some((TOKENIZE, "POST")),
        DETOKENIZE => Some((DETOKENIZE, "POST")),
        "/v1/models" => Some(("/v1/models", "GET")),
        "/healthz" => Some(("/healthz", "GET")),
        "/readyz" => Some(("/readyz", "GET")),
        _ => None,
    }
}

/// Methods collapse to a closed set, so that a client cannot create series.
pub(super) fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        _ => "other",
    }
}

impl EdgeProxy {
    /// Answers what needs no engine; reads, parses and tokenizes a chat. True when answered.
    pub(super) async fn enter(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<bool> {
        let head = session.req_header();
        ctx.method = method_label(&head.method);
        let found = route(head.uri.path());
        if let Some((label, _)) = found {
            ctx.route = label;
        }
        self.app().metrics.request(ctx.route, ctx.method);
        let local = match found {
            _ if lacks_host(session) => Err(ApiError::bad_request("invalid request: no Host")),
            None => Err(ApiError::NotFound),
            Some((_, allowed)) if allowed != ctx.method => Err(ApiError::MethodNotAllowed(allowed)),
            Some(("/healthz", _)) => Ok(Answer::empty(200)),
            Some(("/readyz", _)) => Ok(readiness(self.app())),
            Some((label, _)) if !authorized(session, ctx) => {
                tracing::debug!(route = label, "unauthorized");
                Err(ApiError::Unauthorized)
            }
            Some(("/v1/models", _)) => Ok(Answer::json(200, models::list(&ctx.routing))),
            Some((TOKENIZE, _)) => {
                answered(self.convert(session, ctx, Conversion::Tokenize).await)?
            }
            Some((DETOKENIZE, _)) => {
                answered(self.convert(session, ctx, Conversion::Detokenize).await)?
            }
            Some(_) => match answered(self.take_in(session, ctx).await)? {
                Ok(()) => return Ok(false),
                Err(refusal) => Err(refusal),
            },
        };
        match local {
            Ok(answer) => answer::send(session, ctx, answer).await?,
            Err(refusal) => answer::refuse(session, ctx, refusal).await?,
        }
        Ok(true)
    }

    /// Reads one whole body, within the limits of the router.
    async fn body(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<Bytes, ReadError> {
        let app = self.app();
        let limits = &ctx.routing.config.limits;
        let mut inflight = app.inflight.share();
        if !inflight.grow(1, limits.max_inflight_requests) {
            return Err(ApiError::Overloaded.into());
        }
        ctx.inflight = Some(inflight);
        let mut buffered = app.buffered.share();
        let body = body::read(session, ctx, &mut buffered).await?;
        ctx.buffered = Some(buffered);
        ctx.body_state = body.state;
        ctx.body_bytes = u64::try_from(body.bytes.len()).unwrap_or(u64::MAX);
        Ok(body.bytes)
    }

    /// Answers a question to a tokenizer.
    async fn convert(
        &self,
        session: &mut Session,
        ctx: &mut RequestCtx,
        conversion: Conversion,
    ) -> Result<Answer, ReadError> {
        let body = self.body(session, ctx).await?;
        let (routing, app) = (Arc::clone(&ctx.routing), self.app());
        let answer = token_routes::answer(conversion, routing, &app.pool, body);
        let answer = while_wanted(session, ctx.body_state, answer).await?;
        if ctx.body_state == BodyState::EndUnread {
            body::drain(session).await;
        }
        Ok(Answer::json_text(200, answer?))
    }

    /// Reads and prepares one chat request.
    async fn take_in(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<(), ReadError> {
        let body = self.body(session, ctx).await?;
        let app = self.app();
        let headers = &session.req_header().headers;
        let headers = header_facts::first_values(&ctx.routing.header_names, headers);
        let prepared = prepare::prepare(
            &ctx.routing,
            &app.pool,
            &app.metrics,
            &headers,
            body,
            Counting::AsNeeded,
        );
        match while_wanted(session, ctx.body_state, prepared).await? {
            Ok(prepared) => {
                ctx.prepared = Some(prepared);
                Ok(())
            }
            Err(refusal) => {
                if ctx.body_state == BodyState::EndUnread {
                    body::drain(session).await;
                }
                Err(refusal.into())
            }
        }
    }

    /// Runs the bucket loop and takes what dispatching needs; sends nothing.
    pub(super) async fn select(&self, ctx: &mut RequestCtx) -> Result<(), ApiError> {
        let Some(prepared) = &ctx.prepared else {
            return Err(ApiError::Internal);
        };
        let app = self.app();
        let selection = select(prepared, &ctx.routing.workers, &app.metrics).await?;
        let predicted = selection.predicted_cached_tokens;
        let predicted = predicted.map(|tokens| (tokens, Arc::clone(&app.metrics)));
        let legs = claim(app, prepared, selection)?;
        let limits = exchange_limits(&ctx.routing.config.timeouts, prepared.stream);
        let exchange = Arc::new(Exchange::new(ctx.arrived(), limits));
        // The decode half must be cut when prefill fails, so a pair stays on HTTP/1.1.
        let shared = legs.room.is_none() && legs.main.engine().introspection().http2();
        ctx.dispatch = Some(Dispatch {
            main: legs.main,
            prefill: legs.prefill.map(|(leg, room)| PrefillJob {
                leg,
                body: legs.body.clone(),
                stream: prepared.stream,
                exchange: Arc::clone(&exchange),
                room,
                predicted,
            }),
            prefill_alive: None,
            body: legs.body,
            handed_over: false,
            stream: prepared.stream,
            rid: prepared.rid.clone(),
            shared,
            room: legs.room,
            _listed: app.live.insert(Arc::clone(&exchange)),
            exchange,
            wire: Arc::new(Wire::default()),
            connected_at: None,
            selection: legs.selection,
        });
        Ok(())
    }
}

/// What is to be answered, unless nobody is there to be answered.
fn answered<T>(done: Result<T, ReadError>) -> Result<Result<T, ApiError>> {
    match done {
        Ok(done) => Ok(Ok(done)),
        Err(ReadError::Refuse(refusal)) => Ok(Err(refusal)),
        Err(ReadError::Gone(error)) => Err(error),
    }
}

/// Does `work` unless the client leaves meanwhile, which nothing else notices in this phase.
///
/// A chunked request whose end is still unread cannot be watched without taking that end; its
/// client is looked at again once the engine is connected.
async fn while_wanted<T>(
    session: &mut Session,
    state: BodyState,
    work: impl Future<Output = T>,
) -> Result<T, ReadError> {
    if state == BodyState::EndUnread {
        return Ok(work.await);
    }
    tokio::select! {
        biased;
        done = work => Ok(done),
        gone = session.read_body_or_idle(true) => Err(ReadError::Gone(match gone {
            Err(error) => error.into_down(),
            Ok(_) => Error::new_down(ErrorType::ConnectionClosed),
        })),
    }
}

/// The client's socket, when looking at it tells whether the client has closed.
pub(super) fn watchable(session: &Session, state: BodyState) -> Option<RawFd> {
    if state == BodyState::EndUnread {
        return None;
    }
    session.as_http1().map(|http1| http1.stream().id())
}

/// HTTP/1.1 demands a Host (RFC 9112 §3.2).
fn lacks_host(session: &Session) -> bool {
    let head = session.req_header();
    head.version == http::Version::HTTP_11 && !head.headers.contains_key(http::header::HOST)
}

fn authorized(session: &Session, ctx: &RequestCtx) -> bool {
    let given = session.get_header(http::header::AUTHORIZATION);
    ctx.routing
        .secrets
        .admit_client(given.map(|value| value.as_bytes()))
}

pub(super) fn readiness(app: &App) -> Answer {
    match app.unready() {
        None => Answer::json(200, serde_json::json!({"ready": true})),
        Some(reason) => Answer::json(503, serde_json::json!({"ready": false, "reason": reason})),
    }
}

/// Everything taken for one dispatch.
struct Legs {
    selection: Selection,
    main: Leg,
    prefill: Option<(Leg, u64)>,
    room: Option<u64>,
    body: bytes::Bytes,
}

/// Claims breakers and counts for every leg, and makes the one body they share.
fn claim(app: &App, prepared: &prepare::Prepared, selection: Selection) -> Result<Legs, ApiError> {
    let (model, tokens) = (&prepared.model.id, prepared.prompt.input_tokens);
    match &selection.pick {
        BucketPick::Plain(pick) => Ok(Legs {
            main: Leg::claim(&pick.engine, model, tokens, &app.metrics)?,
            prefill: None,
            room: None,
            body: prepared.body.clone(),
            selection,
        }),
        BucketPick::Pd { prefill, decode } => {
            let prefill_leg = Leg::claim(&prefill.engine, model, tokens, &app.metrics)?;
            let main = Leg::claim(&decode.engine, model, 0, &app.metrics)?;
            let room = app.rooms.take();
            Ok(Legs {
                main,
                body: bootstrap::with_bootstrap(&prepared.body, &prefill.engine, room),
                prefill: Some((prefill_leg, room)),
                room: Some(room),
                selection,
            })
        }
    }
}

fn exchange_limits(timeouts: &Timeouts, stream: bool) -> ExchangeLimits {
    ExchangeLimits {
        first_byte: timeouts.first_byte,
        stream_idle: timeouts.stream_idle,
        request: (!stream).then_some(timeouts.request),
        lifetime: timeouts.lifetime,
    }
}
