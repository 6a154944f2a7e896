//! The server under test: started and stopped by the climb, or found running.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_lane::connect;
use flatout_load::{Remote, Running, Target};
use flatout_owner::{Here, group, listeners};

use crate::plan::{Error, ServerPlan};
use crate::status::status;

/// The server under test. One that the climb started is stopped when this is dropped.
pub(crate) struct UnderTest<'p> {
    server: &'p ServerPlan,
    target: Target,
    url: String,
    stop: &'p AtomicBool,
    running: Option<(Start, Running)>,
    pids: Vec<u32>,
}

/// How a server was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Its command.
    pub(crate) command: String,
    /// Which of the rungs that need a restart were applied, one `bool` per rung.
    pub(crate) on: Vec<bool>,
}

/// How long a server may respond with failures after it accepts connections, for example while its application
/// starts.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

/// Time limit for accepting the connection of a check.
const ACCEPT_TIME_MAX: Duration = Duration::from_secs(5);

/// How often a server that is not ready is asked.
const LOOK_TIME: Duration = Duration::from_millis(50);

impl<'p> UnderTest<'p> {
    /// A server that is not running yet.
    pub(crate) fn new(
        server: &'p ServerPlan,
        target: Target,
        url: String,
        stop: &'p AtomicBool,
    ) -> UnderTest<'p> {
        UnderTest { server, target, url, stop, running: None, pids: Vec::new() }
    }

    /// Whether the server is running; if it is ours, whether it was started like this.
    pub(crate) fn is_up(&self, start: &Option<Start>) -> bool {
        match (&self.running, start) {
            (Some((with, _)), Some(start)) => with == start,
            (None, Some(_)) => false,
            (_, None) => !self.pids.is_empty(),
        }
    }

    /// Makes sure that the server is running and responds; if it is ours, starts a new one like this.
    ///
    /// # Errors
    /// It does not start, or it responds with server errors.
    pub(crate) fn bring_up(&mut self, start: Option<Start>) -> Result<(), Error> {
        if let Some(start) = start {
            self.end();
            let running = Running::start(&start.command, &self.target.remote, self.stop);
            self.running = Some((start, running.map_err(|error| Error::Server(error.to_string()))?));
        }
        if let Err(error) = self.wait_until_ready() {
            self.end();
            return Err(error);
        }
        self.pids = self.find_processes();
        Ok(())
    }

    /// Stops it, if it is ours.
    pub(crate) fn end(&mut self) {
        self.running = None;
        self.pids.clear();
    }

    /// Its processes, as they were found last.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Finds its processes again: workers may start after the first response, and others replace those that exit.
    pub(crate) fn processes(&mut self) -> &[u32] {
        let found = self.find_processes();
        // If it has just died, the next check reports that.
        if !found.is_empty() {
            self.pids = found;
        }
        &self.pids
    }

    /// Checks that it is still running.
    ///
    /// # Errors
    /// It has exited, or no longer accepts connections.
    pub(crate) fn look_after(&mut self) -> Result<(), Error> {
        if let Some((_, running)) = &mut self.running
            && let Some(status) = running.ended()
        {
            return Err(Error::Server(format!("the server died ({status}){}", running.last_words())));
        }
        connect::probe(&self.target.remote, None, ACCEPT_TIME_MAX).map_err(|error| {
            Error::Server(format!(
                "the server is gone: {} does not accept connections: {error}",
                self.target.remote
            ))
        })
    }

    /// The environment variables of commands that apply changes.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        [("FLATOUT_URL", self.url.clone()), ("FLATOUT_PIDS", pids.join(" "))]
    }

    /// Sends requests until the response is no server error.
    fn wait_until_ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_TIME_MAX;
        let url = &self.url;
        loop {
            let why = match status(&self.target, &self.target.remote) {
                Ok(code) if code < 500 => return Ok(()),
                Ok(code) => {
                    format!(
                        "{url} responds with status {code}; a server that responds with errors is not measured"
                    )
                }
                Err(error) => format!("{url} does not respond: {error}"),
            };
            if Instant::now() > deadline || self.stop.load(Ordering::Relaxed) {
                return Err(Error::Server(why));
            }
            std::thread::sleep(LOOK_TIME);
        }
    }

    /// The server's processes: all that listen on its port, if it is on this machine, and all processes of our
    /// command: those behind a proxy work for its responses too.
    fn find_processes(&self) -> Vec<u32> {
        let listening = match &self.target.remote {
            Remote::Tcp(address) if is_here(&self.target.remote) => listeners(&Here, address.port()),
            _ => Vec::new(),
        };
        match (self.server, &self.running) {
            // The named process does not listen itself: it is behind a proxy, or on a Unix socket.
            (ServerPlan::Running(Some(pid)), _) if !listening.contains(pid) => vec![*pid],
            (_, Some((_, running))) => {
                let group = group(&Here, running.id()).unwrap_or_default();
                let all: BTreeSet<u32> = listening.into_iter().chain(group).collect();
                all.into_iter().collect()
            }
            _ => listening,
        }
    }
}

/// Whether an address belongs to this machine: traffic to it uses loopback, whatever the address is.
pub(crate) fn is_here(remote: &Remote) -> bool {
    match remote {
        Remote::Unix(_) => true,
        Remote::Tcp(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Waits until this is true, at most ten seconds.
    fn until(mut is_true: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_true() {
            assert!(Instant::now() < deadline, "it takes too long");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The responses to the first two connections, a probe and a request.
    fn respond(listener: &TcpListener) {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    }

    /// As those of a server that forks its workers when its application has been imported.
    #[test]
    fn workers_that_start_later_are_found() {
        let folder = std::env::temp_dir().join(format!("flatout-workers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (ready, more) = (folder.join("ready"), folder.join("more"));
        let command = format!(
            "touch {}; until [ -e {} ]; do sleep 0.02; done; sleep 60 & sleep 60 & wait",
            ready.display(),
            more.display()
        );
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (server, stop) = (ServerPlan::Command(command.clone()), AtomicBool::new(false));
        let url = format!("http://{address}/");
        let mut served = UnderTest::new(&server, Target::parse_plain(&url).unwrap(), url, &stop);
        thread::scope(|scope| {
            scope.spawn(|| {
                until(|| ready.exists());
                respond(&TcpListener::bind(address).unwrap());
            });
            served.bring_up(Some(Start { command, on: Vec::new() })).unwrap();
        });
        let shell = served.running.as_ref().unwrap().1.id();
        assert!(served.pids().contains(&shell), "{:?}", served.pids());
        std::fs::write(&more, "").unwrap();
        until(|| served.processes().len() == 3);
        assert!(served.pids().contains(&shell), "{:?}", served.pids());
        served.end();
        assert!(served.processes().is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
