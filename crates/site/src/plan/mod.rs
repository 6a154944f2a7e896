//! The settings of sites.
//!
//! Everything that several routes may share is in the [`Plan`] once, and routes name it by its index: an upstream, a
//! folder, a rate, a concurrency limit, a map. Nothing is inherited: each route of a plan contains the defaults of
//! its site.

mod condition;
mod cookies;
mod expires;
mod map;
mod net;
mod rules;
mod shared;
mod template;
mod used;

use flatout_cache as cache;
use flatout_files as files;
use flatout_gateway as gateway;
use flatout_proxy as proxy;
use flatout_push as push;

pub use condition::{Condition, Expression, ExpressionFault, FACTS, TABLES, Vocabulary, WhenBlock};
pub use cookies::{CookieFlag, CookieRule, LocationRule, Matcher, SameSite};
pub use expires::{Expires, ExpiresFrom, Validity};
pub use map::{CrawlerAddresses, Map, MapFile, MapKey, MapKind, MapProxies, SetValue, SetVariable};
pub(crate) use net::number;
pub use net::{BadNet, Net, Peers};
pub use rules::{
    Access, BasicAuth, BodyLimit, ByteCount, CHARSET_TYPES, Cached, Concurrency, ConcurrencyUse, Cors,
    ErrorPage, FieldChange, FieldRule, ForwardAuth, Hsts, Limited, Maintenance, Origins, Page, PageSource,
    REPLACED_TYPE, Rate, RateUse, ReplacedParts, Replacement, Rules, SendfileFolder, User, Verdict, When,
};
pub use shared::SharedSite;
pub use template::{
    BadTemplate, OfAnnounced, OfCertificate, OfLimits, OfUpstream, Piece, Template, VARIABLES, Variable,
};

/// All sites of a server.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The groups of servers that requests are forwarded to.
    pub upstreams: Vec<proxy::Upstream>,
    /// What looks up the names of their servers.
    pub resolver: proxy::Resolver,
    /// Where responses of upstreams are kept whose clients are slow.
    pub spool: proxy::SpoolPlan,
    /// The folders that files are served from.
    pub folders: Vec<files::Plan>,
    /// The cache for responses, for routes that use it.
    pub cache: cache::Plan,
    /// Rate limits. Routes that name the same one share its counters.
    pub rates: Vec<Rate>,
    /// Concurrency limits. Routes that name the same one share their counters.
    pub concurrency: Vec<Concurrency>,
    /// Tables that turn one text into another.
    pub maps: Vec<Map>,
    /// Values of variables. Each may use maps, and values of a smaller index.
    pub sets: Vec<SetVariable>,
    /// Addresses that operators of crawlers have published: such crawlers are verified by them instead of by DNS.
    pub crawler_addresses: Vec<CrawlerAddresses>,
    /// Whose information about the client's address is trusted in requests that belong to no site.
    pub trust: Trust,
    /// The sites.
    pub sites: Vec<SharedSite>,
    /// The addresses of listeners, by their numbers.
    pub addresses: Vec<(u16, std::net::SocketAddr)>,
    /// The files that it names do not change, and its author sets the servers of running upstreams. Parts that are the same as in the plan
    /// before are used again: sites are not opened again, and connections stay if upstreams differ only in servers.
    pub keeps_unchanged: bool,
}

/// Whose information about the client's address is trusted. By default nobody's: the client is the peer of the
/// connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// The proxies in front of this server (`trusted-proxies`).
    pub proxies: Vec<Peers>,
    /// The field in which they send the client's address. Only one is trusted: proxies set one field and pass the
    /// others on as the client sent them.
    pub from: AddressFrom,
}

/// Where a trusted proxy sends the client's address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AddressFrom {
    /// `X-Forwarded-For`, and `X-Forwarded-Proto` for the scheme: the first address from the right that is not a
    /// trusted proxy's.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), read in the same way.
    Forwarded,
    /// A field with only the address, such as `X-Real-IP`.
    Header(String),
    /// A PROXY protocol header, version 1 or 2, before the first request of the connection.
    ProxyProtocol,
}

/// One site: what is served under some host names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Site {
    /// Its name in logs and metrics; usually its first host name.
    pub name: String,
    /// Its number in logs and metrics ([`Sites`](flatout_observe::observed::Sites)).
    pub number: u16,
    /// The listeners where it is served; empty: all.
    pub listeners: Vec<SiteListener>,
    /// Its host names. Each may be in one site only at the same listener.
    pub hosts: Vec<Host>,
    /// Distinguishes its responses in the cache from those of a site that has the same host names at another listener;
    /// empty if there is none.
    pub cache_space: String,
    /// Whose information about the client's address is trusted.
    pub trust: Trust,
    /// The rules that its connections with TLS must have followed ([`Tls::rules`](flatout_engine::Tls::rules)); `None`: any.
    pub tls_rules: Option<u16>,
    /// Its connections with TLS are passed on: it has no routes then.
    pub tls_passthrough: Option<TlsPassthrough>,
    /// The number of the listener where a renderer requests what its pages need. These requests have a client that nobody is, and no limits
    /// of rates and of concurrency.
    pub renderer: Option<u16>,
    /// Rewrites of every request, before a route is chosen.
    pub rewrites: Vec<Rewrite>,
    /// Its routes. See [`PathMatch`] for which one matches, and [`RouteEntry`] for those that are reached otherwise.
    pub routes: Vec<Route>,
    /// The rules of 404 and 405 responses when no route matches.
    pub rules: Rules,
}

/// Where connections with TLS go whose inside is not for this server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPassthrough {
    /// TLS ends here, and what is inside is passed on. Otherwise connections are passed on as they are.
    pub ends_tls: bool,
    /// The upstreams. Without any, connections are refused.
    pub shares: Vec<PassthroughShare>,
}

/// A share of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassthroughShare {
    /// Its size, relative to the others.
    pub weight: u32,
    /// The index of the upstream, whose servers are without TLS of their own; `None`: these connections are closed.
    pub upstream: Option<usize>,
}

/// A listener of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteListener {
    /// Its number ([`Listen::number`](flatout_engine::Listen::number)).
    pub number: u16,
    /// The site also gets requests for host names that no site has there.
    pub is_default: bool,
}

impl Site {
    /// Whether it gets the requests for other host names at this listener; `None` if it is not served there.
    pub(crate) fn is_at(&self, number: u16) -> Option<bool> {
        match &self.listeners[..] {
            [] => Some(false),
            listeners => listeners.iter().find(|at| at.number == number).map(|at| at.is_default),
        }
    }
}

/// A host name of a site, without a port. Case is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// This one.
    Exact(String),
    /// Every name below this one: `example.org` for `*.example.org`. The longest match wins.
    Below(String),
    /// Names that match this regular expression, in lower case and without a port; the first match wins, if no name
    /// above matches.
    Pattern(String),
    /// None: requests without a host, which only HTTP/1.0 allows.
    Unnamed,
    /// Every other name, and requests without one. Without an `Any` host, other names get 421 (Misdirected Request), and
    /// requests without one go to the first site, unless one is `Unnamed`.
    Any,
}

/// A part of a site: a set of paths, their rules, and their action.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its name in logs and in `explain`; usually the path as written in the file.
    pub name: String,
    /// The paths.
    pub path: PathMatch,
    /// The methods, as sent; empty means all. `GET` includes `HEAD`. A request with another method goes to a route with
    /// the same paths that has its method. If there is none, the rules of this route apply, and the response is 405: it
    /// never goes to a route that is less specific.
    pub methods: Vec<String>,
    /// How requests get here.
    pub entry: RouteEntry,
    /// It is chosen only if all of these are true; otherwise the next route that has the path.
    pub when: Vec<Condition>,
    /// How ambiguous paths are handled.
    pub paths: PathPolicy,
    /// Rewrites of the path, in this order, before `action`.
    pub rewrites: Vec<Rewrite>,
    /// The rules for its requests.
    pub rules: Rules,
    /// For [`Action::Proxy`]: the name of the upstream, in place of the action's, perhaps behind `http://`. Names of no upstream of the
    /// plan get 502, unless requests may name servers.
    pub upstream_name: Option<Template>,
    /// A name of no upstream is that of a server: the action's upstream gets the request with it, and decides whether requests may
    /// name it.
    pub names_server: bool,
    /// The names of the upstreams that requests may name; `None`: all of the plan.
    pub named_upstreams: Option<Vec<String>>,
    /// A folder whose files are tried for GET and HEAD before `action`; the index in [`Plan::folders`].
    pub try_files: Option<usize>,
    /// What is in this folder is not for `action`: a folder without an index gets 403, and a file allows other methods no more than
    /// in [`Action::Files`].
    pub try_files_final: bool,
    /// The path at which the folder of `try_files` or `action` is, without a slash at the end: names of files are what follows it.
    pub files_at: String,
    /// The action.
    pub action: Action,
}

/// How requests get to a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouteEntry {
    /// By their path.
    #[default]
    Paths,
    /// Before paths are compared, if its conditions are true; the first such route is used.
    BeforePaths,
    /// By their path, but only after a rewrite or a fallback. Others get 404.
    Internal,
    /// By its name only, from fallbacks of other routes.
    Named,
}

/// The paths of a route. All are compared with the path in its normal form, in nginx's order: an exact match;
/// otherwise the longest prefix, if it is `before_patterns`; otherwise the first glob or regex that matches, in the
/// order of the routes; otherwise the longest prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// This path.
    Exact(String),
    /// Paths that start with this one.
    Prefix {
        /// The prefix; `/` matches every path.
        path: String,
        /// Whether it matches whole segments: `/api` then matches `/api` and `/api/x`, but not `/apix`.
        segments: bool,
        /// Whether globs and regexes are skipped if this is the longest prefix (`^~` in nginx).
        before_patterns: bool,
    },
    /// `*` is any text without a slash, `**` any text, `?` one byte that is no slash.
    Glob(String),
    /// A regular expression (the crate `regex`: no look-around, no back-references). It is not anchored by itself;
    /// its groups are `$1` to `$9`, and its named groups `$name`, in templates.
    Regex {
        /// The expression.
        pattern: String,
        /// Whether case is ignored.
        ignore_case: bool,
    },
}

/// How paths that can be read in several ways are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// They are refused with 400: dot segments, `%2F`, backslashes, control bytes. For files.
    #[default]
    Strict,
    /// Dot segments are resolved and slashes merged; `%2F` is not a separator. For upstreams. If another reading of
    /// the path, as some applications do it, would lead to another route, the path is sent in its normal form. If the
    /// normal form is ambiguous too, the response is 400.
    Forward,
}

/// A change of the path before a request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The part of the path that is replaced.
    pub from: RewriteFrom,
    /// The replacement. For a regex, a template with `?…` at the end replaces the query too; otherwise the query is
    /// kept.
    pub to: Template,
    /// What happens afterwards.
    pub then: Then,
    /// It is tried only if all of these are true.
    pub when: Vec<Condition>,
}

/// The part of the path that a rewrite replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewriteFrom {
    /// This text at the start; the rest stays. `/api/` to `/` is nginx's `proxy_pass http://x/` in `location /api/`,
    /// and turns a `root` into an `alias`.
    Prefix(String),
    /// The whole path, if the regular expression matches.
    Regex {
        /// The expression.
        pattern: String,
        /// Whether case is ignored.
        ignore_case: bool,
    },
}

/// What follows a rewrite that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// The next rewrite is tried.
    #[default]
    Next,
    /// No other rewrite here (`break` in nginx).
    Stop,
    /// A route is chosen again for the new path (`last` in nginx), with all its rules; ten times at most.
    Route,
}

/// The action of a route.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The files of a folder; the index in [`Plan::folders`].
    Files(usize),
    /// An upstream.
    Proxy(gateway::Forward),
    /// Channels.
    Push(Box<push::Plan>),
    /// A redirect.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// `Location`.
        to: Template,
    },
    /// A fixed response.
    Respond {
        /// 200 to 599.
        status: u16,
        /// `Content-Type`.
        content_type: String,
        /// The body.
        body: Template,
    },
    /// Another route of the site, with all its rules; ten times at most.
    Reroute(Reroute),
    /// The figures of the server in the form of nginx's `stub_status`, for GET and HEAD.
    StubStatus,
    /// The connection is closed without a response. No password, auth service or limit is checked.
    Close,
}

/// Where a request continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reroute {
    /// At the route of this name, whose [`RouteEntry`] is `Named`, with its path and query.
    Named(String),
    /// At the route of this path; `?…` at its end is the query.
    Path(Template),
}

impl Route {
    /// A route with this path and action, with default settings.
    pub fn new(path: PathMatch, action: Action) -> Route {
        let paths = match action {
            Action::Files(_) | Action::Push(_) => PathPolicy::Strict,
            // What they respond does not depend on how a path is read.
            _ => PathPolicy::Forward,
        };
        Route {
            name: path.text().to_owned(),
            path,
            methods: Vec::new(),
            entry: RouteEntry::Paths,
            when: Vec::new(),
            paths,
            rewrites: Vec::new(),
            rules: Rules::default(),
            upstream_name: None,
            names_server: false,
            named_upstreams: None,
            try_files: None,
            try_files_final: false,
            files_at: String::new(),
            action,
        }
    }
}

impl PathMatch {
    /// `path` and everything below it; with a trailing slash, only what is below it.
    pub fn prefix(path: &str) -> PathMatch {
        PathMatch::Prefix { path: path.to_owned(), segments: true, before_patterns: false }
    }

    /// Whether both match the same paths.
    pub fn is_same(&self, other: &PathMatch) -> bool {
        match (self, other) {
            (
                PathMatch::Prefix { path, segments, .. },
                PathMatch::Prefix { path: other, segments: other_segments, .. },
            ) => path == other && segments == other_segments,
            _ => self == other,
        }
    }

    /// The text in it.
    pub fn text(&self) -> &str {
        match self {
            PathMatch::Exact(path) | PathMatch::Prefix { path, .. } | PathMatch::Glob(path) => path,
            PathMatch::Regex { pattern, .. } => pattern,
        }
    }
}
