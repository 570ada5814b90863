//! Processes that end with the value that stands for them, and what they cost.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::machine::{self, Cpu};

/// Which cores a process may use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The first core, which is the proxy's.
    Proxy,
    /// All others.
    Rest,
}

impl Place {
    /// `program`, on its cores; anywhere if there is only one core or no `taskset`.
    pub(crate) fn command(self, program: &Path) -> Command {
        let cores = machine::cores();
        let Some(taskset) = machine::find("taskset").filter(|_| cores > 1) else {
            return Command::new(program);
        };
        let list = match self {
            Self::Proxy => "0".to_owned(),
            Self::Rest => format!("1-{}", cores - 1),
        };
        let mut command = Command::new(taskset);
        // `taskset` becomes the program, so that the handle is the program's.
        command.arg("-c").arg(list).arg(program);
        command
    }
}

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
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(say)?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        let status = self.child.try_wait();
        status.map_err(|error| format!("{}: {error}", self.name))
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends `STOP` or `CONT`.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), String> {
        let sent = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.child.id().to_string())
            .status();
        match sent {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("{}: kill -{signal}: {other:?}", self.name)),
        }
    }

    /// What it has cost so far, all threads.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn cpu(&self) -> Result<Cpu, String> {
        Cpu::of(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // By handle, and only errors when it has ended already. A stopped process dies as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
