//! Builds an application: routes and middleware here, state and limits in `surroundings`, the server around them in
//! `serving`.
//!
//! Methods whose arguments implement a trait of ours are here, beside the type, so that compiler messages name
//! `App::with`.
#![allow(
    clippy::implied_bounds_in_impls,
    reason = "`Handler` implies `Shape`, but only a bound of its own lets the compiler infer from it"
)]

mod start;
mod surroundings;

use std::sync::Arc;

use flatout_engine::tls::Identity;
use flatout_engine::{Plan, Service};
use flatout_wire::Method;
use flatout_wire::target::PathForm;

use crate::Error;
use crate::handler::{Endpoint, Handler, Shape};
use crate::lifetime::Lifetime;
use crate::middleware::{Around, InnerService, Middleware, layered};
use crate::mount::Mounted;
use crate::scope::Scope;

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
///
/// There is one function per method:
///
/// ```
/// use flatout::{App, Path, Status, test::Client};
///
/// let app = App::new()
///     .get("/items/{id}", |Path(id): Path<u32>| format!("item {id}"))
///     .put("/items/{id}", |Path(id): Path<u32>, text: String| format!("{id} is {text}"))
///     .patch("/items/{id}", |Path(id): Path<u32>| format!("changed {id}"))
///     .delete("/items/{id}", || ())
///     .post("/items", || Status::CREATED)
///     .options("/items", || ([("Allow", "POST")], ()));
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/items/7").send().text(), "item 7");
/// assert_eq!(client.delete("/items/7").send().status(), Status::NO_CONTENT);
/// assert_eq!(client.put("/items").send().status(), Status::METHOD_NOT_ALLOWED);
/// # Ok::<(), flatout::Error>(())
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
    pub(crate) plan: Plan,
    identities: Vec<Identity>,
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
            self.place(Some(Method::$method), pattern, handler.into_endpoint())
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
    ///
    /// ```
    /// use flatout::{App, Method, test::Client};
    ///
    /// let app = App::new().any("/echo", |method: Method| method.name());
    /// assert_eq!(Client::new(app)?.delete("/echo").send().text(), "DELETE");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn any<A, K>(self, pattern: &str, handler: impl Shape<A, K> + Handler<A, K>) -> App {
        self.place(None, pattern, handler.into_endpoint())
    }

    /// Handles requests that match no route, instead of 404.
    ///
    /// ```
    /// use flatout::{App, Html, Status, test::Client};
    ///
    /// let app = App::new().fallback(|| (Status::NOT_FOUND, Html("<h1>There is no such page</h1>")));
    /// assert_eq!(Client::new(app)?.get("/nowhere").send().text(), "<h1>There is no such page</h1>");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn fallback<A, K>(mut self, handler: impl Shape<A, K> + Handler<A, K>) -> App {
        self.fallbacks.retain(|fallback| !(fallback.scopes.is_empty() && fallback.prefix.is_empty()));
        let endpoint = handler.into_endpoint();
        self.fallbacks.push(Fallback { prefix: String::new(), endpoint, scopes: Vec::new() });
        self
    }

    /// Adds all routes of another application under a prefix, with its middleware and limits.
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
            // At the root, `/` stays itself.
            let inner = if route.pattern == "/" && !prefix.is_empty() { "" } else { &route.pattern };
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

    /// Adds all routes of another application as they are, with its middleware, state and limits: [`App::nest`] without a
    /// prefix. Two handlers for one route are an error when the application starts.
    ///
    /// ```
    /// use flatout::{App, test::Client};
    ///
    /// let users = App::new().get("/users", || "users");
    /// let items = App::new().get("/items", || "items");
    /// let client = Client::new(App::new().get("/", || "home").merge(users).merge(items))?;
    /// assert_eq!(client.get("/items").send().text(), "items");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn merge(self, app: App) -> App {
        self.nest("/", app)
    }

    /// Passes all requests at and below a prefix to a `tower::Service`, such as an axum `Router`. It sees the path
    /// without the prefix, and reads the body while it arrives.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use flatout::{App, test::Client};
    ///
    /// let router = Router::new().route("/hello", get(async || "hello from axum"));
    /// let client = Client::new(App::new().mount("/old", router))?;
    /// assert_eq!(client.get("/old/hello").send().text(), "hello from axum");
    /// # Ok::<(), flatout::Error>(())
    /// ```
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
        let app = if prefix.is_empty() { self } else { self.place(None, &prefix, endpoint.clone()) };
        let app = app.place(None, &format!("{prefix}/"), endpoint.clone());
        app.place(None, &format!("{prefix}/{{*rest}}"), endpoint)
    }

    /// Responds to GET with a WebSocket. `handler` is called with each message, on its worker's thread: if it blocks,
    /// it blocks every connection of the worker. The [`Socket`](crate::Socket) may be kept to send later, and
    /// [`Socket::sender`](crate::Socket::sender) sends from other threads. A handler with extractors, for the path or the user,
    /// takes [`WebSocketUpgrade`](crate::WebSocketUpgrade).
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

    /// The same with its own limits.
    ///
    /// ```
    /// use flatout::{App, WebSocketPlan};
    ///
    /// let mut plan = WebSocketPlan { compression: false, ..WebSocketPlan::default() };
    /// plan.limits.message_bytes_max = 64 << 10;
    /// App::new().websocket_with("/echo", plan, |socket, message| socket.send(message));
    /// ```
    pub fn websocket_with(
        self,
        pattern: &str,
        plan: crate::WebSocketPlan,
        handler: impl Fn(&crate::Socket, crate::Message<'_>) + Send + Sync + 'static,
    ) -> App {
        let endpoint = Arc::new(crate::websocket::WebSocketEndpoint::new(plan, handler));
        self.place(Some(Method::Get), pattern, endpoint)
    }

    /// Serves the channels of a publisher: `GET` subscribes by Server-Sent Events, WebSocket or long poll
    /// (`?poll=1`), and the pattern ends in the channel's name. Clones of the publisher publish to all subscribers,
    /// on all workers.
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
        self.place(None, pattern, Arc::new(crate::push::PushEndpoint::new(publisher)))
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

    /// Proxies requests at and below a prefix to another server, where no route matches: the proxy of `flatout
    /// serve`. The server sees the path without the prefix, in its normal form. It replaces a
    /// [`fallback`](App::fallback) there.
    ///
    /// A proxied response does not pass through middleware: middleware may reject a request before it is proxied, but
    /// code that changes responses, such as [`App::after`] and layers, does not see those of the other server. Behind
    /// [`App::layer`], the request's body is collected first.
    ///
    /// # Errors
    /// What the client gets: 502 if the server cannot be reached or does not respond with HTTP, 503 if too many
    /// requests wait, 504 if it takes too long.
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
        let endpoint = Arc::new(crate::reverse_proxy::ProxyEndpoint::new(plan));
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

    /// Runs middleware of [`flatout::middleware`](crate::middleware), or your own, around all routes of this application.
    /// The first one is outermost, including those added by [`App::around`] and [`App::layer`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use flatout::App;
    /// use flatout::middleware::{RequestIds, Timeout};
    ///
    /// App::new().with(RequestIds::new()).with(Timeout::new(Duration::from_secs(10))).get("/", || "hello");
    /// ```
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
    /// The layer wraps an [`InnerService`], whose future and response body are not `Send`. It does not see responses that do
    /// not come from the handler itself: those of long polls and proxies, and what is sent on a connection that a
    /// [mounted](App::mount) router takes over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use flatout::{App, test::Client};
    /// use http::StatusCode;
    /// use tower_http::timeout::TimeoutLayer;
    ///
    /// let limit = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10));
    /// let client = Client::new(App::new().layer(limit).get("/", || "hello"))?;
    /// assert_eq!(client.get("/").send().text(), "hello");
    /// # Ok::<(), flatout::Error>(())
    /// ```
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

    /// Routes GET to this endpoint.
    #[cfg(feature = "openapi")]
    pub(crate) fn route_endpoint(self, pattern: &str, endpoint: Arc<dyn Endpoint>) -> App {
        self.place(Some(Method::Get), pattern, endpoint)
    }

    fn place(mut self, method: Option<Method>, pattern: &str, endpoint: Arc<dyn Endpoint>) -> App {
        self.routes.push(Route { method, pattern: pattern.to_owned(), endpoint, scopes: Vec::new() });
        self
    }
}
