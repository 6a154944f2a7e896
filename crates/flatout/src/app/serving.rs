//! The server around an application: what runs beside its workers, where it listens, and its start.

use std::sync::Arc;

use flatout_engine::{Address, BoxError, Limits, Plan, Service};

use super::App;
use crate::routes::Routes;
use crate::{Error, Result, Server, Shutdown};

impl App {
    /// Runs once before the first request is served, in the order of registration. If it fails, the application does not
    /// start.
    ///
    /// Tasks that it spawns continue beside the workers, on the thread of [`App::background`].
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
    pub fn listen(mut self, address: &str) -> App {
        match address.parse::<Address>() {
            Ok(address) => self.plan.listen.push(address),
            Err(message) => self.fault = self.fault.or(Some(Error::Usage(message))),
        }
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
    pub fn wrap(
        mut self,
        wrap: impl Fn(Box<dyn Service>) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> App {
        self.wrap = Some(Box::new(wrap));
        self
    }

    /// Has an admin listener beside the server: `/metrics` (OpenMetrics, with figures of your own), `/health`, `/status` and a live page.
    /// Counting requests costs a clock reading for each turn and some plain additions.
    #[cfg(feature = "admin")]
    pub fn admin(mut self, admin: impl Into<crate::Admin>) -> App {
        let admin = admin.into();
        self.fault = self.fault.or(admin.check().err());
        self.admin = Some(admin);
        self
    }

    /// Reads `--listen ADDR` (repeatable, replaces earlier addresses) and `--workers N` from the command line.
    pub fn arguments(mut self) -> App {
        if let Err(error) = crate::arguments::read(std::env::args_os(), &mut self.plan) {
            self.fault = self.fault.or(Some(error));
        }
        self
    }

    /// Starts the server and returns immediately.
    ///
    /// # Errors
    /// Conflicting routes, and all errors of [`flatout_engine::start`].
    pub fn start(mut self) -> Result<Server> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let plan = std::mem::take(&mut self.plan);
        let wrap = self.wrap.take();
        let drain_time_max = plan.drain_time_max;
        #[cfg(feature = "admin")]
        let admin = self.admin.take().map(crate::Admin::bind).transpose()?;
        #[cfg(feature = "admin")]
        let metrics = admin.as_ref().map(crate::admin::Bound::metrics);
        let mut lifetime = std::mem::take(&mut self.lifetime);
        let routes = Arc::new(Routes::of(self)?);
        let bound = flatout_engine::bind(plan)?;
        // As the user who serves them.
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
                // Why it does not start is more than how its workers ended.
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
