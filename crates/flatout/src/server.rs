//! A running application.

use std::thread::JoinHandle;

use flatout_engine::{Address, Handle};

use crate::{Error, Result};

/// A running application: its workers, and the tasks beside them.
///
/// ```
/// use flatout::App;
/// use flatout::engine::Address;
///
/// let app = App::new().get("/", || "hello").listen("127.0.0.1:0").workers(1);
/// let server = app.start()?;
/// assert_eq!(server.workers_count(), 1);
/// assert!(matches!(server.addresses(), [Address::Tcp(address)] if address.port() != 0));
/// // Any thread may end it with a handle.
/// let handle = server.handle();
/// std::thread::spawn(move || handle.drain());
/// server.wait()?;
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Server {
    pub(crate) server: flatout_engine::Server,
    pub(crate) beside: Option<JoinHandle<()>>,
    #[cfg(feature = "admin")]
    pub(crate) admin: Option<flatout_admin::Admin>,
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

    /// The addresses of the admin listener, with the ports that the kernel chose.
    ///
    /// ```no_run
    /// let server = flatout::App::new().listen("0.0.0.0:8080").admin("127.0.0.1:0").start()?;
    /// println!("metrics: {}/metrics", server.admin_addresses()[0]);
    /// server.run()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    #[cfg(feature = "admin")]
    pub fn admin_addresses(&self) -> &[Address] {
        self.admin.as_ref().map_or(&[], flatout_admin::Admin::addresses)
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
        let (server, beside) = self.parts();
        beside.after(server.run())
    }

    /// The same, with `announce` called to report the addresses.
    ///
    /// # Errors
    /// The failure of a worker.
    ///
    /// ```no_run
    /// let server = flatout::App::new().get("/", || "hello").listen("0.0.0.0:8080").start()?;
    /// server.run_announced(|addresses| println!("open {}", addresses[0]))?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn run_announced(self, announce: impl FnOnce(&[Address])) -> Result<()> {
        let (server, beside) = self.parts();
        beside.after(server.run_announced(announce))
    }

    /// Waits until a [`Handle`] has stopped it.
    ///
    /// # Errors
    /// The failure of a worker.
    pub fn wait(self) -> Result<()> {
        let (server, beside) = self.parts();
        beside.after(server.wait())
    }

    fn parts(self) -> (flatout_engine::Server, BackgroundTasks) {
        let beside = BackgroundTasks {
            thread: self.beside,
            #[cfg(feature = "admin")]
            admin: self.admin,
        };
        (self.server, beside)
    }
}

/// The tasks beside the workers, which end after them.
struct BackgroundTasks {
    thread: Option<JoinHandle<()>>,
    #[cfg(feature = "admin")]
    admin: Option<flatout_admin::Admin>,
}

impl BackgroundTasks {
    fn after(self, served: std::result::Result<(), flatout_engine::Error>) -> Result<()> {
        #[cfg(feature = "admin")]
        if let Some(admin) = self.admin {
            admin.close();
        }
        let ended = self.thread.map_or(Ok(()), JoinHandle::join);
        served?;
        ended.map_err(|_| Error::Start("an on_stop function panicked".to_owned()))
    }
}
