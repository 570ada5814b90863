//! `mock-engine`: SGLang engines without a model, on a network.
//!
//! Prints one line per engine once all of them listen, and runs until SIGINT or SIGTERM.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sgl_edge::demo::tokenizer;
use sgl_edge::mock::{self, Engine, EngineConfig, Faults, Role, parse_duration};
use tokio::signal::unix::{SignalKind, signal};

/// Serves one or several mock SGLang engines.
#[derive(Debug, Parser)]
#[command(name = "mock-engine", version)]
struct Arguments {
    /// Address to listen on; repeat for several engines. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:30001")]
    listen: Vec<SocketAddr>,
    /// Engines per address, on consecutive ports.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u16,
    /// Name in the header x-mock-engine; the port is added when there are several.
    #[arg(long, default_value = "mock")]
    name: String,
    /// Served model name.
    #[arg(long, default_value = "demo")]
    model: String,
    /// plain, prefill or decode.
    #[arg(long, default_value = "plain")]
    role: Role,
    /// Bootstrap port of a prefill engine; of several, the first of consecutive ports. 0 = free.
    #[arg(long, value_name = "PORT", default_value_t = 8998)]
    bootstrap_port: u16,
    /// Time to the first token.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    ttft: Duration,
    /// Time between two tokens.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    token_interval: Duration,
    /// Most tokens of an answer when the request sets no limit.
    #[arg(long, value_name = "N", default_value_t = 8)]
    reply_tokens: u32,
    /// Prompt tokens computed in a second, on top of --ttft.
    #[arg(long, value_name = "N")]
    prefill_rate: Option<u32>,
    /// How long prefill and decode wait for each other.
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = parse_duration)]
    pd_timeout: Duration,
    /// How long /health takes; a real engine needs about 1s.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    health_delay: Duration,
    /// Requests computed at the same time.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_running_requests: u32,
    /// Requests that may wait; one more is answered 503.
    #[arg(long, value_name = "N")]
    max_queued_requests: Option<u32>,
    /// Longest prompt, tokens.
    #[arg(long, value_name = "N", default_value_t = 131_072)]
    context_length: u32,
    /// Publish KV events of rank 0 on this port; of several engines, each has its ranks after the
    /// one before. 0 = free.
    #[arg(long, value_name = "PORT")]
    kv_port: Option<u16>,
    /// Offer a replay of KV events likewise.
    #[arg(long, value_name = "PORT", requires = "kv_port")]
    kv_replay_port: Option<u16>,
    /// Topic of KV events.
    #[arg(long, default_value = "")]
    kv_topic: String,
    /// Data-parallel ranks, each with a cache of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    dp_size: u16,
    /// Tokens per page of the cache.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    /// KV capacity of a rank, tokens.
    #[arg(long, value_name = "N", default_value_t = 1_048_576)]
    max_total_tokens: u64,
    /// Hash pairs of tokens, like an engine that speculates with EAGLE.
    #[arg(long)]
    eagle: bool,
    /// Report cached tokens in usage.
    #[arg(long)]
    enable_cache_report: bool,
    /// Count and cache prompts with this tokenizer (directory or tokenizer.json).
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Announce HTTP/2 with prior knowledge in /server_info.
    #[arg(long)]
    enable_http2: bool,
    /// Demand this bearer everywhere but on health, readiness and metrics, like a real engine.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Publish load reports likewise.
    #[arg(long, value_name = "PORT", requires = "kv_port")]
    load_port: Option<u16>,
    /// Do not keep requests; for load tests.
    #[arg(long)]
    no_record: bool,
    /// Answer chats at once with canned text, without queue, cache and generation; for load tests.
    #[arg(long)]
    instant: bool,
    /// A fault that is on from the start, as in POST /mock/faults; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    fault: Vec<String>,
    /// Worker threads; the default is one per core.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Arguments {
    /// One configuration per engine.
    fn engines(&self) -> Result<Vec<EngineConfig>, String> {
        let mut faults = Faults::default();
        for fault in &self.fault {
            let (key, value) = fault
                .split_once('=')
                .ok_or_else(|| format!("fault `{fault}`: expected KEY=VALUE"))?;
            faults.set_text(key, value)?;
        }
        let tokenizer = self.tokenizer.as_deref().map(tokenizer::load);
        let tokenizer = tokenizer.transpose()?;
        let mut engines = Vec::new();
        for address in &self.listen {
            for offset in 0..self.count {
                let mut listen = *address;
                listen.set_port(nth_port(address.port(), offset)?);
                let nth = u16::try_from(engines.len()).map_err(|error| error.to_string())?;
                engines.push(EngineConfig {
                    listen,
                    bootstrap_port: self.bootstrap_port(nth)?,
                    kv_port: self.rank_port(self.kv_port, nth)?,
                    kv_replay_port: self.rank_port(self.kv_replay_port, nth)?,
                    load_port: self.rank_port(self.load_port, nth)?,
                    tokenizer: tokenizer.clone(),
                    faults: faults.clone(),
                    ..self.common()
                });
            }
        }
        if engines.len() > 1 {
            for engine in &mut engines {
                engine.name = format!("{}-{}", self.name, engine.listen.port());
            }
        }
        Ok(engines)
    }

    fn bootstrap_port(&self, nth: u16) -> Result<u16, String> {
        match self.role {
            Role::Prefill => nth_port(self.bootstrap_port, nth),
            Role::Plain | Role::Decode => Ok(self.bootstrap_port),
        }
    }

    /// The first port of the ranks of the `nth` engine.
    fn rank_port(&self, first: Option<u16>, nth: u16) -> Result<Option<u16>, String> {
        first
            .map(|first| nth_port(first, nth.saturating_mul(self.dp_size)))
            .transpose()
    }

    fn common(&self) -> EngineConfig {
        EngineConfig {
            name: self.name.clone(),
            model: self.model.clone(),
            role: self.role,
            ttft: self.ttft,
            token_interval: self.token_interval,
            reply_tokens: self.reply_tokens,
            prefill_rate: self.prefill_rate,
            pd_timeout: self.pd_timeout,
            health_delay: self.health_delay,
            max_running_requests: self.max_running_requests,
            max_queued_requests: self.max_queued_requests,
            context_length: self.context_length,
            kv_topic: self.kv_topic.clone(),
            kv_ranks: self.dp_size,
            page_size: self.page_size,
            max_total_num_tokens: self.max_total_tokens,
            bigram: self.eagle,
            cache_report: self.enable_cache_report,
            enable_http2: self.enable_http2,
            api_key: self.api_key.clone(),
            record: !self.no_record,
            instant: self.instant,
            ..EngineConfig::default()
        }
    }
}

/// `first + offset`, where a free port stays a free port.
fn nth_port(first: u16, offset: u16) -> Result<u16, String> {
    if first == 0 {
        return Ok(0);
    }
    first
        .checked_add(offset)
        .ok_or_else(|| format!("port {first} + {offset} is above 65535"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let engines = match arguments.engines() {
        Ok(engines) => engines,
        Err(problem) => {
            eprintln!("mock-engine: {problem}");
            return ExitCode::from(2);
        }
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads {
        runtime.worker_threads(threads.max(1));
    }
    let ended = runtime
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(serve(engines)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts all engines, or none, and waits for a signal.
async fn serve(configs: Vec<EngineConfig>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut engines: Vec<Engine> = Vec::new();
    for config in configs {
        let role = config.role;
        let engine = mock::start(config).await?;
        let bootstrap = match role {
            Role::Prefill => format!(" bootstrap_port={}", engine.bootstrap_port()),
            Role::Plain | Role::Decode => String::new(),
        };
        println!(
            "{} {} {}{bootstrap}",
            engine.url(),
            role.as_str(),
            engine.name()
        );
        engines.push(engine);
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    for engine in engines {
        engine.shutdown().await;
    }
    Ok(())
}
