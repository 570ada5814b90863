//! What the command line may say.

use std::path::PathBuf;

use clap::Parser;

use crate::contender::Kind;
use crate::scenario::{SCENARIOS, Scenario};

/// Load on sgl-edge and other proxies, side by side. `SGL_EDGE_BIN=PATH` adds another build of
/// sgl-edge as a column.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --bench load --")]
pub(crate) struct Options {
    /// Rounds; medians are over rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds of load per proxy, scenario and round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Some of: 300b, 8k, 64k, sse, tokenized.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Some of: sgl-edge, bare-pingora, nginx, haproxy; the default is what is installed.
    #[arg(long, value_delimiter = ',')]
    proxies: Vec<String>,
    /// Cargo says this under `cargo bench`, and does not under `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
    /// Cargo passes the filter of `cargo bench FILTER` to every bench.
    #[arg(hide = true)]
    filter: Option<String>,
}

impl Options {
    /// Whether this bench is meant at all.
    pub(crate) fn wanted(&self) -> bool {
        let named = self
            .filter
            .as_ref()
            .is_none_or(|name| "load".contains(name));
        self.bench && named
    }

    /// The scenarios in the order of the table.
    ///
    /// # Errors
    /// A name that is none.
    pub(crate) fn scenarios(&self) -> Result<Vec<&'static Scenario>, String> {
        let known = |name: &&String| !SCENARIOS.iter().any(|scenario| scenario.name == **name);
        if let Some(unknown) = self.scenarios.iter().find(known) {
            return Err(format!("`{unknown}` is no scenario; see --help"));
        }
        let asked = |scenario: &&Scenario| {
            self.scenarios.is_empty() || self.scenarios.iter().any(|name| name == scenario.name)
        };
        Ok(SCENARIOS.iter().filter(asked).collect())
    }

    /// The proxies to run, sgl-edge first; those that are not installed are named on stderr.
    ///
    /// # Errors
    /// A name that is none, or one that was asked for and is not installed.
    pub(crate) fn kinds(&self) -> Result<Vec<Kind>, String> {
        let mut all = vec![Kind::Edge(PathBuf::from(env!("CARGO_BIN_EXE_sgl-edge")))];
        if let Some(other) = std::env::var_os("SGL_EDGE_BIN") {
            all.push(Kind::OtherEdge(PathBuf::from(other)));
        }
        all.push(Kind::Bare);
        for (name, kind) in [
            ("nginx", Kind::Nginx as fn(PathBuf) -> Kind),
            ("haproxy", Kind::Haproxy),
        ] {
            match crate::machine::find(name) {
                Some(program) => all.push(kind(program)),
                None => eprintln!("load: {name} is not installed, no column for it"),
            }
        }
        for name in &self.proxies {
            if !all.iter().any(|kind| kind.name() == name) {
                return Err(format!(
                    "`{name}` is no proxy, or not installed; see --help"
                ));
            }
        }
        all.retain(|kind| {
            self.proxies.is_empty() || self.proxies.iter().any(|name| name == kind.name())
        });
        Ok(all)
    }
}
