use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;

use flatout_engine::say;

use super::{Predecessor, Takeover, replace};

/// How this process was started: later, another program may be at its path.
pub(crate) struct Program {
    path: Option<PathBuf>,
    arguments: Vec<OsString>,
}

impl Program {
    /// Of this process.
    pub(crate) fn current() -> Program {
        let mut arguments = env::args_os();
        let named = arguments.next().map(PathBuf::from).filter(|name| name.components().count() > 1);
        // If the path is a link that leads to another version by then, it is followed again.
        let path = named.and_then(|name| std::path::absolute(name).ok()).or_else(|| env::current_exe().ok());
        Program { path, arguments: arguments.collect() }
    }

    /// Replaces this process by another one of the same program, which is logged.
    ///
    /// # Errors
    /// Why this process continues.
    pub(crate) fn replace(&self, former: &Predecessor) -> Result<Takeover, String> {
        let path = self.path.as_ref().ok_or("the path of the program is unknown")?;
        let mut command = process::Command::new(path);
        command.args(&self.arguments);
        replace(former, command, |message| say(format_args!("{message}")))
    }
}
