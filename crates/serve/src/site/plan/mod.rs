//! What sites are set to.
//!
//! Everything that several routes may use together stands in the [`Plan`] once, and routes name it by its index: an
//! upstream, a folder, a rate, a limit of requests under way, a map. Nothing is inherited here: a plan already contains
//! the defaults of a site in each of its routes.

mod net;
mod rules;
mod template;

use crate::{cache, files, proxy, push};

pub(in crate::site) use net::number;
pub use net::{BadNet, Net, Peers};
pub use rules::{
    Access, BasicAuth, BodyLimit, Concurrency, Cors, ErrorPage, FieldChange, FieldRule, ForwardAuth, Hsts,
    Limited, Maintenance, Origins, Page, PageSource, Rate, RateUse, Rules, User, Verdict, When,
};
pub use template::{BadTemplate, Map, Piece, Template, Variable};

/// All sites of a server.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The groups of servers that requests are forwarded to.
    pub upstreams: Vec<proxy::Upstream>,
    /// The folders that files are served from.
    pub folders: Vec<files::Plan>,
    /// Where responses are kept, for the routes that say so.
    pub cache: cache::Plan,
    /// Rates that requests are held to. Routes that name the same one share what it counts.
    pub rates: Vec<Rate>,
    /// Limits of requests under way. Routes that name the same one share what it counts.
    pub concurrency: Vec<Concurrency>,
    /// Tables that turn one text into another.
    pub maps: Vec<Map>,
    /// Whose word about the client's address counts.
    pub trust: Trust,
    /// The sites.
    pub sites: Vec<Site>,
}

/// Whose word about the client's address counts. By default none is trusted: the client is the peer of the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// The proxies in front of this server (`trusted-proxies`).
    pub proxies: Vec<Peers>,
    /// Where they say the client's address. Only one place is believed: proxies set one and pass the others on as the
    /// client sent them.
    pub from: AddressFrom,
}

/// Where a trusted proxy says the client's address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AddressFrom {
    /// `X-Forwarded-For`, and `X-Forwarded-Proto` for the scheme: from the right, the first address that is no trusted
    /// proxy's.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), read in the same way.
    Forwarded,
    /// A field with nothing but the address, such as `X-Real-IP`.
    Header(String),
    /// A PROXY protocol header, version 1 or 2, before the first request of the connection.
    ProxyProtocol,
}

/// One site: what is served under some host names.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// How it is called in logs and metrics; usually its first host name.
    pub name: String,
    /// The number by which logs and metrics know it ([`Sites`](crate::observed::Sites)).
    pub number: u16,
    /// The host names that lead to it. Each may stand in one site only.
    pub hosts: Vec<Host>,
    /// Rewrites of every request, before a route is chosen.
    pub rewrites: Vec<Rewrite>,
    /// Its routes. See [`PathMatch`] for which of several is taken.
    pub routes: Vec<Route>,
    /// The rules of the 404 and 405 responses where no route is taken.
    pub rules: Rules,
}

/// A host name of a site, without a port. Case does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// This one.
    Exact(String),
    /// Every name below this one: `example.org` for `*.example.org`. The longest that fits is taken.
    Below(String),
    /// Names that this regular expression matches, in lower case and without a port; the first that fits, where no name above
    /// does.
    Pattern(String),
    /// Every other name, and requests without one. Without it they get 421 (Misdirected Request).
    Any,
}

/// A part of a site: a set of paths, their rules, and what answers.
#[derive(Debug, Clone)]
pub struct Route {
    /// How it is called in logs and in `explain`; usually the path as it is written in the file.
    pub name: String,
    /// The paths.
    pub path: PathMatch,
    /// The methods, as they are sent; empty is all of them. `GET` includes `HEAD`. A request whose path fits and whose
    /// method does not goes to the next route that fits; where none does, the response is 405.
    pub methods: Vec<String>,
    /// What is done with paths that can be read in several ways.
    pub paths: PathPolicy,
    /// Rewrites of the path, in this order, before `action`.
    pub rewrites: Vec<Rewrite>,
    /// What holds for its requests.
    pub rules: Rules,
    /// A folder whose files answer GET and HEAD before `action` does; the index in [`Plan::folders`].
    pub try_files: Option<usize>,
    /// What answers.
    pub action: Action,
}

/// The paths of a route. All are compared with the path in its normal form, by this order, as nginx does: an exact one;
/// else the longest prefix, if it goes `before_patterns`; else the first glob or regex that fits, in the order of the
/// routes; else the longest prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// This path.
    Exact(String),
    /// Paths that begin with this one.
    Prefix {
        /// How they begin; `/` is every path.
        path: String,
        /// Whether it ends with a segment: `/api` is then `/api` and `/api/x`, and not `/apix`.
        segments: bool,
        /// Whether no glob or regex is looked at where this is the longest prefix (`^~` in nginx).
        before_patterns: bool,
    },
    /// `*` is any text without a slash, `**` any text, `?` one byte that is no slash.
    Glob(String),
    /// A regular expression (the crate `regex`: no look-around, no back-references). It fits anywhere unless anchored;
    /// its groups are `$1` to `$9`, and its named groups `$name`, in templates.
    Regex {
        /// The expression.
        pattern: String,
        /// Whether `A` and `a` are the same.
        ignore_case: bool,
    },
}

/// What is done with paths that can be read in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// They are refused with 400: dot segments, `%2F`, backslashes, control bytes. For files.
    #[default]
    Strict,
    /// Dot segments are resolved and slashes merged; `%2F` separates nothing. For upstreams. A path that would lead to
    /// another route when read in one of the other ways that applications read paths is sent in its normal form, or refused
    /// with 400 where that can be read so as well.
    Forward,
}

/// A change of the path before a request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// What of the path is replaced.
    pub from: RewriteFrom,
    /// What takes its place. For a regex, with `?…` at the end it replaces the query too; the query is otherwise kept.
    pub to: Template,
    /// What comes after it.
    pub then: Then,
}

/// What of the path a rewrite replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewriteFrom {
    /// This text at the beginning; the rest stays. `/api/` to `/` is what nginx calls `proxy_pass http://x/` in `location
    /// /api/`, and what makes `alias` of `root`.
    Prefix(String),
    /// The whole path, where the regular expression fits.
    Regex {
        /// The expression.
        pattern: String,
        /// Whether `A` and `a` are the same.
        ignore_case: bool,
    },
}

/// What comes after a rewrite that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// The next rewrite.
    #[default]
    Next,
    /// No other rewrite here (`break` in nginx).
    Stop,
    /// A route is chosen again for the new path (`last` in nginx), with all of its rules; ten times at most.
    Route,
}

/// What answers.
#[derive(Debug, Clone)]
pub enum Action {
    /// The files of a folder; the index in [`Plan::folders`].
    Files(usize),
    /// An upstream.
    Proxy(proxy::Forward),
    /// Channels.
    Push(push::Plan),
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
    /// Nothing: the connection is closed. Whoever comes here gets nothing, so nobody is asked for a password, or waits for a
    /// place.
    Close,
}

impl Route {
    /// Every path of a site to this action, with everything else as usual for it.
    pub fn new(path: PathMatch, action: Action) -> Route {
        let paths = match action {
            Action::Proxy(_) => PathPolicy::Forward,
            _ => PathPolicy::Strict,
        };
        Route {
            name: path.text().to_owned(),
            path,
            methods: Vec::new(),
            paths,
            rewrites: Vec::new(),
            rules: Rules::default(),
            try_files: None,
            action,
        }
    }
}

impl PathMatch {
    /// `path` and what is below it; a trailing slash means only what is below it.
    pub fn prefix(path: &str) -> PathMatch {
        PathMatch::Prefix { path: path.to_owned(), segments: true, before_patterns: false }
    }

    /// What is written in it.
    pub fn text(&self) -> &str {
        match self {
            PathMatch::Exact(path) | PathMatch::Prefix { path, .. } | PathMatch::Glob(path) => path,
            PathMatch::Regex { pattern, .. } => pattern,
        }
    }
}
