//! One of two candidates of a comparison: a running server, or a command that starts one.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flatout_lane::child::{ProcessGroup, shell};
use flatout_lane::connect::{self, Remote};
use flatout_lane::process::end_with_this_thread;

use crate::plan::{Error, Plan};

/// What to measure, and what to start for it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The measurement.
    pub plan: Plan,
    /// A shell command that starts the server and stays in the foreground; `None` if it is already running.
    pub command: Option<String>,
}

/// A started server; it is stopped with its children when this is dropped.
pub struct Running {
    group: ProcessGroup,
    command: String,
    last_words: Arc<Mutex<String>>,
    listener: JoinHandle<Option<()>>,
}

/// How long until a started server has to accept a connection.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a server may take to exit.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// How long to wait for the last output of a server that has exited.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of an output line; a longer one counts as several.
const LINE_BYTES_MAX: u64 = 4096;

/// How often both are checked.
const LOOK_TIME: Duration = Duration::from_millis(5);

impl Candidate {
    /// Starts the server, if there is a command, and waits until it accepts.
    pub(crate) fn start(&self, stop: &AtomicBool) -> Result<Option<Running>, Error> {
        self.command.as_ref().map(|command| Running::start(command, &self.plan.remote, stop)).transpose()
    }
}

impl Running {
    /// Starts a server by a shell command that stays in the foreground, in its own process group, and waits until
    /// `remote` accepts connections.
    ///
    /// # Errors
    /// Another server already accepts there, the command exited, or nothing accepted in time or before `stop` was
    /// set.
    pub fn start(command: &str, remote: &Remote, stop: &AtomicBool) -> Result<Running, Error> {
        if connect::probe(remote, None, LOOK_TIME).is_ok() {
            return Err(Error::Plan(format!(
                "a server already listens on {remote}, so `{command}` would not be measured; stop that server first"
            )));
        }
        let mut shell = shell(command);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut group = ProcessGroup::start(end_with_this_thread(&mut shell)).map_err(Error::System)?;
        let (last_words, listener) = listen_to(group.stderr());
        let mut running = Running { group, command: command.to_owned(), last_words, listener };
        let deadline = Instant::now() + START_TIME_MAX;
        while let Err(error) = connect::probe(remote, None, LOOK_TIME) {
            if running.ended().is_some() {
                let why = running.last_words();
                return Err(Error::Plan(format!(
                    "`{command}` ended before it accepted connections on {remote}{why}"
                )));
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

    /// Its process group id.
    pub fn id(&self) -> u32 {
        self.group.id()
    }

    /// The last line of its stderr, as the end of a message; empty if there is none.
    pub fn last_words(&self) -> String {
        // The last output may still be in the pipe; a child may hold the pipe open.
        let deadline = Instant::now() + LAST_WORDS_TIME_MAX;
        while !self.listener.is_finished() && Instant::now() < deadline {
            thread::sleep(LOOK_TIME);
        }
        let line = self.last_words.lock().map(|line| line.clone()).unwrap_or_default();
        if line.is_empty() { line } else { format!(": {line}") }
    }

    /// Its exit status, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.group.ended()
    }
}

/// Reads a server's stderr until its end, and keeps the last line.
fn listen_to(stderr: Option<ChildStderr>) -> (Arc<Mutex<String>>, JoinHandle<Option<()>>) {
    let last = Arc::new(Mutex::new(String::new()));
    let (heard, limit) = (last.clone(), LINE_BYTES_MAX);
    let listener = thread::spawn(move || {
        let mut reader = BufReader::new(stderr?);
        loop {
            let mut line = Vec::new();
            let count = reader.by_ref().take(limit).read_until(b'\n', &mut line).ok()?;
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            if !text.is_empty() {
                *heard.lock().ok()? = text;
            }
            if count == 0 {
                return Some(());
            }
        }
    });
    (last, listener)
}

impl Drop for Running {
    fn drop(&mut self) {
        // If the group is already gone, there is nothing to do.
        let _ = self.group.end(END_TIME_MAX);
    }
}
