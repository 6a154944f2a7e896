//! Shared by tests of `flatout upgrade`: a program that can be replaced, and the process that has taken over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, kill_process};

use crate::{Folder, Signal, program};

/// A process that replaced another one and is not a child of the test; killed on drop.
pub struct Orphan(Pid);

impl Orphan {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it is still running; a zombie counts as ended.
    pub fn is_there(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// The output of `flatout upgrade`.
///
/// # Errors
/// Its error message.
pub fn upgrade(admin: &Path) -> Result<String, String> {
    let mut command = Command::new(program("flatout"));
    let output =
        command.arg("upgrade").arg("--admin").arg(format!("unix:{}", admin.display())).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// The process that has taken over, from the output of the upgrade.
pub fn orphan(said: &str) -> Orphan {
    let said = said.split_once("process ").map_or(said, |(_, said)| said);
    let pid = said.split_whitespace().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    Orphan(pid.unwrap_or_else(|| panic!("{said}")))
}

/// A program at the path of the server that may be replaced by another one.
pub struct Installed(pub PathBuf);

impl Installed {
    /// A new path, hard-linked to the built program.
    pub fn new() -> Installed {
        let original = program("flatout");
        // Beside it, so that no copy of its bytes is needed.
        let path =
            original.with_file_name(format!("flatout-{}", Folder::new().0.file_name().unwrap().display()));
        fs::hard_link(&original, &path).unwrap();
        Installed(path)
    }

    /// Puts a script in its place.
    pub fn replace(&self, script: &str) {
        fs::remove_file(&self.0).unwrap();
        // Written by a process of its own: a program that another test starts meanwhile would have this file open for
        // writing for a moment, and then nobody can run it.
        let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&self.0).arg(script).status().unwrap();
        assert!(written.success());
    }
}

impl Default for Installed {
    fn default() -> Self {
        Installed::new()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
