//! A running application.

use std::thread::JoinHandle;

use flatout_engine::{Address, Handle};

use crate::{Error, Result};

/// A running application: its workers, and what runs beside them.
pub struct Server {
    pub(crate) server: flatout_engine::Server,
    pub(crate) beside: Option<JoinHandle<()>>,
}

impl Server {
    /// How many workers it has.
    pub fn workers_count(&self) -> usize {
        self.server.workers_count()
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// A handle that ends it, and reads its figures.
    pub fn handle(&self) -> Handle {
        self.server.handle()
    }

    /// Says on stderr where it listens, tells systemd, and serves until SIGTERM or SIGINT has drained it. A second signal
    /// ends it at once.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self) -> Result<()> {
        let served = self.server.run();
        after(served, self.beside)
    }

    /// The same, with `announce` to say where it listens.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run_announced(self, announce: impl FnOnce(&[Address])) -> Result<()> {
        let served = self.server.run_announced(announce);
        after(served, self.beside)
    }

    /// Waits until it has ended, by a [`Handle`].
    ///
    /// # Errors
    /// A worker that failed.
    pub fn wait(self) -> Result<()> {
        let served = self.server.wait();
        after(served, self.beside)
    }
}

/// What runs beside the workers ends after them.
fn after(
    served: std::result::Result<(), flatout_engine::Error>,
    beside: Option<JoinHandle<()>>,
) -> Result<()> {
    let ended = beside.map_or(Ok(()), JoinHandle::join);
    served?;
    ended.map_err(|_| Error::Start("an on_stop function panicked".to_owned()))
}
