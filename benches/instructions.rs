//! The hot parts, each a number of times inside one marked function, for whoever counts instructions:
//! `docker/instructions.sh` runs this under callgrind. It measures no time itself.
//!
//! `instructions all`, or the names of parts, prints a line `PART TIMES` for each as it is done;
//! without arguments it lists the parts, which is what `cargo bench` gets to see. What the proxy does
//! to headers is private to the library and not among them.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderMap;
use serde_json::{Value, json};
use sgl_edge::config;
use sgl_edge::kv::{BlockFormat, BlockUnit, KvEvent, Medium, Tier, block_hashes};
use sgl_edge::policies::{PolicyServices, SeededDraw};
use sgl_edge::server::chat_body;
use sgl_edge::server::metrics::Metrics;
use sgl_edge::server::pool::WorkPool;
use sgl_edge::server::prepare::{Counting, Prepared, prepare};
use sgl_edge::server::routing::Routing;
use sgl_edge::server::select::select;
use sgl_edge::server::sse::StreamWatch;
use sgl_edge::state::prefix::PrefixIndex;

const TEXT: &str = "All human beings are born free and equal in dignity and rights. They are \
endowed with reason and conscience and should act towards one another in a spirit of brotherhood. ";

/// Something hot, ready to be done again and again.
type Work = Box<dyn FnMut()>;

/// Name, how often it is done, and how it is made ready.
type Part = (&'static str, u32, fn() -> Work);

const PARTS: [Part; 10] = [
    ("routing_pass_300b", 100, || routing_pass(300)),
    ("routing_pass_8k", 100, || routing_pass(8 << 10)),
    ("prepare_uncounted_300b", 100, || {
        prepare_uncounted("m", 300)
    }),
    ("prepare_uncounted_8k", 100, || {
        prepare_uncounted("m", 8 << 10)
    }),
    ("prepare_bounded_3k", 50, || {
        prepare_uncounted("far", 3 << 10)
    }),
    ("select_capped_4", 100, || select_capped(4)),
    ("select_capped_1024", 20, || select_capped(1024)),
    ("stream_watch_32_events", 100, stream_watch),
    ("hash_4096_tokens", 5, hash),
    ("prefix_lookup_64_blocks", 100, prefix_lookup),
];

/// Callgrind counts what happens in here and nowhere else; found by its name.
#[inline(never)]
fn counted_part(times: u32, work: &mut dyn FnMut()) {
    for _ in 0..times {
        work();
    }
}

/// Callgrind writes down what it has counted, when this is entered. It does one thing per function.
#[inline(never)]
fn part_finished(name: &str) {
    println!("{}", black_box(name));
}

fn main() {
    let arguments = std::env::args().skip(1);
    let asked: Vec<String> = arguments.filter(|word| word != "--bench").collect();
    for (name, times, make) in PARTS {
        if !asked.iter().any(|word| word == "all" || word == name) {
            println!("{name}");
            continue;
        }
        let mut work = make();
        // Caches of the process fill outside.
        work();
        counted_part(times, &mut work);
        part_finished(&format!("{name} {times}"));
    }
}

fn body(model: &str, bytes: usize) -> Bytes {
    let rest = r#""max_tokens":100,"messages":[{"role":"user","content":""#;
    let head = format!(r#"{{"model":"{model}",{rest}"#);
    let tail = r#""}],"stream":true}"#;
    let text = TEXT.repeat(bytes / TEXT.len() + 1);
    let room = bytes.saturating_sub(head.len() + tail.len());
    format!("{head}{}{tail}", &text[..room]).into()
}

fn routing_pass(bytes: usize) -> Work {
    let body = body("m", bytes);
    Box::new(move || {
        black_box(chat_body::parse(black_box(&body)).expect("a valid body"));
    })
}

/// A router without its wire.
struct Router {
    routing: Routing,
    metrics: Arc<Metrics>,
    pool: WorkPool,
}

impl Router {
    /// Models with these names, `engines` engines each, and these further lines of configuration.
    fn new<const N: usize>(engines: usize, models: [(&str, &str); N]) -> Self {
        let models = models.map(|(name, more)| Self::model(name, engines, more));
        let yaml = format!("models:\n{}", models.concat());
        let config = config::parse(&yaml, "bench.yaml").expect("a valid configuration");
        let services = PolicyServices {
            draw: Arc::new(SeededDraw::new(1)),
            ..PolicyServices::new(Arc::default())
        };
        Self {
            routing: Routing::build(Arc::new(config), &services, None).expect("it can be built"),
            metrics: Arc::default(),
            pool: WorkPool::new(1),
        }
    }

    fn model(name: &str, engines: usize, more: &str) -> String {
        let engines = (0..engines).map(|n| {
            let url = format!("http://10.0.{}.{}:30000", n / 256, n % 256);
            format!("        - {{id: {name}-{n:04}, url: \"{url}\", role: plain}}\n")
        });
        let engines: String = engines.collect();
        format!("  - id: {name}\n{more}    engines:\n      static:\n{engines}")
    }

    fn prepare(&self, body: Bytes, headers: &HeaderMap) -> Prepared {
        let prepared = prepare(
            &self.routing,
            &self.pool,
            &self.metrics,
            headers,
            body,
            Counting::AsNeeded,
        );
        let prepared = prepared.now_or_never().expect("nothing to wait for");
        prepared.expect("a valid request")
    }
}

/// A byte-level tokenizer that knows bytes only: small, but of the kind that tells lengths by bytes.
fn tokenizer() -> PathBuf {
    let printable = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff);
    let bytes = printable.chain(0x100..0x144).filter_map(char::from_u32);
    let vocabulary: serde_json::Map<String, Value> = bytes
        .enumerate()
        .map(|(id, byte)| (byte.to_string(), id.into()))
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    std::fs::create_dir_all(&folder).expect("a folder for the build");
    let write = |name: &str, value: Value| {
        std::fs::write(folder.join(name), value.to_string()).expect("a file for the build");
    };
    write("tokenizer.json", tokenizer);
    write("tokenizer_config.json", json!({"chat_template": template}));
    folder
}

/// The whole preparation where the count of the prompt changes nothing: for the model `m` without
/// limits at first sight, for `far` with a far one after rendering.
fn prepare_uncounted(model: &str, bytes: usize) -> Work {
    // Loading a tokenizer proves it, which takes longest of all.
    static ROUTER: LazyLock<Router> = LazyLock::new(|| {
        let tokenizer = format!("    tokenizer: \"{}\"\n", tokenizer().display());
        let limit = "    buckets: [{id: all, max_context_tokens: 131072, groups: {plain: {}}}]\n";
        let router = Router::new(
            4,
            [("m", &tokenizer), ("far", &format!("{tokenizer}{limit}"))],
        );
        // Until it is decided who encodes, longer prompts leave the thread.
        for model in router.routing.models() {
            if let Some(tokenizer) = &model.tokenizer {
                tokenizer.settle();
            }
        }
        router
    });
    let (body, headers) = (body(model, bytes), HeaderMap::new());
    Box::new(move || {
        let prepared = ROUTER.prepare(body.clone(), black_box(&headers));
        assert!(prepared.prompt.skipped, "the count was not needed");
        black_box(prepared);
    })
}

/// The bucket loop over two buckets, of which the second fits, under `power_of_two` with a cap.
fn select_capped(engines: usize) -> Work {
    let buckets = "    buckets:
      - {id: short, limits: {max: 8}, groups: {plain: {policy: {type: round_robin}}}}
      - id: long
        groups:
          plain: {policy: {type: power_of_two, admission: {max_inflight_requests: 64}}}
";
    let router = Router::new(engines, [("m", buckets)]);
    let prepared = router.prepare(body("m", 300), &HeaderMap::new());
    Box::new(move || {
        let selection = select(&prepared, &router.routing.workers, &router.metrics);
        let selection = selection.now_or_never().expect("nothing to wait for");
        black_box(selection.expect("an engine"));
    })
}

/// A stream in chunks of one event.
fn stream_watch() -> Work {
    let event = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"0f8fad5bd9cb469fa16570867728950e\",\"object\":\"chat.completion.chunk\",\
             \"created\":1700000000,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\
             \"logprobs\":null,\"finish_reason\":{finish},\"matched_stop\":null}}],\"usage\":null}}\n\n"
        )
    };
    let mut events = vec![event(r#""role":"assistant","content":"""#, "null")];
    events.extend((0..29).map(|_| event(r#""content":" token""#, "null")));
    events.push(event("", r#""stop""#));
    events.push("data: [DONE]\n\n".to_owned());
    Box::new(move || {
        let mut watch = StreamWatch::default();
        for event in &events {
            black_box(watch.scan(event.as_bytes()));
        }
        assert!(watch.token() && watch.error().is_none(), "text, no error");
    })
}

fn hash() -> Work {
    let ids: Vec<u32> = (0..4096).map(|at| at * 7 % 65_000).collect();
    let format = BlockFormat::new(64, BlockUnit::Unigram).expect("a size above 0");
    Box::new(move || {
        black_box(block_hashes(black_box(&ids), format, None));
    })
}

/// 64 engines that share 16 blocks and hold 48 of their own each.
fn prefix_lookup() -> Work {
    let index = PrefixIndex::default();
    let names = |engine: i64| -> Vec<i64> {
        let name = |block| {
            if block < 16 {
                block
            } else {
                engine * 1000 + block
            }
        };
        (0..64).map(|block| name(block) + 1).collect()
    };
    for engine in 0..64 {
        let stored = KvEvent::Stored {
            hashes: names(engine),
            parent: None,
            block_size: 64,
            medium: Medium::Known(Tier::Device),
        };
        index.apply(&format!("http://10.0.0.{engine}:30000"), 0, 64, &[stored]);
    }
    let query = names(7);
    Box::new(move || {
        black_box(index.lookup(black_box(&query)).by_engine());
    })
}
