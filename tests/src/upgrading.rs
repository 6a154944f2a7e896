//! `flatout upgrade`, and the process that takes the place of another one.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::program;

/// A process that took another's place and is nobody's child any more; ended when it is dropped.
pub struct Orphan(pub Pid);

impl Orphan {
    /// Whether it has not ended. Nobody may have asked yet how it did.
    pub fn is_there(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// Ends it.
    pub fn terminate(&self) {
        kill_process(self.0, Signal::TERM).unwrap();
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// What `flatout upgrade` says, good or bad.
pub fn upgrade(admin: &Path) -> Result<String, String> {
    let mut command = Command::new(program("flatout"));
    let output =
        command.arg("upgrade").arg("--admin").arg(format!("unix:{}", admin.display())).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// The process that has taken over, by what was said.
pub fn orphan(said: &str) -> Orphan {
    let pid = said.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    Orphan(pid.unwrap_or_else(|| panic!("{said}")))
}
