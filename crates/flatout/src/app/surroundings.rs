//! What surrounds the handlers of an application: state, checks, limits.

use std::any::TypeId;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::Response;
use flatout_wire::target::PathForm;

use super::App;
use crate::chain::Answered;
use crate::{Context, Error, Respond};

impl App {
    /// A value that handlers get as [`State`](crate::State), shared by all workers. A second value of one type is an error
    /// when the application starts; a nested application may have its own.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> App {
        if self.scope.states.insert(TypeId::of::<T>(), Arc::new(value)).is_some() {
            self.fault = self.fault.or(Some(given_twice::<T>("state")));
        }
        self
    }

    /// A value that each worker makes for itself. Its handlers get it as [`Local`](crate::Local), without a lock. As with
    /// [`App::state`], one for each type.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use flatout::{App, Local, State, test::Client};
    ///
    /// let app = App::new()
    ///     .state(String::from("visit"))
    ///     .local(|| Cell::new(0_u32))
    ///     .get("/", |State(word): State<String>, Local(count): Local<Cell<u32>>| {
    ///         count.set(count.get() + 1);
    ///         format!("{word} {}", count.get())
    ///     });
    /// let client = Client::new(app)?;
    /// client.get("/").send();
    /// assert_eq!(client.get("/").send().text(), "visit 2");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn local<T: 'static>(mut self, make: impl Fn() -> T + Send + Sync + 'static) -> App {
        let id = TypeId::of::<T>();
        if self.scope.locals.iter().any(|(known, _)| *known == id) {
            self.fault = self.fault.or(Some(given_twice::<T>("local")));
        }
        self.scope.locals.push((id, Box::new(move || Rc::new(make()))));
        self
    }

    /// Runs before each handler of this application, in the order of registration. An `Err` is the response.
    ///
    /// ```
    /// use flatout::{App, Problem, Status, test::Client};
    ///
    /// let app = App::new()
    ///     .before(|context| match context.header("x-key") {
    ///         Some(b"secret") => Ok(()),
    ///         _ => Err(Problem::new(Status::FORBIDDEN)),
    ///     })
    ///     .get("/", || "in");
    /// let client = Client::new(app)?;
    /// assert_eq!(client.get("/").header("X-Key", "secret").send().text(), "in");
    /// assert_eq!(client.get("/").send().status(), Status::FORBIDDEN);
    /// # Ok::<(), flatout::Error>(())
    /// ```
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
    ///
    /// ```
    /// use flatout::{App, test::Client};
    ///
    /// let app = App::new().get("/", || "hello").after(|answered, response| {
    ///     println!("{} {} {}", answered.method.name(), answered.path, response.status().code());
    ///     response.header("X-Frame-Options", "DENY");
    /// });
    /// assert_eq!(Client::new(app)?.get("/").send().header("X-Frame-Options"), Some("DENY"));
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn after(mut self, change: impl Fn(&Answered<'_>, &mut Response) + Send + Sync + 'static) -> App {
        self.scope.after.push(Box::new(change));
        self
    }

    /// The largest request body for this application's routes, in decoded bytes; larger ones get 413. The default is the
    /// server's limit.
    ///
    /// ```
    /// use flatout::{App, Status, test::Client};
    ///
    /// let app = App::new().post("/", |text: String| text).body_limit(1 << 10);
    /// let client = Client::over_socket(app)?;
    /// assert_eq!(client.post("/").body("x".repeat(2000)).send().status(), Status::CONTENT_TOO_LARGE);
    /// # Ok::<(), flatout::Error>(())
    /// ```
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
    /// `10.0.0.0/8`, or `unix` for all clients of a Unix socket. By default, none is trusted. For `App::proxy`, their
    /// `X-Forwarded-Proto` is trusted too.
    ///
    /// ```
    /// use flatout::{App, ClientIp, test::Client};
    ///
    /// let app = App::new()
    ///     .trusted_proxies(&["127.0.0.1", "10.0.0.0/8"])
    ///     .get("/", |ClientIp(client): ClientIp| client.map(|client| client.to_string()));
    /// let client = Client::over_socket(app)?;
    /// assert_eq!(client.get("/").header("X-Forwarded-For", "203.0.113.9").send().text(), "203.0.113.9");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn trusted_proxies(mut self, networks: &[&str]) -> App {
        match networks.iter().map(|network| network.parse()).collect() {
            Ok(networks) => self.scope.trusted = Some(networks),
            Err(message) => self.fault = self.fault.or(Some(Error::Usage(message))),
        }
        self
    }

    /// Keeps what other servers respond with ([`App::proxy`]) in a cache: in this application and in those nested in it. A
    /// proxy's own cache ([`Proxy::cache`](crate::Proxy::cache)) goes first, then that of the innermost application.
    ///
    /// Responses of handlers are not cached; [`Conditions`](crate::Conditions) spare a client what it has already.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use flatout::App;
    /// use flatout::cache::{Cache, Plan, Purge, Rules, PurgeScope};
    ///
    /// let cache = Cache::open(Plan { memory_bytes: 64 << 20, ..Plan::default() });
    /// let purged = cache.clone();
    /// App::new()
    ///     .cache(&cache, Rules::fresh(Duration::from_secs(60)))
    ///     .proxy("/shop", "http://10.0.0.5:3000")
    ///     .proxy("/blog", "http://10.0.0.6:3000")
    ///     .post("/purge", move || purged.purge(&Purge { scope: PurgeScope::All, is_soft: true }).to_string());
    /// ```
    #[cfg(feature = "proxy")]
    pub fn cache(mut self, cache: &crate::cache::Cache, rules: crate::cache::Rules) -> App {
        self.scope.cache = Some(crate::reverse_proxy::Cached::new(cache, rules));
        self
    }
}

fn given_twice<T>(method: &str) -> Error {
    let name = std::any::type_name::<T>();
    Error::Route(format!(
        "`.{method}` has two values of the type `{name}`: give one of them a type of its own"
    ))
}
