//! One of two things that are compared: a server that runs, or a command that starts one.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flatout_lane::connect::Remote;
use flatout_lane::{connect, process};

use crate::plan::{Error, Plan};

/// What is measured, and what must run for that.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The measurement.
    pub plan: Plan,
    /// A shell command that starts the server and stays in the foreground; none where it runs already.
    pub command: Option<String>,
}

/// A server that was started; it is ended with its children when this is dropped.
pub struct Running {
    child: Child,
    command: String,
}

/// How long a command may take until its server accepts a connection.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a server may take to end by itself.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// How often both are looked at.
const LOOK_TIME: Duration = Duration::from_millis(5);

impl Candidate {
    /// Starts the server, if there is a command, and waits until it accepts.
    pub(crate) fn start(&self, stop: &AtomicBool) -> Result<Option<Running>, Error> {
        self.command.as_ref().map(|command| Running::start(command, &self.plan.remote, stop)).transpose()
    }
}

impl Running {
    /// Starts a server by a shell command that stays in the foreground, in a process group of its own, and waits until
    /// somebody accepts on `remote`.
    ///
    /// # Errors
    /// Somebody accepts there already, the command ended before, or nobody accepted in time or before `stop` was set.
    pub fn start(command: &str, remote: &Remote, stop: &AtomicBool) -> Result<Running, Error> {
        if connect::probe(remote, None, LOOK_TIME).is_ok() {
            return Err(Error::Plan(format!(
                "a server listens on {remote} already, so `{command}` would not be what is measured; end it first"
            )));
        }
        let child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::System)?;
        let mut running = Running { child, command: command.to_owned() };
        let deadline = Instant::now() + START_TIME_MAX;
        while let Err(error) = connect::probe(remote, None, LOOK_TIME) {
            if running.ended().is_some() {
                return Err(Error::Plan(format!("`{command}` ended before it accepted on {remote}")));
            }
            if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
                return Err(Error::Connect(remote.clone(), error));
            }
            thread::sleep(LOOK_TIME);
        }
        Ok(running)
    }

    /// The command that started it.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The id of its process group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks the whole group to end, and makes it end.
    fn end(&mut self) -> io::Result<()> {
        let group = self.child.id();
        process::signal_group(group, process::End::Asked)?;
        let deadline = Instant::now() + END_TIME_MAX;
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK_TIME);
        }
        // Also those that outlived their parent.
        let _ = process::signal_group(group, process::End::Forced);
        self.child.wait().map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A group that is gone already is what was wanted.
        let _ = self.end();
    }
}
