//! Requests that another server answers, by the proxy of `flatout serve`.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use flatout_cache::{Cache, Rules};
use flatout_engine::{BodyPlan, Reply, Request, RequestBody, Response};
use flatout_gateway::{Caching, Client, Edits, Finish, Forwarded, Forwarding, ResponseOrigin};
use flatout_proxy::{self as proxy, Forward, Host, Resolver, Server, SpoolPlan, Upstream};
use flatout_wire::{Framing, Head, Status};

use crate::extract::{BodyUse, ClientIp, Extract, is_from_proxy, is_https};
use crate::handler::Endpoint;
use crate::mount::{below, target};
use crate::ready::SpareId;
use crate::{Context, Error, Problem, Respond, Result};

/// Servers for [`App::proxy`](crate::App::proxy). Connections are kept by each worker; requests that are safe to repeat are sent
/// again within a budget; a server that fails is left alone for a while. A text is one server.
///
/// ```no_run
/// use std::time::Duration;
/// use flatout::{App, Proxy};
///
/// let old = Proxy::to("http://10.0.0.5:3000").and("http://10.0.0.6:3000");
/// App::new()
///     .get("/api/time", || "now")
///     .proxy("/", old.upstream(|upstream| upstream.read_time_max = Duration::from_secs(5)));
/// ```
#[derive(Clone)]
pub struct Proxy {
    upstream: Upstream,
    forward: Forward,
    spool: SpoolPlan,
    cache: Option<Cached>,
    resolver: Resolver,
    fault: Option<String>,
}

/// A cache for responses of other servers.
#[derive(Clone)]
pub(crate) struct Cached {
    cache: Cache,
    rules: Arc<Rules>,
}

impl Cached {
    pub(crate) fn new(cache: &Cache, rules: Rules) -> Cached {
        Cached { cache: cache.clone(), rules: Arc::new(rules) }
    }
}

impl Proxy {
    /// To one server: `http://HOST:PORT`, `HOST:PORT` or `unix:PATH`. A name is looked up again when its time to live ends.
    pub fn to(server: &str) -> Proxy {
        let upstream = Upstream::new(server, Vec::new());
        let (forward, resolver) = (Forward::to(0), Resolver::default());
        Proxy { upstream, forward, spool: SpoolPlan::default(), cache: None, resolver, fault: None }
            .and(server)
    }

    /// To one server more; they take turns.
    pub fn and(mut self, server: &str) -> Proxy {
        match server.parse::<Server>() {
            Ok(parsed) => {
                if !self.upstream.servers.is_empty() {
                    self.upstream.name += &format!(", {server}");
                }
                self.upstream.servers.push(parsed);
            }
            Err(message) => self.fault = self.fault.or(Some(format!("proxy: {message}"))),
        }
        self
    }

    /// Changes anything of the upstream: how a server is chosen, limits, retries, health checks.
    pub fn upstream(mut self, change: impl FnOnce(&mut Upstream)) -> Proxy {
        change(&mut self.upstream);
        self
    }

    /// Changes how requests are forwarded: `Host`, forwarding fields, `Via`.
    ///
    /// ```
    /// use flatout::{App, Proxy, proxy::Host};
    ///
    /// let old = Proxy::to("http://10.0.0.5:3000").forward(|forward| forward.host = Host::Set("shop.internal".to_owned()));
    /// App::new().proxy("/", old);
    /// ```
    pub fn forward(mut self, change: impl FnOnce(&mut Forward)) -> Proxy {
        change(&mut self.forward);
        self
    }

    /// Sets where responses are kept whose clients are slow, and how much of them; by default in memory. With a folder, upstreams are let
    /// go as soon as they have responded, however slow their clients are.
    ///
    /// ```
    /// use flatout::{App, Proxy, proxy::SpoolPlan};
    ///
    /// let plan = SpoolPlan { folder: Some("/var/tmp".into()), ..SpoolPlan::default() };
    /// App::new().proxy("/", Proxy::to("http://10.0.0.5:3000").spool(plan));
    /// ```
    pub fn spool(mut self, plan: SpoolPlan) -> Proxy {
        self.spool = plan;
        self
    }

    /// Keeps responses in a cache, which several proxies may share and any handler may purge. [`App::cache`](crate::App::cache) does
    /// so for all proxies of an application.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use flatout::cache::{Cache, Plan, Purge, Rules};
    /// use flatout::{App, Problem, Proxy, Status};
    ///
    /// let cache = Cache::open(Plan { memory_bytes: 64 << 20, ..Plan::default() });
    /// let old = Proxy::to("http://10.0.0.5:3000").cache(&cache, Rules::fresh(Duration::from_secs(60)));
    /// App::new().proxy("/", old).post("/purge", move |what: String| match Purge::from_text(&what) {
    ///     Ok(purge) => Ok(cache.purge(&purge).to_string()),
    ///     Err(bad) => Err(Problem::new(Status::BAD_REQUEST).detail(bad.to_string())),
    /// });
    /// ```
    pub fn cache(mut self, cache: &Cache, rules: Rules) -> Proxy {
        self.cache = Some(Cached::new(cache, rules));
        self
    }

    pub(crate) fn fault(&mut self) -> Option<Error> {
        self.fault.take().map(Error::Usage)
    }
}

impl From<&str> for Proxy {
    fn from(server: &str) -> Proxy {
        Proxy::to(server)
    }
}

/// An upstream below a prefix.
pub(crate) struct ProxyEndpoint {
    /// Segments of the prefix, once it is known where this was nested.
    segments: OnceLock<usize>,
    plan: Proxy,
    opened: OnceLock<proxy::Proxy>,
    /// Of each worker's connections.
    id: SpareId,
}

impl ProxyEndpoint {
    pub(crate) fn new(plan: Proxy) -> ProxyEndpoint {
        ProxyEndpoint { segments: OnceLock::new(), plan, opened: OnceLock::new(), id: SpareId::new() }
    }

    /// Starts name resolution and health checks.
    ///
    /// # Errors
    /// The thread cannot be started, or the resolver's configuration cannot be read.
    pub(crate) fn open(&self) -> Result<()> {
        let name = &self.plan.upstream.name;
        let mut upstream = self.plan.upstream.clone();
        // Proxies to the same servers may share a cache. The name is in its key, and a server may serve several hosts.
        match &self.plan.forward.host {
            Host::Kept => {}
            Host::Upstream => upstream.name += " (its own host)",
            Host::Set(host) => upstream.name += &format!(" ({host})"),
        }
        let opened = proxy::Proxy::open(vec![upstream], &self.plan.resolver)
            .map_err(|error| Error::Start(format!("cannot pass requests on to `{name}`: {error}")))?;
        opened.set_spool(self.plan.spool.clone());
        // If it was opened before, the first one stays.
        let _ = self.opened.set(opened);
        Ok(())
    }
}

impl Endpoint for ProxyEndpoint {
    /// The form of the body that middleware passes on if it has copied the request.
    fn body_use(&self) -> BodyUse {
        BodyUse::Whole
    }

    fn body_plan(&self, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        if head.framing != Framing::None && self.plan.upstream.protocol.is_cgi() {
            return BodyPlan::Whole { bytes_max };
        }
        flatout_proxy::body_plan(&self.plan.forward, head, bytes_max)
    }

    fn placed(&self, prefix: &str) {
        let _ = self.segments.set(prefix.matches('/').count());
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let (Some(opened), Some(worker)) = (self.opened.get(), context.local.worker()) else {
            let detail = "requests are passed on by a server: test this over a socket";
            Problem::new(Status::NOT_IMPLEMENTED).detail(detail).respond(response);
            return Reply::Now;
        };
        let cache = self.plan.cache.as_ref().or(context.place.cache());
        let forwarding: Rc<Rc<dyn Forwarding>> = context.local.spares.keep(self.id, || {
            let proxy_worker = opened.worker(worker);
            match cache {
                Some(cached) => cached.cache.before(worker, proxy_worker),
                None => proxy_worker as Rc<dyn Forwarding>,
            }
        });
        let address = ClientIp::extract(context).ok().and_then(|ClientIp(address)| address);
        let (is_https, is_from_proxy) = (is_https(context), is_from_proxy(context));
        let client = Client { address, is_https, is_early: false, is_from_proxy };
        let inner = below(context.path(), self.segments.get().copied().unwrap_or_default());
        let target = target(context, inner);
        let detached = Request::detached(*context.head(), context.path().as_bytes(), RequestBody::NONE);
        let mut request = std::mem::replace(&mut context.request, detached);
        request.path = inner.as_bytes();
        let forward = &self.plan.forward;
        let finish = Rc::new(AsProblem);
        let edits = Edits::default();
        let caching = cache.map(|cached| Caching {
            rules: &cached.rules,
            key: None,
            space: b"",
            names_authorization: false,
            repeats: false,
            is_bypassed: false,
            is_refreshed: false,
            is_unstored: false,
        });
        let forwarded = Forwarded { forward, target: target.as_bytes(), client, edits, finish, caching };
        forwarding.forward(request, forwarded, response)
    }
}

/// Error responses in place of the upstream's, such as 502, have the same form as the application's own.
struct AsProblem;

impl Finish for AsProblem {
    fn finish(&self, response: &mut Response, by: ResponseOrigin) {
        let status = response.status();
        if by == ResponseOrigin::Upstream || status.code() < 400 {
            return;
        }
        let retry_after = response.field("retry-after").map(<[u8]>::to_vec);
        response.reset();
        Problem::new(status).respond(response);
        if let Some(value) = retry_after {
            response.header("Retry-After", value);
        }
    }
}
