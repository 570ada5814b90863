//! What can be made to go wrong, and the handle that switches it while the engine runs.
//!
//! One structure serves four entrances: [`EngineConfig::faults`](super::EngineConfig), the
//! command line (`--fault key=value`), `POST /mock/faults` (JSON merge patch) and the request
//! header `x-sgl-mock-<key>`. An unknown key or a value of the wrong type is an error at each of
//! them: a misspelt fault must not pass for a healthy engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;

/// Prefix of the headers that set a fault for one request.
pub(crate) const HEADER_PREFIX: &str = "x-sgl-mock-";
/// Header that restricts the other fault headers to engines of this role or name, because a
/// router hands one set of headers to both legs of a PD request.
const HEADER_FOR: &str = "x-sgl-mock-for";

/// Faults of one engine; the default is none.
///
/// "After N tokens" counts the tokens of one choice. Where a request is not streamed, a cut or a
/// reset happens in the middle of the JSON body.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// The next this many chat requests meet the faults, later ones none. `None` = all of them.
    /// Does not count for `health`, `health_delay_ms`, `refuse_*`, `close_idle_after_ms`, `load_*`
    /// and `kv_*`.
    pub times: Option<u32>,
    /// Answer every chat request with this status and a flat error body.
    pub status: Option<u16>,
    /// Wait this long before that answer, milliseconds.
    pub status_delay_ms: u64,
    /// Time to first token instead of the configured one, milliseconds.
    pub ttft_ms: Option<u64>,
    /// Time between tokens instead of the configured one, milliseconds.
    pub interval_ms: Option<u64>,
    /// Produce exactly this many tokens, repeating the text when it is too short.
    pub tokens: Option<u32>,
    /// Never answer.
    pub stall_before_headers: bool,
    /// Fall silent after this many tokens, connection open.
    pub stall_after_tokens: Option<u32>,
    /// Reset the connection (RST) when the request has been read.
    pub reset_before_headers: bool,
    /// Close the connection (FIN) when the request has been read.
    pub close_before_headers: bool,
    /// Reset the connection after this many tokens.
    pub reset_after_tokens: Option<u32>,
    /// Close after this many tokens, without the last chunk.
    pub cut_after_tokens: Option<u32>,
    /// Send an error event inside the 200 stream after this many tokens, then `[DONE]`.
    /// Not streamed: the real status.
    pub error_event_after_tokens: Option<u32>,
    /// Code of that event; `None` = 503.
    pub error_code: Option<u16>,
    /// Promise more bytes in `content-length` than are sent, then close.
    pub lie_length: bool,
    /// Answer the whole request with 200 and no body.
    pub empty_reply: bool,
    /// Wait this long between the finished work (KV handed over) and the answer, milliseconds.
    pub reply_delay_ms: u64,
    /// Answer with this status instead of the finished answer; a stream gets it instead of its
    /// headers.
    pub late_status: Option<u16>,
    /// Send the headers at once and this many comment lines before the first chunk of a stream.
    pub heartbeats: u32,
    /// Time before each of these comments, milliseconds.
    pub heartbeat_ms: u64,
    /// Pad the answer by this many bytes (outside of what the user reads).
    pub big_reply_bytes: u64,
    /// Headers added to, or replaced in, the chat answer.
    pub reply_headers: BTreeMap<String, String>,
    /// Pause before each piece of the request body is read, milliseconds.
    pub slow_body_read: u64,
    /// Close the connection after the answer without having said `connection: close`.
    pub close_after_response: bool,
    /// Status of the health routes.
    pub health: Option<u16>,
    /// Time `/health` takes instead of the configured one, milliseconds.
    pub health_delay_ms: Option<u64>,
    /// Do not listen. Open connections stay, so the fault can be cleared through one of them.
    pub refuse_connections: bool,
    /// Listen again after this many milliseconds of `refuse_connections`.
    pub refuse_for_ms: Option<u64>,
    /// Close connections that have been idle this long, milliseconds.
    pub close_idle_after_ms: Option<u64>,
    /// Publish no load report.
    pub load_silent: bool,
    /// Publish no load report of this rank.
    pub load_silent_rank: Option<u32>,
    /// Go on publishing the load as it was, whatever happens.
    pub load_frozen: bool,
    /// Count prefill work from zero, as a new process would.
    pub load_reset_counters: bool,
    /// Publish load reports without their extension, as older engines do.
    pub load_basic: bool,
    /// Publish load reports with half of their extension.
    pub load_truncated: bool,
    /// Keep KV event messages off the live socket; they have their numbers and can be replayed.
    pub kv_silent: bool,
    /// Send KV event messages that cannot be read; the replay has the right ones.
    pub kv_garbage: bool,
    /// Write events as arrays, like engines up to 0.5.19.
    pub kv_arrays: bool,
    /// How the replay socket answers.
    pub kv_replay: Replay,
}

/// Shapes of the answers of a replay socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// With the topic, as from 0.5.22 on.
    #[default]
    WithTopic,
    /// Without it, as before.
    WithoutTopic,
    /// Not at all.
    Silent,
}

impl Faults {
    /// Applies a JSON merge patch: keys replace, `null` restores the default.
    ///
    /// # Errors
    /// Names the unknown key or the wrong value; nothing is changed then.
    pub fn merge(&mut self, patch: &Value) -> Result<(), String> {
        let Value::Object(patch) = patch else {
            return Err("expected a JSON object of faults".to_owned());
        };
        let Ok(Value::Object(mut merged)) = serde_json::to_value(&*self) else {
            return Err("the present faults cannot be written as JSON".to_owned());
        };
        for (key, value) in patch {
            if value.is_null() && merged.contains_key(key) {
                merged.remove(key);
            } else {
                merged.insert(key.clone(), value.clone());
            }
        }
        *self = serde_json::from_value(Value::Object(merged)).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Applies one `key=value`; the value is JSON, or else a string.
    ///
    /// # Errors
    /// As [`merge`](Self::merge).
    pub fn set_text(&mut self, key: &str, value: &str) -> Result<(), String> {
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        self.merge(&Value::Object(Map::from_iter([(key.to_owned(), value)])))
            .map_err(|error| format!("fault `{key}`: {error}"))
    }

    /// Applies the fault headers of a request, unless they are meant for another engine.
    pub(crate) fn apply_headers(
        &mut self,
        headers: &HeaderMap,
        aliases: [&str; 2],
    ) -> Result<(), String> {
        if let Some(wanted) = headers.get(HEADER_FOR)
            && !aliases.iter().any(|alias| wanted == *alias)
        {
            return Ok(());
        }
        for (name, value) in headers {
            let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else {
                continue;
            };
            if name != HEADER_FOR {
                let value = value.to_str().map_err(|error| error.to_string())?;
                self.set_text(&key.replace('-', "_"), value)?;
            }
        }
        Ok(())
    }
}

/// Reads and changes the faults of a running engine; clones share them.
#[derive(Debug, Clone)]
pub struct FaultsHandle {
    faults: Arc<watch::Sender<Faults>>,
    listening: Arc<watch::Sender<bool>>,
}

impl FaultsHandle {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            faults: Arc::new(watch::Sender::new(faults)),
            listening: Arc::new(watch::Sender::new(true)),
        }
    }

    /// The faults now.
    #[must_use]
    pub fn get(&self) -> Faults {
        self.faults.borrow().clone()
    }

    /// Replaces all faults.
    pub fn set(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// Changes some faults in one step.
    pub fn update(&self, change: impl FnOnce(&mut Faults)) {
        self.faults.send_modify(change);
    }

    /// Heals the engine.
    pub fn clear(&self) {
        self.set(Faults::default());
    }

    /// Waits until the listener has followed `refuse_connections`, so that a connection made
    /// afterwards is certain to be refused or accepted.
    pub async fn settled(&self) {
        let mut listening = self.listening.subscribe();
        let is_settled = |on: &bool| *on != self.faults.borrow().refuse_connections;
        // The sender is held by `self`, so waiting cannot fail.
        let _ = listening.wait_for(is_settled).await;
    }

    /// Applies a JSON merge patch in one step.
    pub(crate) fn patch(&self, patch: &Value) -> Result<(), String> {
        let mut outcome = Ok(());
        self.faults
            .send_modify(|faults| outcome = faults.merge(patch));
        outcome
    }

    /// The faults for one chat request; uses up one of `times`.
    pub(crate) fn take_for_request(&self) -> Faults {
        let mut taken = Faults::default();
        self.faults.send_if_modified(|faults| {
            match &mut faults.times {
                Some(0) => return false,
                Some(left) => *left -= 1,
                None => {}
            }
            taken = faults.clone();
            false
        });
        taken
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Faults> {
        self.faults.subscribe()
    }

    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.send_replace(listening);
    }
}
