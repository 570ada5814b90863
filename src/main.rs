//! The `sgl-edge` program: reads arguments, loads the configuration, builds the services, runs.
//!
//! The only place that chooses an exit code: 0 for a clean end, 1 for a failure at run time, 2 for
//! wrong arguments or a wrong configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser, Subcommand};
use parking_lot::Mutex;
use pingora::server::RunArgs;
use pingora::server::configuration::Opt;
use sgl_edge::config::{self, Config};
use sgl_edge::demo::{self, Demo};
use sgl_edge::logging::{self, LogGuard};
use sgl_edge::policies::PolicyServices;
use sgl_edge::proxy::lifecycle::Signals;
use sgl_edge::proxy::service::{Start, assemble, threads};
use sgl_edge::server::app::App;
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
    /// Validate a configuration file and print its buckets in resolution order.
    Check {
        /// Configuration file.
        #[arg(short = 'c', long = "config", value_name = "FILE")]
        config: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunCommand {
    /// Configuration file.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
    /// Take over the sockets of a running process (send it SIGQUIT afterwards).
    #[arg(short = 'u', long)]
    upgrade: bool,
    /// Go into the background.
    #[arg(short = 'd', long)]
    daemon: bool,
    /// Pingora's own server file (sockets, user, upgrade path).
    #[arg(long = "conf", value_name = "FILE")]
    pingora: Option<String>,
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
        Command::Run(run) => match start_from_file(run, early_hangup) {
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

fn start_from_file(run: RunCommand, early_hangup: Arc<AtomicBool>) -> Result<(), ExitCode> {
    let services = PolicyServices::new(Arc::default());
    let routing = reload::first_load(&run.config, &services)
        .map_err(|problems| refuse(&in_file(&run.config, &problems).join("\n")))?;
    let guard = logging::start(&routing.config.log, run.daemon);
    for warning in &routing.config.warnings {
        tracing::warn!("{warning}");
    }
    let options = Opt {
        upgrade: run.upgrade,
        daemon: run.daemon,
        conf: run.pingora,
        ..Opt::default()
    };
    let reloader = Some(Arc::new(Reloader::new(run.config)));
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
