//! A running application.

use std::thread::JoinHandle;

use flatout_engine::{Address, Handle};

use crate::{Error, Result};

/// A running application: its workers, and the tasks beside them.
pub struct Server {
    pub(crate) server: flatout_engine::Server,
    pub(crate) beside: Option<JoinHandle<()>>,
}

impl Server {
    /// The number of its workers.
    pub fn workers_count(&self) -> usize {
        self.server.workers_count()
    }

    /// The addresses it listens on, with the ports chosen by the kernel.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// A handle to stop it and to read its figures.
    pub fn handle(&self) -> Handle {
        self.server.handle()
    }

    /// Prints its addresses on stderr, notifies systemd, and serves until SIGTERM or SIGINT has drained it. A second
    /// signal stops it at once.
    ///
    /// # Errors
    /// The failure of a worker.
    pub fn run(self) -> Result<()> {
        let served = self.server.run();
        after(served, self.beside)
    }

    /// The same, with `announce` called to report the addresses.
    ///
    /// # Errors
    /// The failure of a worker.
    pub fn run_announced(self, announce: impl FnOnce(&[Address])) -> Result<()> {
        let served = self.server.run_announced(announce);
        after(served, self.beside)
    }

    /// Waits until a [`Handle`] has stopped it.
    ///
    /// # Errors
    /// The failure of a worker.
    pub fn wait(self) -> Result<()> {
        let served = self.server.wait();
        after(served, self.beside)
    }
}

/// The tasks beside the workers end after them.
fn after(
    served: std::result::Result<(), flatout_engine::Error>,
    beside: Option<JoinHandle<()>>,
) -> Result<()> {
    let ended = beside.map_or(Ok(()), JoinHandle::join);
    served?;
    ended.map_err(|_| Error::Start("an on_stop function panicked".to_owned()))
}
