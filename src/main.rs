//! The `sgl-edge` program: reads arguments, loads the configuration, builds the services, runs.
//!
//! The only place that chooses an exit code: 0 for a clean end, 1 for a failure at run time, 2 for
//! wrong arguments or a wrong configuration.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser, Subcommand};
use parking_lot::Mutex;
use pingora::server::RunArgs;
use pingora::server::configuration::Opt;
use sgl_edge::config::{self, Config, Flags};
use sgl_edge::demo::{self, Demo};
use sgl_edge::logging::{self, LogGuard};
use sgl_edge::policies::PolicyServices;
use sgl_edge::proxy::lifecycle::Signals;
use sgl_edge::proxy::service::{Start, assemble, threads};
use sgl_edge::server::app::App;
use sgl_edge::server::explain::offline::{self, Files};
use sgl_edge::server::reload::{self, Reloader};
use sgl_edge::server::routing::Routing;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An edge proxy that picks the inference engine for every chat request.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start mock engines and a proxy in front of them, and print what to try.
    Demo(demo::DemoArgs),
    /// Run the proxy in the foreground.
    Run(RunCommand),
    /// Print the configuration file that means the same as flags of sgl-router.
    Config(Flags),
    /// Print the JSON Schema of the configuration file, for editors.
    Schema,
    /// Validate a configuration file and print its buckets in resolution order.
    Check {
        /// Configuration file.
        #[arg(short = 'c', long = "config", value_name = "FILE")]
        config: PathBuf,
    },
    /// Say which engine would get a request, and why. Contacts no engine.
    Explain(ExplainCommand),
}

#[derive(Debug, Args)]
struct ExplainCommand {
    /// Configuration file.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
    /// The chat body, as a client would send it; `-` reads standard input.
    #[arg(long, value_name = "BODY.json")]
    body: PathBuf,
    /// A request header, `NAME: VALUE`; repeatable.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Loads, counts, prefix holders and bindings to assume; an idle fleet without it.
    #[arg(long, value_name = "STATE.json")]
    state: Option<PathBuf>,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
    /// Show the rendered prompt and its token ids, which hold the caller's text.
    #[arg(long)]
    prompt: bool,
}

#[derive(Debug, Args)]
struct RunCommand {
    /// Configuration file.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Take over the sockets of a running process (send it SIGQUIT afterwards).
    #[arg(short = 'u', long)]
    upgrade: bool,
    /// Go into the background.
    #[arg(short = 'd', long)]
    daemon: bool,
    /// Pingora's own server file (sockets, user, upgrade path).
    #[arg(long = "conf", value_name = "FILE")]
    pingora: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

fn main() -> ExitCode {
    // First of all: a SIGHUP that comes before the services run must not end the process.
    let early_hangup = Arc::new(AtomicBool::new(false));
    let handler =
        signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&early_hangup));
    if let Err(error) = handler {
        eprintln!("sgl-edge: no SIGHUP handler: {error}");
    }
    match Cli::parse().command {
        Command::Check { config } => check(&config),
        Command::Explain(command) => explain(command),
        Command::Config(flags) => print_config(&flags),
        Command::Schema => {
            print!("{}", config::schema());
            ExitCode::SUCCESS
        }
        Command::Run(run) => match start(run, early_hangup) {
            Ok(()) => ExitCode::SUCCESS,
            Err(code) => code,
        },
        Command::Demo(args) => match start_demo(args, early_hangup) {
            Ok(()) => ExitCode::SUCCESS,
            Err(code) => code,
        },
    }
}

fn check(path: &Path) -> ExitCode {
    let config = match config::load(path) {
        Ok(config) => config,
        Err(errors) => return refuse(&errors.to_string()),
    };
    let description = config::describe(&config);
    // Tokenizers and key files are part of what an operator wants checked.
    let services = PolicyServices::new(Arc::default());
    match reload::build(config, &services, None) {
        Ok(_) => {
            print!("{description}");
            ExitCode::SUCCESS
        }
        Err(problems) => refuse(&in_file(path, &problems).join("\n")),
    }
}

fn explain(command: ExplainCommand) -> ExitCode {
    let body = match read_body(&command.body) {
        Ok(body) => body.into(),
        Err(error) => return refuse(&format!("{}: {error}", command.body.display())),
    };
    let files = Files {
        config: command.config,
        body,
        headers: command.headers,
        state: command.state,
        show_prompt: command.prompt,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    match runtime.block_on(offline::explain_files(&files)) {
        Ok(explained) if command.json => match serde_json::to_string_pretty(&explained) {
            Ok(json) => {
                println!("{json}");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error.to_string()),
        },
        Ok(explained) => {
            print!("{}", explained.to_text());
            ExitCode::SUCCESS
        }
        Err(problems) => refuse(&problems.join("\n")),
    }
}

fn read_body(path: &Path) -> std::io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body)?;
        return Ok(body);
    }
    std::fs::read(path)
}

/// Problems found after the file itself was read, in the file's own format.
fn in_file(path: &Path, problems: &[String]) -> Vec<String> {
    let prefix = path.display();
    let lines = problems.iter().map(|problem| {
        if problem.starts_with(&format!("{prefix}:")) {
            problem.clone()
        } else {
            format!("{prefix}: {problem}")
        }
    });
    lines.collect()
}

fn refuse(problems: &str) -> ExitCode {
    eprintln!("{}", problems.trim_end());
    ExitCode::from(2)
}

/// The file that means the same as the flags; what an operator should know goes to stderr.
fn print_config(flags: &Flags) -> ExitCode {
    match flags.translate() {
        Ok(translated) => {
            for note in &translated.notes {
                eprintln!("note: {note}");
            }
            print!("{}", translated.yaml);
            ExitCode::SUCCESS
        }
        Err(errors) => refuse(&errors.to_string()),
    }
}

/// The routing that a file or flags describe, what to say of it, and what to reload.
type Loaded = (Routing, Vec<String>, Option<Arc<Reloader>>);

fn load(run: &RunCommand, services: &PolicyServices) -> Result<Loaded, ExitCode> {
    let path = match (&run.config, run.flags.is_empty()) {
        (Some(path), true) => path,
        (Some(_), false) => {
            let names = run.flags.names().join(", ");
            let problem = format!("sgl-edge: -c FILE says it all: remove {names}, or -c");
            return Err(refuse(&problem));
        }
        (None, true) => {
            return Err(refuse(
                "sgl-edge: give -c FILE, or --model-id and --worker-urls",
            ));
        }
        (None, false) => {
            let translated = run.flags.translate();
            let translated = translated.map_err(|errors| refuse(&errors.to_string()))?;
            let routing = reload::build(translated.config, services, None)
                .map_err(|problems| refuse(&problems.join("\n")))?;
            return Ok((routing, translated.notes, None));
        }
    };
    let routing = reload::first_load(path, services)
        .map_err(|problems| refuse(&in_file(path, &problems).join("\n")))?;
    let warnings = routing.config.warnings.iter().map(ToString::to_string);
    let warnings = warnings.collect();
    Ok((
        routing,
        warnings,
        Some(Arc::new(Reloader::new(path.clone()))),
    ))
}

fn start(run: RunCommand, early_hangup: Arc<AtomicBool>) -> Result<(), ExitCode> {
    let services = PolicyServices::new(Arc::default());
    let (routing, warnings, reloader) = load(&run, &services)?;
    let guard = logging::start(&routing.config.log, run.daemon);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let options = Opt {
        upgrade: run.upgrade,
        daemon: run.daemon,
        conf: run.pingora,
        ..Opt::default()
    };
    serve(routing, services, reloader, options, early_hangup, guard)
}

fn start_demo(args: demo::DemoArgs, early_hangup: Arc<AtomicBool>) -> Result<(), ExitCode> {
    let demo = Demo::start(&args).map_err(|error| fail(&error))?;
    let services = PolicyServices::new(Arc::default());
    let routing = demo
        .routing(&services)
        .map_err(|problems| refuse(&problems.join("\n")))?;
    let guard = logging::start(&routing.config.log, false);
    print!("{}", demo.introduction());
    serve(routing, services, None, Opt::default(), early_hangup, guard)
}

fn fail(error: &str) -> ExitCode {
    eprintln!("sgl-edge: {error}");
    ExitCode::FAILURE
}

/// Whether the addresses can be listened on. Pingora would find out only after 30 s of trying, and
/// then leave a process without listeners.
fn free(config: &Config) -> Result<(), String> {
    for address in config.listen.iter().chain([&config.admin.listen]) {
        std::net::TcpListener::bind(address)
            .map_err(|error| format!("cannot listen on {address}: {error}"))?;
    }
    Ok(())
}

fn serve(
    routing: Routing,
    services: PolicyServices,
    reloader: Option<Arc<Reloader>>,
    options: Opt,
    early_hangup: Arc<AtomicBool>,
    log: LogGuard,
) -> Result<(), ExitCode> {
    let cores = threads(&routing.config);
    let listen = routing.config.listen.clone();
    if !options.upgrade {
        free(&routing.config).map_err(|error| fail(&error))?;
    }
    let mut app = App::new(routing, services, cores);
    app.on_reload = |config| logging::set_level(&config.log);
    let app = Arc::new(app);
    let log = Mutex::new(Some(log));
    let start = Start {
        app: Arc::clone(&app),
        reloader,
        early_hangup,
        options,
        leave: Box::new(move || {
            // Writes what is still buffered.
            drop(log.lock().take());
            std::process::exit(0);
        }),
    };
    let server = assemble(start).map_err(|error| fail(&error))?;
    tracing::info!(?listen, threads = cores, "sgl-edge starts");
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals(app)),
    });
    Ok(())
}
