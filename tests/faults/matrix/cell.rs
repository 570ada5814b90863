//! One cell: its engines, its client, what must be seen.

use std::time::Duration;

use serde_json::{Value, json};
use sgl_edge::mock::{Engine, EngineConfig, Faults, Role};

use crate::support::body::{chat, with};
use crate::support::child::Proxy;
use crate::support::client::{Answer, End};
use crate::support::fleet::{engine_with, entry};
use crate::support::h2c::H2Client;

/// Failures in a row that open a breaker, and how often each fault is met.
pub(crate) const ROUNDS: u32 = 3;

/// How long a breaker stays open.
pub(crate) const COOL_DOWN: Duration = Duration::from_secs(5);

/// Which part the faulty engine plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    Plain,
    /// A plain engine that is spoken to over HTTP/2.
    PlainHttp2,
    Prefill,
    Decode,
}

impl Leg {
    /// The role of the faulty engine, and of the other one of a pair.
    pub(crate) const fn roles(self) -> (Role, Option<Role>) {
        match self {
            Self::Plain | Self::PlainHttp2 => (Role::Plain, None),
            Self::Prefill => (Role::Prefill, Some(Role::Decode)),
            Self::Decode => (Role::Decode, Some(Role::Prefill)),
        }
    }
}

/// What the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Http1,
    Http2,
}

/// A combination of everything that does not depend on the fault.
pub(crate) const SHAPES: [(bool, Wire); 4] = [
    (false, Wire::Http1),
    (true, Wire::Http1),
    (false, Wire::Http2),
    (true, Wire::Http2),
];

/// What the client must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// A refusal of this router.
    Refused(u16, &'static str),
    /// A whole answer of an engine.
    Status(u16),
    /// 200 and a body that does not look whole.
    Cut,
    /// The same, or 502 if nothing had been passed on.
    Broken,
    /// Both legs of a pair are silent, and nobody can tell which one is at fault: both are charged.
    Silence,
}

impl Sees {
    #[track_caller]
    pub(crate) fn check(self, answer: &Answer, cell: &str) {
        let found = (answer.status, answer.end, answer.text());
        match self {
            Self::Refused(status, code) => {
                assert_eq!(answer.status, status, "{cell}: {found:?}");
                answer.assert_refusal(status, code);
            }
            Self::Status(status) => {
                assert_eq!(
                    (answer.status, answer.end),
                    (status, End::Clean),
                    "{cell}: {found:?}"
                );
                answer.assert_engine(status);
            }
            Self::Broken if answer.status == 502 => {
                answer.assert_refusal(502, "upstream_body_incomplete");
            }
            Self::Cut | Self::Broken => {
                assert_eq!((answer.status, answer.end), (200, End::Cut), "{cell}");
                let done = answer.text().contains("[DONE]");
                assert!(!(self == Self::Cut && done), "{cell} looks whole");
            }
            Self::Silence => {
                assert_eq!(answer.status, 504, "{cell}: {found:?}");
                answer.assert_refusal(504, "upstream_timeout");
            }
        }
    }
}

/// What one form of the request must lead to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) sees: Sees,
    /// The outcome booked on the faulty engine; `error` opens its breaker, nothing else does.
    pub(crate) outcome: &'static str,
    /// What may be booked on the other leg.
    pub(crate) other: &'static [&'static str],
    /// How the stream is booked, if one began.
    pub(crate) stream_end: Option<&'static str>,
}

/// One fault and what it leads to.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) faults: Faults,
    pub(crate) json: Want,
    pub(crate) stream: Want,
}

/// Engines of one cell behind a model of the same name.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) leg: Leg,
    pub(crate) stream: bool,
    pub(crate) wire: Wire,
    /// The engine that has the fault.
    pub(crate) faulty: Engine,
    /// The other half of a pair.
    pub(crate) other: Option<Engine>,
}

impl Cell {
    pub(crate) async fn new(leg: Leg, name: &str, stream: bool, wire: Wire) -> Self {
        Self::running(u32::MAX, leg, name, stream, wire).await
    }

    /// The same with an engine that works on at most `most` requests at a time.
    pub(crate) async fn running(most: u32, leg: Leg, name: &str, stream: bool, wire: Wire) -> Self {
        let form = if stream { "stream" } else { "json" };
        let name = format!("{name}-{form}-{wire:?}");
        let (faulty, other) = leg.roles();
        let faulty = EngineConfig {
            max_running_requests: most,
            ..config(&format!("{name}-faulty"), faulty, leg)
        };
        let other = other.map(|role| config(&format!("{name}-other"), role, leg));
        Self {
            faulty: start(faulty).await,
            other: match other {
                Some(config) => Some(start(config).await),
                None => None,
            },
            name,
            leg,
            stream,
            wire,
        }
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine> {
        [&self.faulty].into_iter().chain(&self.other)
    }

    /// The model of the configuration.
    pub(crate) fn model(&self) -> Value {
        let (faulty, other) = self.leg.roles();
        let mut entries = vec![entry(&self.faulty, faulty)];
        let pair = self.other.iter().zip(other);
        entries.extend(pair.map(|(engine, role)| entry(engine, role)));
        model(&self.name, &entries)
    }

    /// The same after the faulty engine was killed and started again in its place.
    pub(crate) async fn restarted(self) -> Self {
        let config = EngineConfig {
            listen: self.faulty.addr(),
            bootstrap_port: self.faulty.bootstrap_port(),
            ..config(self.faulty.name(), self.leg.roles().0, self.leg)
        };
        self.faulty.shutdown().await;
        Self {
            faulty: start(config).await,
            ..self
        }
    }

    /// A request for this cell's model.
    pub(crate) fn request(&self) -> Vec<u8> {
        request(&self.name, self.stream)
    }

    /// The refusal of a model whose faulty engine may not be picked.
    pub(crate) const fn without_engine(&self) -> &'static str {
        match self.leg {
            Leg::Plain | Leg::PlainHttp2 => "no_healthy_workers",
            Leg::Prefill => "no_prefill_workers_available",
            Leg::Decode => "no_decode_workers_available",
        }
    }
}

/// A model over these engines.
pub(crate) fn model(name: &str, entries: &[Value]) -> Value {
    let policy = json!({"policy": {"type": "round_robin"}});
    let groups = match entries {
        [_] => json!({"plain": policy}),
        _ => json!({"pd": {"prefill": policy, "decode": policy}}),
    };
    let buckets = json!([{"id": "all", "groups": groups}]);
    json!({"id": name, "engines": {"static": entries}, "buckets": buckets})
}

/// A request of six words for a model.
pub(crate) fn request(model: &str, stream: bool) -> Vec<u8> {
    let body = with(
        chat("one two three four five six"),
        json!({"model": model, "stream": stream}),
    );
    body.to_string().into_bytes()
}

fn config(name: &str, role: Role, leg: Leg) -> EngineConfig {
    EngineConfig {
        name: name.to_owned(),
        role,
        bootstrap_port: 0,
        // A prefill whose decode never comes gives up soon.
        pd_timeout: Duration::from_secs(if role == Role::Prefill { 1 } else { 300 }),
        enable_http2: leg == Leg::PlainHttp2,
        ..EngineConfig::default()
    }
}

async fn start(config: EngineConfig) -> Engine {
    engine_with(&config.name.clone(), config).await
}

/// A client of a cell. HTTP/1.1 comes on a new connection each time, HTTP/2 stays on one.
#[derive(Debug)]
pub(crate) enum Sender {
    Http1,
    Http2(H2Client),
}

impl Sender {
    pub(crate) async fn new(wire: Wire, proxy: &Proxy) -> Self {
        match wire {
            Wire::Http1 => Self::Http1,
            Wire::Http2 => Self::Http2(H2Client::connect(proxy.data).await),
        }
    }

    /// One request; afterwards its connection does what the answer said.
    pub(crate) async fn send(&mut self, proxy: &Proxy, body: &[u8]) -> Answer {
        match self {
            Self::Http1 => {
                let mut client = proxy.client().await;
                let answer = client.chat(body).await;
                match answer.end {
                    End::Clean => client.assert_honest(&answer).await,
                    End::Cut => assert!(client.is_closed().await),
                    End::Unframed => {}
                }
                answer
            }
            Self::Http2(client) => client.chat(body, true).await,
        }
    }
}
