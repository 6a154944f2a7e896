//! Starting, watching and ending a server.

use crate::{Address, Error, Plan, Service, Worker};

/// A running server.
pub struct Server {
    addresses: Vec<Address>,
}

/// Ends a server from anywhere; cheap to clone.
#[derive(Clone)]
pub struct Handle {}

/// Binds, drops privileges, and starts the workers; `make` runs once on each worker's thread.
///
/// # Errors
/// A plan that cannot be, an address that cannot be bound, a user that does not exist.
pub fn start<F>(plan: Plan, make: F) -> Result<Server, Error>
where
    F: Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
{
    let _ = (plan, make);
    unimplemented!()
}

impl Server {
    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A handle that ends it.
    pub fn handle(&self) -> Handle {
        Handle {}
    }

    /// Says on stderr where it listens, tells systemd, and serves until SIGTERM or SIGINT has drained it.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self) -> Result<(), Error> {
        unimplemented!()
    }

    /// Waits until it has ended, by a [`Handle`].
    ///
    /// # Errors
    /// A worker that failed.
    pub fn wait(self) -> Result<(), Error> {
        unimplemented!()
    }
}

impl Handle {
    /// Drains: no new connections, requests in flight finish up to the plan's deadline. A second call ends at once.
    pub fn drain(&self) {}
}
