//! The JSON of answers, field for field and in the order of engine-wire §4.1.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

/// Token id reported as the reason to stop.
const END_OF_TURN: u32 = 2;

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
    Abort,
}

impl Finish {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Abort => "abort",
        }
    }

    fn matched_stop(self) -> Option<u32> {
        (self == Self::Stop).then_some(END_OF_TURN)
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    /// Prompt tokens that were in the cache, where the engine reports them.
    pub(crate) cached: Option<u64>,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": self.cached.map(|cached| json!({"cached_tokens": cached})),
            "reasoning_tokens": 0,
            "completion_tokens_details": null,
        })
    }
}

/// What every chunk and every answer of one request repeats.
#[derive(Debug)]
pub(crate) struct Envelope {
    id: String,
    model: String,
    created: u64,
    /// Function called, if the answer is a tool call.
    tool: Option<String>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "str::is_empty")]
    mock_padding: &'a str,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: (),
    finish_reason: Option<&'static str>,
    matched_stop: Option<u32>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    reasoning_content: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Value>,
}

impl Envelope {
    pub(crate) fn new(id: String, model: String, tool: Option<String>) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            id,
            model,
            created: since_epoch.map_or(0, |since| since.as_secs()),
            tool,
        }
    }

    /// The chunk that opens a choice.
    pub(crate) fn role_chunk(&self, index: u32, padding: &str) -> Bytes {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
            ..Delta::default()
        };
        self.chunk(&[choice(index, delta, None)], None, padding)
    }

    /// The chunk of one token; `is_first` for the first of its choice.
    pub(crate) fn token_chunk(
        &self,
        index: u32,
        token: &str,
        is_first: bool,
        usage: Option<Usage>,
    ) -> Bytes {
        let mut delta = Delta::default();
        match &self.tool {
            None => delta.content = Some(token),
            Some(name) if is_first => {
                delta.tool_calls = Some(json!([self.call(index, name, token)]))
            }
            Some(_) => {
                delta.tool_calls = Some(json!([{
                    "id": null, "index": 0, "type": "function",
                    "function": {"name": null, "arguments": token},
                }]));
            }
        }
        self.chunk(&[choice(index, delta, None)], usage, "")
    }

    /// The chunk that closes a choice.
    pub(crate) fn finish_chunk(&self, index: u32, finish: Finish) -> Bytes {
        self.chunk(&[choice(index, Delta::default(), Some(finish))], None, "")
    }

    /// The chunk after the last choice, for `include_usage`.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Bytes {
        self.chunk(&[], Some(usage), "")
    }

    /// The whole answer of a request without `stream`.
    pub(crate) fn completion(
        &self,
        n: u32,
        content: &str,
        finish: Finish,
        usage: Usage,
        padding: &str,
    ) -> String {
        let choices: Vec<Value> = (0..n)
            .map(|index| {
                let calls = self
                    .tool
                    .as_ref()
                    .map(|name| json!([self.call(index, name, content)]));
                let content = self.tool.is_none().then_some(content);
                json!({
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": content,
                        "reasoning_content": null,
                        "tool_calls": calls,
                    },
                    "logprobs": null,
                    "finish_reason": finish.as_str(),
                    "matched_stop": finish.matched_stop(),
                })
            })
            .collect();
        let mut answer = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage.to_json(),
            "metadata": {"weight_version": "default"},
        });
        if !padding.is_empty() {
            answer["metadata"]["mock_padding"] = Value::from(padding);
        }
        answer.to_string()
    }

    /// A tool call; its id follows from the request's.
    fn call(&self, index: u32, name: &str, arguments: &str) -> Value {
        let hash = crate::mock::record::fnv64(format!("{}/{index}", self.id).as_bytes());
        json!({
            "id": format!("call_{hash:024x}"),
            "index": 0,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        })
    }

    fn chunk(&self, choices: &[ChunkChoice<'_>], usage: Option<Usage>, padding: &str) -> Bytes {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: usage.map(Usage::to_json),
            mock_padding: padding,
        };
        event(&serde_json::to_string(&chunk).expect("plain data is always JSON"))
    }
}

fn choice(index: u32, delta: Delta<'_>, finish: Option<Finish>) -> ChunkChoice<'_> {
    ChunkChoice {
        index,
        delta,
        logprobs: (),
        finish_reason: finish.map(Finish::as_str),
        matched_stop: finish.and_then(Finish::matched_stop),
    }
}

/// One server-sent event.
pub(crate) fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// The event after the last one.
pub(crate) fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}
