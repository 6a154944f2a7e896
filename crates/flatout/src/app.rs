//! Building an application: routes, state, middleware, and the server around them.

use std::any::TypeId;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Address, BoxError, Limits, Plan, Response, Service};
use flatout_wire::Method;
use flatout_wire::target::PathForm;

use crate::chain::Answered;
use crate::handler::{Endpoint, Handler, Shape};
use crate::lifetime::Lifetime;
use crate::middleware::{Around, InnerService, Middleware, layered};
use crate::mount::Mounted;
use crate::routes::Routes;
use crate::scope::Scope;
use crate::{Context, Error, Respond, Result, Server, Shutdown};

/// An HTTP application.
///
/// ```no_run
/// use flatout::{App, Json, Path};
///
/// #[derive(serde::Serialize)]
/// struct Hello { message: &'static str }
///
/// fn main() -> flatout::Result<()> {
///     App::new()
///         .get("/json", || Json(Hello { message: "Hello, World!" }))
///         .get("/quotes/{symbol}", async |Path(symbol): Path<String>| format!("{symbol}: 42"))
///         .listen("0.0.0.0:8080")
///         .run()
/// }
/// ```
#[derive(Default)]
pub struct App {
    pub(crate) routes: Vec<Route>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) scope: Scope,
    pub(crate) lifetime: Lifetime,
    #[cfg(feature = "openapi")]
    pub(crate) documents: Vec<Arc<crate::openapi::Document>>,
    pub(crate) path_form: PathForm,
    plan: Plan,
    wrap: Option<Wrap>,
    #[cfg(feature = "admin")]
    admin: Option<crate::Admin>,
    pub(crate) fault: Option<Error>,
}

/// Wraps the service of each worker.
type Wrap = Box<dyn Fn(Box<dyn Service>) -> Box<dyn Service> + Send + Sync>;

/// A method and pattern with their handler, and the scopes that they are nested in, outermost last.
pub(crate) struct Route {
    pub(crate) method: Option<Method>,
    pub(crate) pattern: String,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) scopes: Vec<Arc<Scope>>,
}

/// The fallback of a prefix, and the scopes that it is nested in, outermost last.
pub(crate) struct Fallback {
    pub(crate) prefix: String,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) scopes: Vec<Arc<Scope>>,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $method:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name<A, K>(self, pattern: &str, handler: impl Shape<A, K> + Handler<A, K>) -> App {
            self.route(Some(Method::$method), pattern, handler.into_endpoint())
        }
    )*};
}

impl App {
    /// An application without routes.
    pub fn new() -> App {
        App::default()
    }

    methods! {
        /// Handles GET, and HEAD with the same head. In a pattern, `{name}` matches one segment, `{*rest}` the rest of
        /// the path.
        get Get;
        /// Handles POST.
        post Post;
        /// Handles PUT.
        put Put;
        /// Handles PATCH.
        patch Patch;
        /// Handles DELETE.
        delete Delete;
        /// Handles OPTIONS. By default, the response to OPTIONS lists the allowed methods.
        options Options;
    }

    /// Handles every method.
    pub fn any<A, K>(self, pattern: &str, handler: impl Shape<A, K> + Handler<A, K>) -> App {
        self.route(None, pattern, handler.into_endpoint())
    }

    /// Handles requests that match no route, instead of 404.
    pub fn fallback<A, K>(mut self, handler: impl Shape<A, K> + Handler<A, K>) -> App {
        self.fallbacks.retain(|fallback| !(fallback.scopes.is_empty() && fallback.prefix.is_empty()));
        let endpoint = handler.into_endpoint();
        self.fallbacks.push(Fallback { prefix: String::new(), endpoint, scopes: Vec::new() });
        self
    }

    /// Puts all routes of another application under a prefix, with its middleware and limits.
    ///
    /// Its handlers and middleware find its own [`State`](crate::State) and [`Local`](crate::Local) values first, then
    /// those of the outer application. The outer application never finds the inner values. Its fallback handles requests
    /// at and below the prefix that match no route; of several such fallbacks, the one with the longest prefix is used.
    /// Without one, the outer fallback is used.
    ///
    /// ```
    /// use flatout::{App, State, test::Client};
    ///
    /// let inner = App::new().state("inner").get("/", |State(name): State<&'static str>| *name).fallback(|| "no such thing");
    /// let outer = App::new().state("outer").get("/", |State(name): State<&'static str>| *name).nest("/in", inner);
    /// let client = Client::new(outer)?;
    /// assert_eq!(client.get("/in").send().text(), "inner");
    /// assert_eq!(client.get("/").send().text(), "outer");
    /// assert_eq!(client.get("/in/elsewhere").send().text(), "no such thing");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn nest(mut self, prefix: &str, app: App) -> App {
        let prefix = prefix.trim_end_matches('/');
        let scope = Arc::new(app.scope);
        for mut route in app.routes {
            let inner = if route.pattern == "/" { "" } else { &route.pattern };
            route.pattern = format!("{prefix}{inner}");
            route.scopes.push(scope.clone());
            self.routes.push(route);
        }
        for mut fallback in app.fallbacks {
            fallback.prefix = format!("{prefix}{}", fallback.prefix);
            fallback.scopes.push(scope.clone());
            self.fallbacks.push(fallback);
        }
        self.lifetime.nest(app.lifetime);
        self.fault = self.fault.or(app.fault);
        self
    }

    /// Passes all requests at and below a prefix to a `tower::Service`, such as an axum `Router`. It sees the path
    /// without the prefix, and reads the body while it arrives.
    pub fn mount<S, B>(self, prefix: &str, service: S) -> App
    where
        S: tower_service::Service<http::Request<crate::Body>, Response = http::Response<B>>,
        S: Clone + Send + Sync + 'static,
        S::Future: 'static,
        S::Error: std::fmt::Display,
        B: http_body::Body<Data = bytes::Bytes> + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let prefix = prefix.trim_end_matches('/').to_owned();
        let endpoint: Arc<dyn Endpoint> = Arc::new(Mounted::new(service));
        let app = if prefix.is_empty() { self } else { self.route(None, &prefix, endpoint.clone()) };
        let app = app.route(None, &format!("{prefix}/"), endpoint.clone());
        app.route(None, &format!("{prefix}/{{*rest}}"), endpoint)
    }

    /// Answers GET with a WebSocket. `handler` is called with each message, on its worker's thread: what blocks there blocks every
    /// connection of the worker. The [`Socket`](crate::Socket) may be kept to send later.
    ///
    /// ```no_run
    /// use flatout::App;
    ///
    /// App::new().websocket("/echo", |socket, message| socket.send(message));
    /// ```
    pub fn websocket(
        self,
        pattern: &str,
        handler: impl Fn(&crate::Socket, crate::Message<'_>) + Send + Sync + 'static,
    ) -> App {
        self.websocket_with(pattern, crate::WebSocketPlan::default(), handler)
    }

    /// The same with limits of its own.
    pub fn websocket_with(
        self,
        pattern: &str,
        plan: crate::WebSocketPlan,
        handler: impl Fn(&crate::Socket, crate::Message<'_>) + Send + Sync + 'static,
    ) -> App {
        let endpoint = Arc::new(crate::websocket::WebSocketEndpoint::new(plan, handler));
        self.route(Some(Method::Get), pattern, endpoint)
    }

    /// Serves the channels of a publisher: `GET` subscribes by Server-Sent Events, WebSocket or long poll (`?poll=1`), and the
    /// pattern ends in the channel's name. Whoever has the publisher publishes to all that are subscribed, on all workers.
    ///
    /// ```no_run
    /// use flatout::{App, push::Publisher};
    ///
    /// let publisher = Publisher::new();
    /// let feed = publisher.clone();
    /// App::new()
    ///     .push("/live/{channel}", &publisher)
    ///     .post("/goal", move || feed.publish("NBA.1234", "12:10").map(|_| "published").unwrap_or("not published"));
    /// ```
    #[cfg(feature = "push")]
    pub fn push(self, pattern: &str, publisher: &crate::push::Publisher) -> App {
        self.route(None, pattern, Arc::new(crate::push::PushEndpoint::new(publisher)))
    }

    /// Serves the files of a folder at and below a prefix, where no route matches, as `flatout serve` does. It replaces a
    /// [`fallback`](App::fallback) there. The folder is opened when the application starts.
    ///
    /// ```no_run
    /// use flatout::App;
    ///
    /// App::new().get("/api/time", || "now").files("/", "./public").files("/docs", "./target/doc");
    /// ```
    #[cfg(feature = "files")]
    pub fn files(mut self, prefix: &str, files: impl Into<crate::Files>) -> App {
        let endpoint = Arc::new(crate::files::FilesEndpoint::new(files.into()));
        let opened = endpoint.clone();
        self.lifetime.openers.push(Box::new(move || opened.open()));
        let prefix = prefix.trim_end_matches('/').to_owned();
        self.fallbacks.push(Fallback { prefix, endpoint, scopes: Vec::new() });
        self
    }

    /// Passes everything at and below a prefix on to another server, where no route matches: the proxy of `flatout serve`. The server
    /// sees the path without the prefix, in its normal form. It takes the place of a [`fallback`](App::fallback) there.
    ///
    /// A proxied response does not pass through middleware: what looks at a request before it is handled may refuse it, and
    /// what changes responses, such as [`App::after`], does not see those of the other server. Behind middleware that waits
    /// before it goes on, and behind [`App::layer`], the response is 501.
    ///
    /// # Errors
    /// What the client gets: 502 where the server cannot be reached or does not speak HTTP, 503 where too many wait, 504 where it takes
    /// too long.
    ///
    /// ```no_run
    /// use flatout::App;
    ///
    /// // Everything that has no handler here yet goes to the old application.
    /// App::new().get("/api/time", || "now").proxy("/", "http://127.0.0.1:3000").proxy("/files", "unix:/run/files.sock");
    /// ```
    #[cfg(feature = "proxy")]
    pub fn proxy(mut self, prefix: &str, to: impl Into<crate::Proxy>) -> App {
        let mut plan = to.into();
        self.fault = self.fault.or(plan.fault());
        let endpoint = Arc::new(crate::passing::ProxyEndpoint::new(plan));
        let opened = endpoint.clone();
        self.lifetime.openers.push(Box::new(move || opened.open()));
        let prefix = prefix.trim_end_matches('/').to_owned();
        self.fallbacks.push(Fallback { prefix, endpoint, scopes: Vec::new() });
        self
    }

    /// Serves this description of the application at `path/openapi.json`, and an interactive page at `path`. The
    /// description comes from the derives and attributes of `utoipa`. An operation without a route is an error when the
    /// application starts.
    ///
    /// ```
    /// use flatout::{App, Json, Path, test::Client};
    /// use utoipa::{OpenApi, ToSchema};
    ///
    /// #[derive(serde::Serialize, ToSchema)]
    /// struct Item { id: u32 }
    ///
    /// #[utoipa::path(get, path = "/items/{id}", params(("id" = u32, Path)), responses((status = 200, body = Item)))]
    /// fn show(Path(id): Path<u32>) -> Json<Item> {
    ///     Json(Item { id })
    /// }
    ///
    /// #[derive(OpenApi)]
    /// #[openapi(paths(show))]
    /// struct Description;
    ///
    /// let app = App::new().get("/items/{id}", show).openapi("/docs", Description::openapi());
    /// let document: serde_json::Value = Client::new(app)?.get("/docs/openapi.json").send().json();
    /// assert_eq!(document["paths"]["/items/{id}"]["get"]["operationId"], "show");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    #[cfg(feature = "openapi")]
    pub fn openapi(mut self, path: &str, document: utoipa::openapi::OpenApi) -> App {
        match crate::openapi::Document::new(&document) {
            Ok(document) => {
                let document = Arc::new(document);
                self.documents.push(document.clone());
                document.routes(self, path)
            }
            Err(error) => {
                self.fault = self.fault.or(Some(error));
                self
            }
        }
    }

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

    /// A value that handlers get as [`State`](crate::State), shared by all workers.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> App {
        self.scope.states.insert(TypeId::of::<T>(), Arc::new(value));
        self
    }

    /// A value that each worker makes for itself. Its handlers get it as [`Local`](crate::Local), without a lock.
    pub fn local<T: 'static>(mut self, make: impl Fn() -> T + Send + Sync + 'static) -> App {
        self.scope.locals.push((TypeId::of::<T>(), Box::new(move || Rc::new(make()))));
        self
    }

    /// Runs middleware of [`flatout::middleware`](crate::middleware), or your own, around all routes of this application.
    /// The first one is outermost, including those added by [`App::around`] and [`App::layer`].
    pub fn with(mut self, middleware: impl Middleware) -> App {
        if let Err(message) = middleware.check() {
            self.fault = self.fault.or(Some(Error::Usage(message)));
        }
        self.scope.wraps.push(Arc::new(middleware));
        self
    }

    /// Runs an async function around all routes of this application: before, call, after in one function. Its last
    /// argument is [`Next`](crate::middleware::Next). The others are arguments of async handlers, except the body.
    ///
    /// Costs two allocations. If the function waits before it calls `next.run()`, the request is copied.
    ///
    /// ```
    /// use flatout::{App, Headers, Respond, middleware::Next, test::Client};
    ///
    /// let app = App::new()
    ///     .around(async |Headers(headers): Headers, next: Next| {
    ///         let began = std::time::Instant::now();
    ///         let mut response = next.run().await;
    ///         if headers.contains_key("x-debug") {
    ///             response.header("X-Took", format!("{:?}", began.elapsed()));
    ///         }
    ///         response
    ///     })
    ///     .get("/", || "hello");
    /// let client = Client::new(app)?;
    /// assert!(client.get("/").header("X-Debug", "1").send().header("X-Took").is_some());
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn around<A>(self, function: impl Around<A>) -> App {
        self.with(function.into_middleware())
    }

    /// Runs a `tower::Layer` around all routes of this application, such as those of tower-http. If a layer fails, the
    /// response is 503.
    ///
    /// The layer wraps an [`InnerService`], whose future and response body are not `Send`. WebSocket requests get 501
    /// inside a layer: put the layer around the router that is [mounted](App::mount) instead.
    pub fn layer<L, B>(mut self, layer: L) -> App
    where
        L: tower_layer::Layer<InnerService>,
        L::Service: tower_service::Service<http::Request<crate::Body>, Response = http::Response<B>>,
        L::Service: Clone + Send + Sync + 'static,
        <L::Service as tower_service::Service<http::Request<crate::Body>>>::Future: 'static,
        <L::Service as tower_service::Service<http::Request<crate::Body>>>::Error: std::fmt::Display,
        B: http_body::Body<Data = bytes::Bytes> + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.scope.wraps.push(layered(&layer));
        self
    }

    /// Runs before each handler of this application, in the order of registration. An `Err` is the response.
    pub fn before<R: Respond>(
        mut self,
        check: impl Fn(&mut Context<'_>) -> std::result::Result<(), R> + Send + Sync + 'static,
    ) -> App {
        self.scope.before.push(Box::new(move |context, response| match check(context) {
            Ok(()) => true,
            Err(answer) => {
                answer.respond(response);
                false
            }
        }));
        self
    }

    /// Runs after each handler of this application, also after a failed `before`, in the order of registration.
    pub fn after(mut self, change: impl Fn(&Answered<'_>, &mut Response) + Send + Sync + 'static) -> App {
        self.scope.after.push(Box::new(change));
        self
    }

    /// The largest request body for this application's routes, in decoded bytes; larger ones get 413. The default is the
    /// server's limit.
    pub fn body_limit(mut self, bytes_max: u64) -> App {
        self.scope.body_bytes_max = Some(bytes_max);
        self
    }

    /// Allows paths with escaped slashes, as package registries and Git servers use them: `%2F` does not separate
    /// segments, and [`Path`](crate::Path) contains it as `/` in the value of its parameter. By default, such a path gets
    /// 400.
    ///
    /// Dot segments are then resolved and slashes merged, instead of rejected. In [`Context::path`](crate::Context::path)
    /// and [`Context::param`](crate::Context::param) the escapes `%2F`, `%5C` and `%25` are kept. A handler that uses a
    /// parameter as a file name has to expect `/` and `..` in it. For nested applications, the setting of the outermost
    /// applies.
    ///
    /// ```
    /// use flatout::{App, Path, test::Client};
    ///
    /// let app = App::new().escaped_slashes().get("/packages/{name}", |Path(name): Path<String>| name);
    /// let client = Client::new(app)?;
    /// assert_eq!(client.get("/packages/@scope%2fname").send().text(), "@scope/name");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn escaped_slashes(mut self) -> App {
        self.path_form = PathForm::Forward;
        self
    }

    /// Proxies whose `X-Forwarded-For` is trusted ([`ClientIp`](crate::ClientIp)): addresses, networks such as
    /// `10.0.0.0/8`, or `unix` for all clients of a Unix socket. By default, none is trusted.
    pub fn trusted_proxies(mut self, networks: &[&str]) -> App {
        match networks.iter().map(|network| network.parse()).collect() {
            Ok(networks) => self.scope.trusted = Some(networks),
            Err(message) => self.fault = self.fault.or(Some(Error::Usage(message))),
        }
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

    /// Handles GET by this endpoint.
    #[cfg(feature = "openapi")]
    pub(crate) fn route_endpoint(self, pattern: &str, endpoint: Arc<dyn Endpoint>) -> App {
        self.route(Some(Method::Get), pattern, endpoint)
    }

    fn route(mut self, method: Option<Method>, pattern: &str, endpoint: Arc<dyn Endpoint>) -> App {
        self.routes.push(Route { method, pattern: pattern.to_owned(), endpoint, scopes: Vec::new() });
        self
    }
}
