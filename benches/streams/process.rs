//! Processes that end with the value that stands for them, and what the system tells of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::machine::Cpu;

/// A process of ours. Killed when dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with what it says in a file of `folder`.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(name: &str, mut command: Command, folder: &Path) -> Result<Self, String> {
        let log = folder.join(format!("{name}.log"));
        let say = |error| format!("{name}: {error}");
        let out = File::create(&log).map_err(say)?;
        let err = out.try_clone().map_err(say)?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        Ok(Self {
            name: name.to_owned(),
            child: child.map_err(say)?,
            log,
        })
    }

    /// # Errors
    /// It has ended, with what it said.
    pub(crate) fn must_run(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("{} ended, {ended:?}: {}", self.name, self.said())),
        }
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Resident memory now, KiB.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn resident(&self) -> Result<u64, String> {
        self.status("VmRSS:")
    }

    /// The most that was resident since [`forget_peak`](Self::forget_peak), KiB.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn peak(&self) -> Result<u64, String> {
        self.status("VmHWM:")
    }

    /// Begins the peak anew; where that is forbidden it goes back to the start.
    pub(crate) fn forget_peak(&self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
    }

    fn status(&self, field: &str) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
        number.ok_or_else(|| format!("{path} has no {field}"))
    }

    /// Processor time so far, all threads, seconds.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn cpu(&self) -> Result<f64, String> {
        cpu(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // By handle, and only errors when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same of this process.
///
/// # Errors
/// The system does not say.
pub(crate) fn own_cpu() -> Result<f64, String> {
    cpu("self")
}

fn cpu(process: &str) -> Result<f64, String> {
    Cpu::of(process).map(|cpu| cpu.user + cpu.system)
}
