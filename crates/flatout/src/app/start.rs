//! The server around an application: background tasks, listeners, and the start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::tls::{Acceptor, Identity, ServerPlan};
use flatout_engine::{Address, BoxError, Limits, Plan, Service, say};

use super::App;
use crate::arguments::Arguments;
use crate::routes::Routes;
use crate::{Error, Result, Server, Shutdown};

impl App {
    /// Runs once before the first request is served, in the order of registration. If it fails, the application does not
    /// start.
    ///
    /// Tasks that it spawns continue beside the workers, on the thread of [`App::background`].
    ///
    /// ```
    /// use flatout::{App, test::Client};
    ///
    /// async fn create_tables() -> Result<(), std::io::Error> {
    ///     Ok(())
    /// }
    ///
    /// let app = App::new()
    ///     .on_start(async || create_tables().await)
    ///     .on_stop(async || println!("closed the database"))
    ///     .get("/", || "ready");
    /// assert_eq!(Client::new(app)?.get("/").send().text(), "ready");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn on_start<E: Into<BoxError> + 'static>(
        mut self,
        start: impl AsyncFnOnce() -> std::result::Result<(), E> + Send + 'static,
    ) -> App {
        let start = || -> std::pin::Pin<Box<dyn Future<Output = _>>> {
            Box::pin(async move { start().await.map_err(Into::into) })
        };
        self.lifetime.starts.push(Box::new(start));
        self
    }

    /// Runs once, after the last request was served and the background tasks have ended.
    pub fn on_stop(mut self, stop: impl AsyncFnOnce() + Send + 'static) -> App {
        self.lifetime.stops.push(Box::new(|| Box::pin(async move { stop().await })));
        self
    }

    /// A task that runs beside the workers while the application serves. [`Shutdown`] reports when draining begins. The
    /// task then has the rest of the plan's drain time to end before it is dropped. All such tasks share one thread.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use flatout::{App, Shutdown};
    ///
    /// App::new().background(async |mut shutdown: Shutdown| loop {
    ///     tokio::select! {
    ///         () = tokio::time::sleep(Duration::from_secs(60)) => { /* clean up */ }
    ///         () = shutdown.begun() => break,
    ///     }
    /// });
    /// ```
    pub fn background(mut self, task: impl AsyncFnOnce(Shutdown) + Send + 'static) -> App {
        self.lifetime.background.push(Box::new(|shutdown| Box::pin(async move { task(shutdown).await })));
        self
    }

    /// Where to listen: `127.0.0.1:8080`, `[::]:80`, `:80`, `unix:/run/app.sock`. May be given several times.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use flatout::App;
    ///
    /// App::new()
    ///     .get("/", || "hello")
    ///     .listen("[::]:8080")
    ///     .listen("unix:/run/hello.sock")
    ///     .workers(2)
    ///     .limits(|limits| limits.idle_time_max = Duration::from_secs(20))
    ///     .plan(|plan| plan.server_name = None)
    ///     .run()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn listen(mut self, address: &str) -> App {
        match address.parse::<Address>() {
            Ok(address) => self.plan.listen.push(address.into()),
            Err(message) => self.fault = self.fault.or(Some(Error::Usage(message))),
        }
        self
    }

    /// Serves TLS 1.2 and 1.3 at all addresses, with HTTP/2 for clients that offer it. The files are PEM: the certificate with
    /// its intermediate ones, and its key. They are read when the application starts, and again within ten seconds after they
    /// have changed. Given several times, clients get the certificate for the name that they ask for, or the first.
    ///
    /// ```no_run
    /// use flatout::App;
    ///
    /// App::new()
    ///     .get("/", || "hello")
    ///     .tls("/etc/ssl/example.org.pem", "/etc/ssl/example.org.key")
    ///     .listen("[::]:443")
    ///     .run()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn tls(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> App {
        self.identities.push(Identity::new(certificate, key));
        self
    }

    /// The number of workers; by default one for each CPU.
    pub fn workers(mut self, count: usize) -> App {
        self.plan.workers = Some(count);
        self
    }

    /// Changes the server's limits.
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> App {
        change(&mut self.plan.limits);
        self
    }

    /// Changes any setting of the server's plan.
    pub fn plan(mut self, change: impl FnOnce(&mut Plan)) -> App {
        change(&mut self.plan);
        self
    }

    /// Wraps the engine service of each worker, for example to log its requests ([`flatout_engine::Service::ended`]).
    /// Called once on each worker's thread.
    ///
    /// ```
    /// use flatout::engine::{Ended, Prepared, Reply, Request, Response, Service};
    /// use flatout::{App, Head, test::Client};
    ///
    /// /// Prints each request that has ended.
    /// struct Log(Box<dyn Service>);
    ///
    /// impl Service for Log {
    ///     fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
    ///         self.0.prepare(head, path, listener)
    ///     }
    ///
    ///     fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
    ///         self.0.call(request, response)
    ///     }
    ///
    ///     fn wants_ended(&self) -> bool {
    ///         true
    ///     }
    ///
    ///     fn ended(&self, ended: &Ended) {
    ///         println!("{:?}, {} bytes sent", ended.outcome, ended.sent_bytes);
    ///     }
    /// }
    ///
    /// let app = App::new().get("/", || "hello").wrap(|service| Box::new(Log(service)));
    /// assert_eq!(Client::over_socket(app)?.get("/").send().text(), "hello");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn wrap(
        mut self,
        wrap: impl Fn(Box<dyn Service>) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> App {
        self.wrap = Some(Box::new(wrap));
        self
    }

    /// Adds an admin listener: `/metrics` (OpenMetrics, with your own figures), `/health`, `/status` and a live page.
    /// Counting requests costs a clock reading per turn and some plain additions.
    ///
    /// ```no_run
    /// use flatout::App;
    ///
    /// App::new().get("/", || "hello").admin("127.0.0.1:9100").listen("0.0.0.0:8080").run()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    #[cfg(feature = "admin")]
    pub fn admin(mut self, admin: impl Into<crate::Admin>) -> App {
        let admin = admin.into();
        self.fault = self.fault.or(admin.check().err());
        self.admin = Some(admin);
        self
    }

    /// Reads `--listen ADDR` (repeatable, replaces earlier addresses) and `--workers N` from the command line. `--help`
    /// prints them and ends the program.
    ///
    /// ```no_run
    /// // `program --listen 127.0.0.1:9000 --workers 2` listens there instead.
    /// flatout::App::new().get("/", || "hello").listen("0.0.0.0:8080").arguments().run()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn arguments(mut self) -> App {
        match crate::arguments::read(std::env::args_os(), &mut self.plan) {
            Ok(Arguments::Run) => {}
            Ok(Arguments::Help(text)) => {
                use std::io::Write;
                // A reader that has gone does not want the rest.
                let _ = std::io::stdout().write_all(text.as_bytes());
                std::process::exit(0);
            }
            Err(error) => self.fault = self.fault.or(Some(error)),
        }
        self
    }

    /// Starts the server and returns immediately.
    ///
    /// # Errors
    /// Conflicting routes, and all errors of [`flatout_engine::start`].
    ///
    /// ```
    /// use flatout::App;
    ///
    /// let server = App::new().get("/", || "hello").listen("127.0.0.1:0").workers(1).start()?;
    /// println!("listening on {}", server.addresses()[0]);
    /// server.handle().drain();
    /// server.wait()?;
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn start(mut self) -> Result<Server> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut plan = self.plan.clone();
        // Browsers open WebSockets over HTTP/2 where it is offered, and a mounted service gets its by HTTP/1 alone.
        plan.limits.http2_websockets &= !self.routes.iter().any(|route| route.endpoint.takes_connections());
        if !self.identities.is_empty() {
            let identities = std::mem::take(&mut self.identities);
            let acceptor = Acceptor::open(ServerPlan { identities, ..ServerPlan::default() });
            let acceptor = acceptor.map_err(Error::Start)?;
            plan.tls = Some(acceptor.clone());
            self = self.background(async |shutdown| follow(acceptor, shutdown).await);
        }
        let wrap = self.wrap.take();
        let drain_time_max = plan.drain_time_max;
        #[cfg(feature = "admin")]
        let admin = self.admin.take().map(crate::Admin::bind).transpose()?;
        #[cfg(feature = "admin")]
        let metrics = admin.as_ref().map(crate::admin::Bound::metrics);
        let mut lifetime = std::mem::take(&mut self.lifetime);
        let routes = Arc::new(Routes::of(self)?);
        let bound = flatout_engine::bind(plan)?;
        // With the rights of the user who serves them.
        lifetime.open()?;
        let (beside, alive, serving) = match lifetime.keep(drain_time_max)? {
            Some(keeper) => (Some(keeper.thread), Some(keeper.alive), Some(keeper.draining)),
            None => (None, None, None),
        };
        let server = bound.start(move |worker| {
            // Held until the last worker has ended.
            let _ = &alive;
            let service: Box<dyn Service> =
                Box::new(routes.clone().service(worker.draining.clone(), Some(worker)));
            #[cfg(feature = "admin")]
            let service = match &metrics {
                Some(metrics) => crate::admin::counted(metrics, service),
                None => service,
            };
            match &wrap {
                Some(wrap) => wrap(service),
                None => service,
            }
        })?;
        if let Some(serving) = serving {
            serving.send_replace(Some(server.handle().draining()));
        }
        #[cfg(feature = "admin")]
        let admin = match admin.map(|admin| admin.start(&server)).transpose() {
            Ok(admin) => admin,
            Err(error) => {
                server.handle().stop();
                // The reason why it did not start matters more than how its workers ended.
                let _ = server.wait();
                return Err(error);
            }
        };
        Ok(Server {
            server,
            beside,
            #[cfg(feature = "admin")]
            admin,
        })
    }

    /// Serves until SIGTERM or SIGINT has drained the server.
    ///
    /// # Errors
    /// As for [`App::start`], and the failure of a worker.
    pub fn run(self) -> Result<()> {
        self.start()?.run()
    }
}

/// The time between two looks at the files of certificates.
const FOLLOW_TIME: Duration = Duration::from_secs(10);

/// Reads changed certificates. If they cannot be used, the former ones stay.
async fn follow(acceptor: Acceptor, mut shutdown: Shutdown) {
    while tokio::time::timeout(FOLLOW_TIME, shutdown.begun()).await.is_err() {
        if let Err(message) = acceptor.follow() {
            say(format_args!("the certificates stay as they were: {message}"));
        }
    }
}
