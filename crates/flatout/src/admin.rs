//! The admin listener of an application: metrics and a live page, for its operator.

use std::sync::Arc;

use flatout_admin::{self as admin, View};
use flatout_engine::{Address, Service};
use flatout_observe::metrics::{Figures, Metrics, ServerSource};
use flatout_observe::observed::Observers;
use flatout_push::Hub;

use crate::{Error, Result};

/// The settings of [`App::admin`](crate::App::admin). A string is converted to a listen address.
///
/// ```no_run
/// use flatout::metrics::{Counter, Figures};
/// use flatout::{Admin, App, State};
///
/// let figures = Figures::new();
/// let paid = figures.counter("shop_orders", "Orders by what became of them", &[("state", "paid")]);
/// App::new()
///     .state(paid)
///     .post("/pay", |State(paid): State<Counter>| paid.add(1))
///     .admin(Admin::on("127.0.0.1:9100").figures(figures))
///     .listen("0.0.0.0:8080")
///     .run()?;
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Clone)]
pub struct Admin {
    plan: admin::Plan,
    metrics: Metrics,
    push: Option<Hub>,
    fault: Option<String>,
}

impl Admin {
    /// On this address of the loopback, such as `127.0.0.1:9100`, or `unix:PATH`, which the server's user alone may open.
    pub fn on(address: &str) -> Admin {
        let metrics = Metrics::new(Default::default());
        let empty = Admin { plan: admin::Plan::default(), metrics, push: None, fault: None };
        match address.parse::<Address>() {
            Ok(address) => Admin { plan: admin::Plan { listen: vec![address], ..empty.plan }, ..empty },
            Err(message) => Admin { fault: Some(message), ..empty },
        }
    }

    /// Allows an address that others reach: all of them see all figures.
    ///
    /// ```
    /// use flatout::{Admin, App};
    ///
    /// App::new().get("/", || "hello").admin(Admin::on("10.0.0.5:9100").public());
    /// ```
    pub fn public(mut self) -> Admin {
        self.plan.public = true;
        self
    }

    /// Shows these figures of the application too.
    pub fn figures(mut self, figures: Figures) -> Admin {
        self.fault = self.fault.or(figures.check().err());
        self.metrics.add(Arc::new(figures));
        self
    }

    /// Shows subscribers and messages of these channels too.
    ///
    /// ```
    /// use flatout::{Admin, App, push::Publisher};
    ///
    /// let publisher = Publisher::new();
    /// App::new().push("/live/{channel}", &publisher).admin(Admin::on("127.0.0.1:9100").push(&publisher));
    /// ```
    #[cfg(feature = "push")]
    pub fn push(mut self, publisher: &crate::push::Publisher) -> Admin {
        self.metrics.add(Arc::new(publisher.hub().clone()));
        self.push = Some(publisher.hub().clone());
        self
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<()> {
        let fault = self.fault.clone().or(self.plan.check().err());
        fault.map_or(Ok(()), |message| Err(Error::Usage(format!("admin: {message}"))))
    }

    /// Binds it, with the rights of the moment.
    pub(crate) fn bind(self) -> Result<Bound> {
        Ok(Bound { bound: admin::bind(self.plan)?, metrics: self.metrics, push: self.push })
    }
}

impl From<&str> for Admin {
    fn from(address: &str) -> Admin {
        Admin::on(address)
    }
}

/// A bound listener that is not serving yet.
pub(crate) struct Bound {
    bound: admin::Bound,
    metrics: Metrics,
    push: Option<Hub>,
}

impl Bound {
    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Starts it beside a server that runs.
    pub(crate) fn start(self, server: &flatout_engine::Server) -> Result<admin::Admin> {
        let thread_name = flatout_engine::Plan::default().thread_name;
        self.metrics.add(Arc::new(ServerSource::new(server.handle(), thread_name)));
        Ok(self.bound.start(View {
            metrics: self.metrics,
            handle: server.handle(),
            thread_name: thread_name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            upstreams: None,
            sites: None,
            push: self.push,
            bus: None,
        })?)
    }
}

/// Counts the requests of a worker's service.
pub(crate) fn counted(metrics: &Metrics, service: Box<dyn Service>) -> Box<dyn Service> {
    let observers = Observers { logs: Vec::new(), metrics: Some(metrics.clone()) };
    observers.wrap(|_| service)
}
