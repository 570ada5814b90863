//! `sgl-edge demo`: a fleet of mock engines and the configuration of a proxy in front of it.
//!
//! Four plain engines serve the model `demo`, two prefill and two decode engines serve `demo-pd`,
//! all inside this process on free loopback ports; each model has buckets of three lengths. The
//! configuration is an ordinary file's text, so what the demo shows is what a file does.

pub mod tokenizer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::config;
use crate::mock::{self, EngineConfig, MockTokenizer, Role};
use crate::policies::PolicyServices;
use crate::server::reload;
use crate::server::routing::Routing;

/// Arguments of `sgl-edge demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Address of the proxy.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Address of metrics, state and probes.
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "ADDR")]
    pub admin_listen: SocketAddr,
    /// Tokenizer of both models, a directory or a tokenizer.json.
    #[arg(long, default_value = "conf/tokenizers/demo", value_name = "PATH")]
    pub tokenizer: PathBuf,
}

/// One running mock engine.
#[derive(Debug, Clone)]
struct DemoEngine {
    id: String,
    model: &'static str,
    url: String,
    role: Role,
    bootstrap_port: u16,
}

/// The running fleet.
#[derive(Debug)]
pub struct Demo {
    args: DemoArgs,
    engines: Vec<DemoEngine>,
}

/// Tokens per page of the engines' caches: small, so that short chats show something.
const PAGE: u32 = 16;

/// Id, model and role of every engine.
const FLEET: [(&str, &str, Role); 8] = [
    ("demo-1", "demo", Role::Plain),
    ("demo-2", "demo", Role::Plain),
    ("demo-3", "demo", Role::Plain),
    ("demo-4", "demo", Role::Plain),
    ("prefill-1", "demo-pd", Role::Prefill),
    ("prefill-2", "demo-pd", Role::Prefill),
    ("decode-1", "demo-pd", Role::Decode),
    ("decode-2", "demo-pd", Role::Decode),
];

impl Demo {
    /// Starts the engines on a runtime of their own, which lives as long as the process.
    ///
    /// # Errors
    /// An engine cannot listen.
    pub fn start(args: &DemoArgs) -> Result<Self, String> {
        let tokenizer = tokenizer::load(&find(&args.tokenizer))?;
        let (started, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("demo-fleet".to_owned());
        thread
            .spawn(move || run_fleet(&started, &tokenizer))
            .map_err(|error| error.to_string())?;
        let engines = wait
            .recv()
            .map_err(|_| "the demo engines did not start".to_owned())??;
        Ok(Self {
            args: args.clone(),
            engines,
        })
    }

    /// Routing over the fleet.
    ///
    /// # Errors
    /// Every problem, one line each; a missing tokenizer, for example.
    pub fn routing(&self, services: &PolicyServices) -> Result<Routing, Vec<String>> {
        let config = config::parse(&self.configuration(), "demo").map_err(|errors| {
            errors
                .to_string()
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })?;
        reload::build(config, services, None)
    }

    /// The configuration file that means the same.
    #[must_use]
    pub fn configuration(&self) -> String {
        let plain =
            |id: &str, max: Option<u64>, context: Option<u64>, members: Value, policy: Value| {
                json!({
                    "id": id, "limits": {"min": 0, "max": max}, "max_context_tokens": context,
                    "groups": {"plain": {"worker_ids": members, "policy": policy}},
                })
            };
        let cache_aware = json!({"type": "cache_aware", "min_matched_tokens": PAGE});
        let pd = |id: &str, max: Option<u64>, context: Option<u64>, members: [Value; 2]| {
            let [prefill, decode] = members;
            json!({
                "id": id, "limits": {"min": 0, "max": max}, "max_context_tokens": context,
                "groups": {"pd": {
                    "prefill": {"worker_ids": prefill, "policy": cache_aware},
                    "decode": {"worker_ids": decode, "policy": {"type": "power_of_two"}},
                }},
            })
        };
        config::to_yaml(&json!({
            "listen": [self.args.listen],
            "admin": {"listen": self.args.admin_listen},
            "response_headers": true,
            "shutdown": {"drain": "0s", "grace": "5s"},
            "models": [
                self.model("demo", &[
                    plain("short", Some(256), Some(2048), json!(["demo-1", "demo-2"]), cache_aware.clone()),
                    plain("medium", Some(4096), Some(8192), json!(["demo-3"]), json!({"type": "round_robin"})),
                    plain("long", None, None, json!(["demo-4"]), json!({"type": "random"})),
                ]),
                self.model("demo-pd", &[
                    pd("pd-short", Some(256), Some(2048), [json!(["prefill-1"]), json!(["decode-1"])]),
                    pd("pd-medium", Some(4096), Some(8192), [json!(["prefill-2"]), json!(["decode-2"])]),
                    pd("pd-long", None, None, [Value::Null, Value::Null]),
                ]),
            ],
        }))
    }

    fn model(&self, id: &str, buckets: &[Value]) -> Value {
        let engines = self.engines.iter().filter(|engine| engine.model == id);
        let engines = engines.map(|engine| {
            let port = (engine.role == Role::Prefill).then_some(engine.bootstrap_port);
            json!({
                "id": engine.id, "url": engine.url, "role": engine.role.as_str(),
                "bootstrap_port": port,
            })
        });
        json!({
            "id": id,
            "tokenizer": find(&self.args.tokenizer),
            "engines": {"static": engines.collect::<Vec<_>>()},
            "buckets": buckets,
        })
    }

    /// What to try.
    #[must_use]
    pub fn introduction(&self) -> String {
        let (listen, admin) = (self.args.listen, self.args.admin_listen);
        let mut text =
            String::from("sgl-edge demo: eight mock engines and a proxy, all on this machine\n");
        for engine in &self.engines {
            let line = format!(
                "  {:<10} {:<8} {}\n",
                engine.id,
                engine.role.as_str(),
                engine.url
            );
            text.push_str(&line);
        }
        text + &format!(
            r#"
Try (Ctrl-C ends it; see the x-edge-… headers of each answer):
  curl -i http://{listen}/v1/chat/completions -H 'content-type: application/json' -d '{{"model":"demo","messages":[{{"role":"user","content":"Hello there"}}]}}'
  curl -iN http://{listen}/v1/chat/completions -H 'content-type: application/json' -d '{{"model":"demo-pd","stream":true,"messages":[{{"role":"user","content":"Hello there"}}]}}'
  curl -i http://{listen}/v1/chat/completions -H 'content-type: application/json' -d '{{"model":"demo","max_tokens":4000,"messages":[{{"role":"user","content":"Hello there"}}]}}'
  curl http://{listen}/v1/models
  curl http://{admin}/admin/state
  curl http://{admin}/metrics

"#
        )
    }
}

/// A relative path from here, or from a folder above the program (`target/release/sgl-edge`).
fn find(path: &Path) -> PathBuf {
    if path.exists() {
        return path.to_owned();
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program
        .ancestors()
        .skip(1)
        .take(4)
        .map(|folder| folder.join(path));
    beside
        .into_iter()
        .find(|candidate| candidate.exists())
        .unwrap_or_else(|| path.to_owned())
}

type Started = Result<Vec<DemoEngine>, String>;

fn run_fleet(started: &mpsc::Sender<Started>, tokenizer: &Arc<dyn MockTokenizer>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            // The other end is waiting for exactly this.
            let _ = started.send(Err(error.to_string()));
            return;
        }
    };
    runtime.block_on(async {
        let mut running = Vec::new();
        for (id, model, role) in FLEET {
            match mock::start(engine_config(id, model, role, tokenizer)).await {
                Ok(engine) => running.push((engine, model, role)),
                Err(error) => {
                    let _ = started.send(Err(format!("{id}: {error}")));
                    return;
                }
            }
        }
        let engines = running.iter().map(|(engine, model, role)| DemoEngine {
            model,
            id: engine.name().to_owned(),
            url: engine.url(),
            role: *role,
            bootstrap_port: engine.bootstrap_port(),
        });
        let _ = started.send(Ok(engines.collect()));
        std::future::pending::<()>().await;
    });
}

fn engine_config(
    id: &str,
    model: &str,
    role: Role,
    tokenizer: &Arc<dyn MockTokenizer>,
) -> EngineConfig {
    // A decode engine gets its cache from prefill engines and announces nothing.
    let port = (role != Role::Decode).then_some(0);
    EngineConfig {
        name: id.to_owned(),
        model: model.to_owned(),
        role,
        bootstrap_port: 0,
        reply_tokens: 64,
        ttft: Duration::from_millis(20),
        token_interval: Duration::from_millis(10),
        page_size: PAGE,
        kv_port: port,
        kv_replay_port: port,
        cache_report: true,
        tokenizer: Some(Arc::clone(tokenizer)),
        ..EngineConfig::default()
    }
}
