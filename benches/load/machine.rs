//! What the tables say about where they come from, and what is installed.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Where a program is, the folders for administrators included.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    folders
        .chain(more)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processor time since a process began, all threads, seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Cpu {
    /// Of the process with this number, or of `self`.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn of(process: &str) -> Result<Self, String> {
        let path = format!("/proc/{process}/stat");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        // The second field is the name in parentheses, which may hold anything.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let mut seconds = || -> Option<f64> {
            let ticks: f64 = fields.next()?.parse().ok()?;
            Some(ticks / ticks_a_second())
        };
        match (seconds(), seconds()) {
            (Some(user), Some(system)) => Ok(Self { user, system }),
            _ => Err(format!("{path}: unexpected `{text}`")),
        }
    }
}

/// Clock ticks a second in `/proc`.
fn ticks_a_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let told = output("getconf", &["CLK_TCK"]);
        told.and_then(|text| text.parse().ok()).unwrap_or(100.0)
    })
}

/// One line: cores, processor, commit.
pub(crate) fn describe() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let rest = line.strip_prefix("model name")?;
        Some(rest.trim_start_matches([' ', '\t', ':']).to_owned())
    });
    let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    let changed = output("git", &["status", "--porcelain"]).is_some_and(|list| !list.is_empty());
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let changes = if changed { " with changes" } else { "" };
    format!("{} cores, {model}; commit {commit}{changes}", cores())
}

/// What a command prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
