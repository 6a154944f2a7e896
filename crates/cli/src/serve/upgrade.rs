//! `flatout upgrade`: replaces a running server by a new process, possibly of a new version.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, PoisonError, TryLockError};

use flatout_engine::say;
use flatout_serve::upgrade::{Former, replace};
use rustix::process::Signal;

use super::reload;
use crate::command::Command;

pub(crate) const COMMAND: Command = Command {
    name: "upgrade",
    about: "Replace a running server by a new version of the program",
    more: "The server starts the program again, at the path and with the arguments with which it was started itself, and hands its \
           listeners and its push subscribers over. No connection is refused, and subscribers do not notice. If the new process fails \
           before it has everything, the old one goes on. If the server has an admin listener, it is asked there and reports the \
           result; otherwise the process that listens on the file's addresses gets SIGUSR2 and logs the result.\nExit status: 0 \
           upgraded (or the signal was sent), 1 not upgraded, 2 a mistake in the file.",
    examples: &[
        ("flatout upgrade -c site.kdl", "the server that runs with this file"),
        ("flatout upgrade --admin unix:/run/flatout.sock", "the server with this admin listener"),
    ],
    arguments: reload::arguments,
    run: |matches| reload::ask(matches, "/upgrade", Signal::USR2, "upgrade"),
};

/// How this process was started, and what it can hand over.
pub(super) struct Upgrading {
    program: Option<PathBuf>,
    arguments: Vec<OsString>,
    /// `None` before the start, and after another process has taken over.
    former: Mutex<Option<Former>>,
}

impl Upgrading {
    /// Notes how this process was started: later, another program may be at its path.
    pub(super) fn new() -> Upgrading {
        let mut arguments = env::args_os();
        let named = arguments.next().map(PathBuf::from).filter(|name| name.components().count() > 1);
        // If the path is a link that leads to another version by then, it is followed again.
        let program =
            named.and_then(|name| std::path::absolute(name).ok()).or_else(|| env::current_exe().ok());
        Upgrading { program, arguments: arguments.collect(), former: Mutex::new(None) }
    }

    /// Sets what to hand over, once the server runs.
    pub(super) fn set(&self, former: Former) {
        *self.former.lock().unwrap_or_else(PoisonError::into_inner) = Some(former);
    }

    /// Whether this process is the only one that serves: while two do, a purge would reach one of them only.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.former.try_lock() {
            Ok(former) if former.is_some() => Ok(()),
            _ => Err("an upgrade is under way: another process takes over; try again".to_owned()),
        }
    }

    /// Replaces this process by another one. Returns a message with the result, which is also logged, or why
    /// this process continues.
    pub(super) fn upgrade(&self) -> Result<String, String> {
        let mut former = match self.former.try_lock() {
            Ok(former) => former,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err("an upgrade is under way already".to_owned()),
        };
        let Some(program) = &self.program else {
            return Err("the path of the program is unknown".to_owned());
        };
        let Some(server) = &*former else {
            return Err("the server has not started yet, or has been replaced already".to_owned());
        };
        let mut command = process::Command::new(program);
        command.args(&self.arguments);
        let said = replace(server, command, |said| say(format_args!("{said}")))?;
        *former = None;
        Ok(said)
    }
}
