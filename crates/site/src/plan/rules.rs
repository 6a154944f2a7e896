//! The rules of a route, apart from its action.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::condition::WhenBlock;
use super::cookies::{CookieRule, LocationRule};
use super::expires::Expires;
use super::net::Peers;
use super::template::Template;
use super::{Reroute, Trust};
use flatout_compress::Compress;
use flatout_gateway as gateway;
use flatout_observe::observed::RequestLogs;
use flatout_wire::field::is_token;

/// The rules of a route, in the order in which they are checked. The first that refuses sends the response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whose information about the client's address is trusted, if it is not that of the site. What leads to the route sees the client
    /// as the site knows it.
    pub trust: Option<Trust>,
    /// Maintenance: 503.
    pub maintenance: Option<Maintenance>,
    /// The access list: 403. The first line that matches decides; if none does, the request is allowed.
    pub access: Vec<Access>,
    /// Whether a client needs only one of these: an allowed address, a password, the permission of the auth service.
    pub satisfies_any: bool,
    /// Rate limits: 429.
    pub rates: Vec<RateUse>,
    /// Which pages of other origins may use the responses. Preflights are answered here, before authentication.
    pub cors: Option<Cors>,
    /// A name and a password: 401.
    pub basic_auth: Option<BasicAuth>,
    /// An auth service that is asked about each request.
    pub forward_auth: Option<ForwardAuth>,
    /// A route of the site that decides about each request in place of an auth service. It must respond at once. A 2xx response allows the
    /// request, 401 and 403 go to the client, and any other response is a 500.
    pub auth_route: Option<Reroute>,
    /// The limit for request bodies: 413.
    pub body: BodyLimit,
    /// Concurrency limits: 503.
    pub concurrency: Vec<ConcurrencyUse>,
    /// Changes of the fields sent to an upstream.
    pub request_fields: Vec<FieldRule>,
    /// What an upstream gets in place of the client's method, fields and body.
    pub replaced: ReplacedParts,
    /// Changes of the response's fields.
    pub response_fields: Vec<FieldRule>,
    /// `Strict-Transport-Security` of HTTPS responses that lack it (RFC 6797).
    pub hsts: Option<Hsts>,
    /// Pages that replace responses with some statuses; the first match is used.
    pub error_pages: Vec<ErrorPage>,
    /// How upstream responses are cached, if at all.
    pub cache: Option<Cached>,
    /// How upstream responses and fixed texts are compressed, if at all.
    pub compress: Option<Compress>,
    /// Rules that apply under conditions.
    pub when: Vec<WhenBlock>,
    /// Replacements at the start of `Location` and `Refresh` of upstreams; the first that fits is used.
    pub locations: Vec<LocationRule>,
    /// The folders from which upstreams may have files sent (`X-Sendfile`).
    pub sendfile: Vec<SendfileFolder>,
    /// Changes of the cookies of upstreams.
    pub cookies: Vec<CookieRule>,
    /// `Expires` and the `max-age` of `Cache-Control`, of responses with a status of [`When::Success`].
    pub expires: Option<Expires>,
    /// Bytes per second at which each response is sent; 0 is without a limit.
    pub limit_rate: ByteCount,
    /// Bytes at the start of each response that are sent without this limit.
    pub limit_rate_after: ByteCount,
    /// The access logs that requests are written to.
    pub logs: RequestLogs,
    /// Values that access logs may have in their lines, by the names of their variables.
    pub log_values: Vec<(String, Template)>,
    /// In a [`WhenBlock`]: the access logs that leave these requests out, a bit for each.
    pub log_skips: u8,
    /// Texts that are replaced in bodies of responses.
    pub replacements: Vec<Replacement>,
    /// The content types of these bodies, such as `text/*` or `*/*`; none: [`REPLACED_TYPE`].
    pub replaced_types: Vec<String>,
    /// The charset that the `Content-Type` of texts names.
    pub charset: Option<String>,
    /// The content types of these texts; none: [`CHARSET_TYPES`].
    pub charset_types: Vec<String>,
    /// What is in front of the path when a folder is redirected to its path with a slash, or when `locations` make `Location` a path.
    pub redirect_origin: Option<Template>,
}

impl Rules {
    /// Whether clients are authenticated.
    pub fn has_authentication(&self) -> bool {
        self.basic_auth.is_some() || self.forward_auth.is_some() || self.auth_route.is_some()
    }
}

/// A number of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ByteCount {
    /// The same for all requests.
    Fixed(u64),
    /// That of a request: a number, which `k`, `m` or `g` may follow. Anything else is 0.
    Text(Template),
}

impl Default for ByteCount {
    fn default() -> ByteCount {
        ByteCount::Fixed(0)
    }
}

/// What an upstream gets in place of parts of the client's request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplacedParts {
    /// `Host`, in place of that of the action; one that is empty for a request is the client's. One that is not `host[:port]` gets 400.
    pub host: Option<Template>,
    /// The method; one that is empty for a request is the client's. `HEAD` and `CONNECT`, which say how long the response is, cannot be
    /// set, nor what is not a token: such a request gets 400.
    pub method: Option<Template>,
    /// The body; one that is empty for a request is none. The client's body is not read.
    pub body: Option<Template>,
    /// Whether the client's fields are left out. Those that the server and the rules add are sent.
    pub drops_fields: bool,
}

impl ReplacedParts {
    /// Whether this can be the method of a request whose client has sent another one.
    pub fn may_be_method(name: &[u8]) -> bool {
        is_token(name) && !["HEAD", "CONNECT"].iter().any(|not| name.eq_ignore_ascii_case(not.as_bytes()))
    }
}

/// The content types that get a charset, if no others are named: those of nginx, and that of scripts since RFC 9239.
pub const CHARSET_TYPES: [&str; 7] = [
    "text/html",
    "text/xml",
    "text/plain",
    "text/vnd.wap.wml",
    "text/javascript",
    "application/javascript",
    "application/rss+xml",
];

/// The content type of bodies in which texts are replaced, if no others are named.
pub const REPLACED_TYPE: &str = "text/html";

/// A text that is replaced in bodies, without regard to case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The text. One that is empty for a request is not looked for.
    pub from: Template,
    /// What takes its place.
    pub to: Template,
    /// Only where it is found first.
    pub is_once: bool,
}

/// A folder from which upstreams may have files sent, and the route that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendfileFolder {
    /// The folder as the upstream names it, without a slash at the end.
    pub folder: String,
    /// The path of its files here.
    pub path: String,
}

/// How the responses of a route are cached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cached {
    /// What is stored, and for how long.
    pub rules: gateway::Rules,
    /// The parts of a request that identify its response; `None` is scheme, host, path and query, and the lines that
    /// the site adds for the upstream.
    pub key: Option<Template>,
    /// A request bypasses the cache if one of these is neither empty nor `0`.
    pub bypass: Vec<Template>,
    /// A request gets a new response, which is stored, if one of these is neither empty nor `0`.
    pub refresh: Vec<Template>,
    /// The response is not stored if one of these is neither empty nor `0`.
    pub no_store: Vec<Template>,
    /// Its responses are rendered pages: requests are counted by crawler and by page.
    pub is_rendered: bool,
}

/// How long browsers use only HTTPS for the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hsts {
    /// Counted from the last visit; it cannot be revoked.
    pub max_age: Duration,
    /// Also for all subdomains.
    pub subdomains: bool,
    /// Whether browsers may include the site in their preload lists.
    pub preload: bool,
}

/// The limit for request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyLimit {
    /// Bytes, decoded; `None` is the server's limit.
    pub bytes_max: Option<u64>,
}

/// A route under maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// The page; its status is 503.
    pub page: Page,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Who is let in nevertheless.
    pub except: Vec<Peers>,
}

/// A line of an access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The verdict.
    pub verdict: Verdict,
    /// The peers it is for.
    pub peers: Peers,
}

/// Whether a client is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They are allowed.
    Allow,
    /// They are denied.
    Deny,
}

/// A rate limit for each key (GCRA, the generic cell rate algorithm of ITU-T I.371).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// Its name; also the name of its policy in the field `RateLimit`.
    pub name: String,
    /// Whose requests are counted together.
    pub key: Limited,
    /// The number of requests; at least 1.
    pub requests: u32,
    /// The time in which they are allowed, spread evenly.
    pub window: Duration,
    /// The maximum number of keys, 16 bytes each. Beyond that, the keys with the fullest buckets are dropped.
    pub keys_max: usize,
}

/// Whose requests a limit counts together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limited {
    /// All.
    Everyone,
    /// By the client's address. IPv6 addresses are cut to a prefix, because a client usually has a /64.
    Client {
        /// 1 to 128; usually 64.
        ipv6_bits: u8,
    },
    /// By this text. Requests for which it is empty are counted together.
    Text(Template),
}

/// How a route uses a rate limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateUse {
    /// The index in [`Plan::rates`](super::Plan::rates).
    pub rate: usize,
    /// Requests beyond an even rate that are accepted at once.
    pub burst: u32,
    /// The number of them served without delay; the others are delayed to an even rate. `None` delays none.
    pub delay: Option<u32>,
    /// The status of a refusal: 429, or what nginx was set to.
    pub status: u16,
    /// Whether responses carry `RateLimit-Policy` and `RateLimit`.
    pub fields: bool,
    /// Whether requests are counted, and none is refused or delayed.
    pub is_dry_run: bool,
}

/// How a route uses a concurrency limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyUse {
    /// The index in [`Plan::concurrency`](super::Plan::concurrency).
    pub limit: usize,
    /// Whether requests are counted, and none is refused or waits.
    pub is_dry_run: bool,
}

/// A concurrency limit for each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    /// Its name.
    pub name: String,
    /// Whose requests are counted together.
    pub key: Limited,
    /// How many may be in progress; at least 1.
    pub requests_max: u32,
    /// How many more may wait, per key; beyond that the response is 503.
    pub queue_max: u32,
    /// How long one may wait before the response is 503.
    pub queue_time_max: Duration,
    /// Keys with requests in progress at once; beyond that the response is 503.
    pub keys_max: usize,
    /// The status of these responses, in place of 503.
    pub status: u16,
}

/// Which pages of other origins may use the responses (the CORS protocol of the Fetch standard).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// The origins.
    pub origins: Origins,
    /// Methods that preflights allow.
    pub methods: Vec<String>,
    /// Request fields that preflights allow; `*` allows all requested ones.
    pub headers: Vec<String>,
    /// Response fields that scripts may read.
    pub expose: Vec<String>,
    /// Whether cookies and passwords may be sent. Not with [`Origins::Any`].
    pub credentials: bool,
    /// How long browsers may cache a preflight.
    pub age_max: Option<Duration>,
}

/// Origins that a [`Cors`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origins {
    /// Every one.
    Any,
    /// Every one, but responses name the origin of the request, so that credentials are possible: then any page can send
    /// requests as its visitors and read the responses.
    Echoed,
    /// These, as browsers send them: `https://app.example.org`, without a trailing slash. `https://*.example.org` is all
    /// hosts below this one.
    These(Vec<String>),
}

/// The `Basic` scheme: a name and a password (RFC 7617).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// The text that the browser shows.
    pub realm: String,
    /// The users.
    pub users: Vec<User>,
    /// A file with more of them, one `name:hash` a line, as `htpasswd` writes it. It is read when the sites are opened.
    pub user_file: Option<PathBuf>,
}

/// A user with a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name, without a colon.
    pub name: String,
    /// The hash: `$argon2id$…`, bcrypt's `$2b$…`, `$2y$…`, `$2a$…`, or an older one: `$6$…`, `$5$…`, `$1$…`, `$apr1$…`, `{SSHA}…`,
    /// `{SHA}…`, `{PLAIN}…`.
    pub hash: String,
}

/// An auth service that is asked about each request: a 2xx response allows the request, any other response goes to
/// the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The index of its upstream in [`Plan::upstreams`](super::Plan::upstreams).
    pub upstream: usize,
    /// The target of its GET request; the original target and method are in `X-Forwarded-Uri` and
    /// `X-Forwarded-Method`.
    pub target: Template,
    /// Request fields sent to it; empty means all but those of the connection and of the body.
    pub request_fields: Vec<String>,
    /// Fields of its 2xx response that replace the request's fields of these names.
    pub response_fields: Vec<String>,
    /// Where clients are sent, with 302, in place of its response 401.
    pub sign_in: Option<Template>,
}

/// A change of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// The change.
    pub change: FieldChange,
    /// The field's name. Those of the connection and of framing cannot be changed.
    pub name: String,
    /// For responses: to which it applies.
    pub when: When,
}

/// A change of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldChange {
    /// Replaces all fields of this name; an empty value removes the field.
    Set(Template),
    /// Adds a field to those of this name.
    Add(Template),
    /// Adds a field only if there is none of this name.
    Default(Template),
    /// Removes all fields of this name.
    Remove,
    /// Adds a field after the body; for responses only.
    Trailer(Template),
}

/// The responses that a field rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// All.
    #[default]
    Always,
    /// Those with a status of 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308: `add_header` in nginx.
    Success,
}

/// A page that replaces responses with some statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    /// The statuses; 300 to 599.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The page.
    pub page: Page,
    /// The status sent with it; `None` keeps the response's.
    pub status: Option<u16>,
    /// Whether it also replaces an upstream's responses with these statuses.
    pub of_upstreams: bool,
}

/// A custom page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// `Content-Type`.
    pub content_type: String,
    /// The body.
    pub source: PageSource,
}

/// Where a page comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageSource {
    /// This text.
    Text(String),
    /// A file, read when the sites are opened.
    File(PathBuf),
    /// The response of another route, for an [`ErrorPage`]. If the error is an upstream's, only a route of files, a redirect or a
    /// text without guards that wait is used.
    Route {
        /// The route.
        to: Reroute,
        /// Whether a 200 of it gets the status of the error.
        keeps_status: bool,
    },
}
