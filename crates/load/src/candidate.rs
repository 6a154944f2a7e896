//! One of two things that are compared: a server that runs, or a command that starts one.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
pub(crate) struct Running(Option<Child>);

/// How long a command may take until its server accepts a connection.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a server may take to end by itself.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// How often both are looked at.
const LOOK_TIME: Duration = Duration::from_millis(20);

impl Candidate {
    /// Starts the server, if there is a command, and waits until it accepts.
    pub(crate) fn start(&self, stop: &AtomicBool) -> Result<Running, Error> {
        let Some(command) = &self.command else { return Ok(Running(None)) };
        let child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::System)?;
        let mut running = Running(Some(child));
        let deadline = Instant::now() + START_TIME_MAX;
        while let Err(error) = connect::probe(&self.plan.remote, None, LOOK_TIME) {
            if running.has_ended() {
                return Err(Error::Plan(format!(
                    "`{command}` ended before it accepted on {}",
                    self.plan.remote
                )));
            }
            if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
                return Err(Error::Connect(self.plan.remote.clone(), error));
            }
            thread::sleep(LOOK_TIME);
        }
        Ok(running)
    }
}

impl Running {
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Asks the whole group to end, and makes it end.
    fn end(&mut self) -> io::Result<()> {
        let Some(child) = &mut self.0 else { return Ok(()) };
        let group = child.id();
        process::signal_group(group, process::End::Asked)?;
        let deadline = Instant::now() + END_TIME_MAX;
        while child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK_TIME);
        }
        // Also those that outlived their parent.
        let _ = process::signal_group(group, process::End::Forced);
        child.wait().map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A group that is gone already is what was wanted.
        let _ = self.end();
    }
}
