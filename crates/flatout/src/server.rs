//! A running application.

use std::thread::JoinHandle;

use flatout_engine::{Address, Handle};

use crate::{Error, Result};

/// A running application: its workers, and what runs beside them.
pub struct Server {
    pub(crate) server: flatout_engine::Server,
    pub(crate) beside: Option<JoinHandle<()>>,
    #[cfg(feature = "admin")]
    pub(crate) admin: Option<flatout_serve::admin::Admin>,
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

    /// Where its admin listener is, with the ports that the kernel chose.
    #[cfg(feature = "admin")]
    pub fn admin_addresses(&self) -> &[Address] {
        self.admin.as_ref().map_or(&[], flatout_serve::admin::Admin::addresses)
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
        let (server, beside) = self.parts();
        beside.after(server.run())
    }

    /// The same, with `announce` to say where it listens.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run_announced(self, announce: impl FnOnce(&[Address])) -> Result<()> {
        let (server, beside) = self.parts();
        beside.after(server.run_announced(announce))
    }

    /// Waits until it has ended, by a [`Handle`].
    ///
    /// # Errors
    /// A worker that failed.
    pub fn wait(self) -> Result<()> {
        let (server, beside) = self.parts();
        beside.after(server.wait())
    }

    fn parts(self) -> (flatout_engine::Server, Beside) {
        let beside = Beside {
            thread: self.beside,
            #[cfg(feature = "admin")]
            admin: self.admin,
        };
        (self.server, beside)
    }
}

/// What runs beside the workers, and ends after them.
struct Beside {
    thread: Option<JoinHandle<()>>,
    #[cfg(feature = "admin")]
    admin: Option<flatout_serve::admin::Admin>,
}

impl Beside {
    fn after(self, served: std::result::Result<(), flatout_engine::Error>) -> Result<()> {
        #[cfg(feature = "admin")]
        if let Some(admin) = self.admin {
            admin.close();
        }
        let ended = self.thread.map_or(Ok(()), JoinHandle::join);
        served?;
        ended.map_err(|_| Error::Start("what runs at the stop has panicked".to_owned()))
    }
}
