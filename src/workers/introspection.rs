//! What an engine said of itself, and when it is to be asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ids::Stage;
use crate::workers::Publishers;
use crate::workers::availability;

/// Time a new process gets to come up before it is asked.
const SOON: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
enum Next {
    Now,
    At(Instant),
}

/// What `/server_info` says and a router uses. Default: nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// HTTP/2 with prior knowledge is spoken on its cleartext port.
    pub http2: bool,
    /// Its role; `None` keeps the configured one (engine-wire §3.4).
    pub role: Option<Stage>,
    /// Bootstrap port of a prefill engine, when it is one.
    pub bootstrap_port: Option<u16>,
    /// What it publishes; `None` when it publishes nothing or the block cannot be used.
    pub publishers: Option<Arc<Publishers>>,
    /// Its event hashes are over pairs of tokens (engine-wire §1.8).
    pub bigram: bool,
    /// What is wrong with the `kv_events` block, for the log.
    pub problem: Option<String>,
}

/// The keys that are read of `/server_info`.
#[derive(Debug, Deserialize)]
struct ServerInfo {
    #[serde(default)]
    enable_http2: bool,
    disaggregation_mode: Option<String>,
    disaggregation_bootstrap_port: Option<u16>,
    speculative_algorithm: Option<String>,
    kv_events: Option<serde_json::Value>,
}

impl Facts {
    /// Reads the answer of an engine at `host` (as in its URL, IPv6 in brackets).
    ///
    /// # Errors
    /// The answer is not the JSON object it should be.
    pub fn parse(body: &[u8], host: &str) -> Result<Self, serde_json::Error> {
        let info: ServerInfo = serde_json::from_slice(body)?;
        let (publishers, problem) = match info.kv_events.as_ref() {
            None | Some(serde_json::Value::Null) => (None, None),
            Some(block) => match Publishers::from_server_info(block, host) {
                Ok(publishers) => (Some(Arc::new(publishers)), None),
                Err(problem) => (None, Some(problem)),
            },
        };
        let port = info.disaggregation_bootstrap_port.filter(|port| *port > 0);
        let role = match (info.disaggregation_mode.as_deref(), port) {
            (Some("null"), _) => Some(Stage::Plain),
            (Some("prefill"), Some(_)) => Some(Stage::Prefill),
            (Some("decode"), _) => Some(Stage::Decode),
            (Some(_) | None, _) => None,
        };
        let pairs = ["EAGLE", "EAGLE3", "FROZEN_KV_MTP"];
        Ok(Self {
            http2: info.enable_http2,
            role,
            bootstrap_port: port.filter(|_| role == Some(Stage::Prefill)),
            publishers,
            bigram: info
                .speculative_algorithm
                .is_some_and(|name| pairs.contains(&name.as_str())),
            problem,
        })
    }
}

/// One engine's answer. Shared by every handle of the engine at one address, also across a reload.
#[derive(Debug)]
pub struct Introspection {
    facts: watch::Sender<Arc<Facts>>,
    /// Of the facts, for every request that is sent to it.
    http2: AtomicBool,
    next: Mutex<Next>,
}

impl Default for Introspection {
    fn default() -> Self {
        Self {
            facts: watch::Sender::new(Arc::default()),
            http2: AtomicBool::new(false),
            next: Mutex::new(Next::Now),
        }
    }
}

impl Introspection {
    /// Whether it announced HTTP/2 with prior knowledge on its cleartext port. False until it
    /// says so.
    #[must_use]
    pub fn http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// What it said last; nothing until it has answered.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.borrow())
    }

    /// Follows its answers; woken only when one differs from the last.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.subscribe()
    }

    /// Whether it should be asked at `now`.
    #[must_use]
    pub fn due(&self, now: Instant) -> bool {
        match *self.next.lock() {
            Next::Now => true,
            Next::At(at) => now >= at,
        }
    }

    /// Stores its answer; it is asked again at `next`. True if the answer is a new one.
    pub fn resolved(&self, facts: Facts, next: Instant) -> bool {
        self.http2.store(facts.http2, Ordering::Relaxed);
        self.ask_again(next);
        let new = self.facts.send_if_modified(|known| {
            let new = **known != facts;
            if new {
                *known = Arc::new(facts);
            }
            new
        });
        if new {
            // A prefill engine may have waited for its port.
            availability::changed();
        }
        new
    }

    /// It may have become another process: ask again within a second, but no more often.
    pub fn ask_soon(&self) {
        let soon = Instant::now() + SOON;
        let mut next = self.next.lock();
        if matches!(*next, Next::At(at) if at > soon) {
            *next = Next::At(soon);
        }
    }

    /// It gave no answer, or may have changed; ask again at `at`.
    pub fn ask_again(&self, at: Instant) {
        *self.next.lock() = Next::At(at);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_engine_is_asked_at_once_and_then_when_it_is_due() {
        let (engine, now) = (Introspection::default(), Instant::now());
        assert!(engine.due(now) && !engine.http2());
        engine.ask_again(now + Duration::from_secs(30));
        assert!(!engine.due(now + Duration::from_secs(29)));
        assert!(engine.due(now + Duration::from_secs(30)));
        let facts = Facts {
            http2: true,
            ..Facts::default()
        };
        assert!(engine.resolved(facts, now + MINUTE));
        assert!(!engine.due(now + Duration::from_secs(59)) && engine.due(now + MINUTE));
        assert!(engine.http2());
    }

    #[test]
    fn followers_are_woken_by_a_new_answer_only() {
        let (engine, now) = (Introspection::default(), Instant::now());
        let mut follower = engine.subscribe();
        assert!(!engine.resolved(Facts::default(), now));
        assert!(!follower.has_changed().unwrap());
        let facts = Facts {
            role: Some(Stage::Decode),
            ..Facts::default()
        };
        assert!(engine.resolved(facts.clone(), now));
        assert_eq!(**follower.borrow_and_update(), facts);
        assert!(!engine.resolved(facts, now) && !follower.has_changed().unwrap());
    }

    fn facts(body: &Value) -> Facts {
        Facts::parse(body.to_string().as_bytes(), "10.0.0.1").unwrap()
    }

    #[test]
    fn the_role_is_learned_only_from_a_clear_answer() {
        use Stage::{Decode, Plain, Prefill};
        let rows = [
            (json!({"disaggregation_mode": "null"}), Some(Plain), None),
            (
                json!({"disaggregation_mode": "null", "disaggregation_bootstrap_port": 8998}),
                Some(Plain),
                None,
            ),
            (
                json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}),
                Some(Prefill),
                Some(8998),
            ),
            (json!({"disaggregation_mode": "prefill"}), None, None),
            (json!({"disaggregation_mode": "decode"}), Some(Decode), None),
            (json!({"disaggregation_mode": "other"}), None, None),
            (json!({"disaggregation_mode": null}), None, None),
            (json!({}), None, None),
        ];
        for (body, role, port) in rows {
            let found = facts(&body);
            assert_eq!((found.role, found.bootstrap_port), (role, port), "{body}");
        }
    }

    #[test]
    fn eagle_like_engines_hash_pairs() {
        for (name, pairs) in [("EAGLE", true), ("EAGLE3", true), ("NGRAM", false)] {
            assert_eq!(facts(&json!({"speculative_algorithm": name})).bigram, pairs);
        }
        assert!(!facts(&json!({"speculative_algorithm": null})).bigram);
    }

    #[test]
    fn a_block_that_cannot_be_used_is_told_and_the_rest_of_the_answer_counts() {
        let found = facts(&json!({"enable_http2": true, "kv_events": {"publisher": "zmq"}}));
        assert!(found.http2 && found.publishers.is_none());
        assert!(found.problem.unwrap().contains("endpoint_host"));
        let silent = facts(&json!({"kv_events": null}));
        assert_eq!((silent.publishers, silent.problem), (None, None));
        for body in ["", "[]", "{", "null", "{\"enable_http2\": 3}"] {
            assert!(Facts::parse(body.as_bytes(), "h").is_err(), "{body}");
        }
    }
}
