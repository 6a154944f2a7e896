//! Which pages of other origins may call an application (the Fetch standard's CORS protocol).

use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{Reply, Response};
use flatout_wire::{Method, Status};

use super::{Inner, Middleware};
use crate::Context;

/// Allows scripts of other origins to call the application, and responds to their preflight requests. Without origins,
/// none is allowed. It never reflects an arbitrary origin together with credentials.
///
/// ```
/// use flatout::middleware::Cors;
/// use flatout::{App, test::Client};
///
/// let app = App::new().with(Cors::new().origins(["https://shop.example"])).get("/", || "hello");
/// let client = Client::new(app)?;
/// let answer = client.get("/").header("Origin", "https://shop.example").send();
/// assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://shop.example"));
/// let other = client.get("/").header("Origin", "https://evil.example").send();
/// assert_eq!(other.header("Access-Control-Allow-Origin"), None);
/// # Ok::<(), flatout::Error>(())
/// ```
///
/// With cookies, or for all origins:
///
/// ```
/// use std::time::Duration;
/// use flatout::middleware::Cors;
/// use flatout::{App, Method};
///
/// let shop = Cors::new()
///     .origins(["https://shop.example"])
///     .methods(&[Method::Get, Method::Post])
///     .headers(&["Content-Type", "X-Csrf"])
///     .expose(&["X-Total"])
///     .credentials()
///     .max_age(Duration::from_secs(3600));
/// let prices = App::new().with(Cors::new().any_origin()).get("/", || "42");
/// App::new().with(shop).post("/cart", || ()).nest("/prices", prices);
/// ```
#[derive(Debug, Clone)]
pub struct Cors(Arc<Rules>);

#[derive(Debug, Clone)]
struct Rules {
    origins: Origins,
    methods: String,
    headers: Option<String>,
    expose: Option<String>,
    credentials: bool,
    max_age_s: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origins {
    Any,
    These(Vec<String>),
}

/// Default time for which a browser caches a preflight response.
const MAX_AGE_S: u64 = 600;

impl Cors {
    /// Rules that allow no origin.
    pub fn new() -> Cors {
        Cors(Arc::new(Rules {
            origins: Origins::These(Vec::new()),
            methods: "GET, HEAD, POST, PUT, PATCH, DELETE".to_owned(),
            headers: None,
            expose: None,
            credentials: false,
            max_age_s: MAX_AGE_S,
        }))
    }

    /// Allows these origins, such as `https://shop.example` or `http://localhost:3000`.
    pub fn origins<T: Into<String>>(self, origins: impl IntoIterator<Item = T>) -> Cors {
        let origins = origins.into_iter().map(Into::into).collect();
        self.with(|rules| rules.origins = Origins::These(origins))
    }

    /// Allows every origin, without credentials.
    pub fn any_origin(self) -> Cors {
        self.with(|rules| rules.origins = Origins::Any)
    }

    /// The methods that scripts may use; by default all common ones.
    pub fn methods(self, methods: &[Method]) -> Cors {
        let names: Vec<&str> = methods.iter().map(|method| method.name()).collect();
        self.with(|rules| rules.methods = names.join(", "))
    }

    /// The request fields that scripts may set; by default any.
    pub fn headers(self, names: &[&str]) -> Cors {
        self.with(|rules| rules.headers = Some(names.join(", ")))
    }

    /// The response fields that scripts may read in addition to the default ones.
    pub fn expose(self, names: &[&str]) -> Cors {
        self.with(|rules| rules.expose = Some(names.join(", ")))
    }

    /// Allows credentials such as cookies. Cannot be combined with [`Cors::any_origin`].
    pub fn credentials(self) -> Cors {
        self.with(|rules| rules.credentials = true)
    }

    /// How long a browser may cache a preflight response; by default ten minutes.
    pub fn max_age(self, time: Duration) -> Cors {
        self.with(|rules| rules.max_age_s = time.as_secs())
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Cors {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl Default for Cors {
    fn default() -> Self {
        Cors::new()
    }
}

impl Rules {
    /// The value of `Access-Control-Allow-Origin`, if this origin is allowed.
    fn allowed(&self, origin: &[u8]) -> Option<String> {
        match &self.origins {
            Origins::Any => Some("*".to_owned()),
            Origins::These(known) => known.iter().find(|known| known.as_bytes() == origin).cloned(),
        }
    }

    fn write_origin(&self, origin: Option<&str>, response: &mut Response) {
        if self.origins != Origins::Any {
            super::vary(response, "Origin");
        }
        let Some(origin) = origin else { return };
        response.header("Access-Control-Allow-Origin", origin);
        if self.credentials {
            response.header("Access-Control-Allow-Credentials", "true");
        }
    }

    /// The response to a preflight request. If the origin is not allowed, the browser blocks the request.
    fn write_preflight(&self, asked_headers: Option<&[u8]>, response: &mut Response) {
        response.header("Access-Control-Allow-Methods", &self.methods);
        match (&self.headers, asked_headers) {
            (Some(headers), _) => {
                response.header("Access-Control-Allow-Headers", headers);
            }
            (None, Some(asked)) => {
                response.header("Access-Control-Allow-Headers", asked);
                super::vary(response, "Access-Control-Request-Headers");
            }
            (None, None) => {}
        }
        response.header("Access-Control-Max-Age", self.max_age_s.to_string());
    }
}

impl Middleware for Cors {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let origin = context.header("origin").and_then(|origin| self.0.allowed(origin));
        let is_preflight = context.method() == Method::Options
            && context.header("origin").is_some()
            && context.header("access-control-request-method").is_some();
        if is_preflight {
            response.set_status(Status::NO_CONTENT);
            self.0.write_origin(origin.as_deref(), response);
            if origin.is_some() {
                self.0.write_preflight(context.header("access-control-request-headers"), response);
            }
            return Reply::Now;
        }
        let rules = self.0.clone();
        inner.call_then(context, response, move |response| {
            rules.write_origin(origin.as_deref(), response);
            if let (Some(_), Some(expose)) = (&origin, &rules.expose) {
                response.header("Access-Control-Expose-Headers", expose);
            }
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.0.credentials && self.0.origins == Origins::Any {
            return Err("CORS: credentials need a list of origins; set it with `origins`".to_owned());
        }
        let Origins::These(origins) = &self.0.origins else { return Ok(()) };
        // Browsers compare the text, so an origin with a slash at the end would never match.
        let is_origin = |origin: &String| {
            origin == "null"
                || origin.split_once("://").is_some_and(|(scheme, host)| {
                    !scheme.is_empty() && !host.is_empty() && !host.contains(['/', ' ', '*'])
                })
        };
        match origins.iter().find(|origin| !is_origin(origin)) {
            Some(wrong) => {
                Err(format!("CORS: got origin `{wrong}`, need one such as `https://shop.example`"))
            }
            None => Ok(()),
        }
    }
}
