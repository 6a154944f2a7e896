//! What holds for the requests of a route besides what answers them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::net::Peers;
use super::template::Template;
use crate::cache;
use crate::compress::Compress;

/// What holds for the requests of a route, in the order in which it is looked at. The first that refuses answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The route is closed for now: 503.
    pub maintenance: Option<Maintenance>,
    /// Who may come; the first that fits decides, and where none fits the request is allowed. Otherwise 403.
    pub access: Vec<Access>,
    /// Rates that requests are held to: 429.
    pub rates: Vec<RateUse>,
    /// Which pages of other origins may use the responses. Preflights are answered here, before anyone logs in.
    pub cors: Option<Cors>,
    /// A name and a password: 401.
    pub basic_auth: Option<BasicAuth>,
    /// An authority that is asked about each request.
    pub forward_auth: Option<ForwardAuth>,
    /// How large a request body may be: 413.
    pub body: BodyLimit,
    /// Limits of requests under way, by their index in [`Plan::concurrency`](super::Plan::concurrency): 503.
    pub concurrency: Vec<usize>,
    /// Changes of the fields that an upstream gets.
    pub request_fields: Vec<FieldRule>,
    /// Changes of the fields of the response.
    pub response_fields: Vec<FieldRule>,
    /// `Strict-Transport-Security` of HTTPS responses that lack it (RFC 6797).
    pub hsts: Option<Hsts>,
    /// Pages in place of responses with some statuses; the first that fits is taken.
    pub error_pages: Vec<ErrorPage>,
    /// How the responses of upstreams are cached, if they are.
    pub cache: Option<cache::Rules>,
    /// What is compressed of the responses of upstreams, and of texts, if anything is.
    pub compress: Option<Compress>,
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

/// How large a request body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyLimit {
    /// Bytes, decoded; `None` is the server's limit.
    pub bytes_max: Option<u64>,
}

/// A route that is closed for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// The page; its status is 503.
    pub page: Page,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Who is let in all the same.
    pub except: Vec<Peers>,
}

/// One line of a list of who may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// What is done.
    pub verdict: Verdict,
    /// With whom.
    pub peers: Peers,
}

/// Whether a client is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They may.
    Allow,
    /// They may not.
    Deny,
}

/// So many requests in a time, for each of some keys (GCRA, the generic cell rate algorithm of ITU-T I.371).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// How it is called; also the name of its policy in the field `RateLimit`.
    pub name: String,
    /// Whose requests are counted together.
    pub key: Limited,
    /// How many requests; at least 1.
    pub requests: u32,
    /// In which time; they are spread evenly over it.
    pub window: Duration,
    /// Keys that are kept at once, 16 bytes each. Over it those that are nearest to being forgotten are.
    pub keys_max: usize,
}

/// Whose requests a limit counts together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limited {
    /// All.
    Everyone,
    /// Those of a client's address. Of an IPv6 address so many bits count: a client with one address usually has a /64.
    Client {
        /// 1 to 128; usually 64.
        ipv6_bits: u8,
    },
    /// Those for which this text is the same. Those for which it is empty are not limited.
    Text(Template),
}

/// How a route is held to a rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateUse {
    /// The index in [`Plan::rates`](super::Plan::rates).
    pub rate: usize,
    /// Requests that may come at once beyond an even pace.
    pub burst: u32,
    /// Of these so many are served at once; the others wait until an even pace allows them. `None` has none wait.
    pub delay: Option<u32>,
    /// The status of a refusal: 429, or what nginx was set to.
    pub status: u16,
    /// Whether responses carry `RateLimit-Policy` and `RateLimit`.
    pub fields: bool,
}

/// So many requests at once, for each of some keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    /// How it is called.
    pub name: String,
    /// Whose requests are counted together.
    pub key: Limited,
    /// How many may be under way; at least 1.
    pub requests_max: u32,
    /// How many more may wait, of one key; over it the response is 503.
    pub queue_max: u32,
    /// How long one may wait before the response is 503.
    pub queue_time_max: Duration,
    /// Keys that have requests under way at once; over it the response is 503.
    pub keys_max: usize,
}

/// Which pages of other origins may use the responses (the CORS protocol of the Fetch standard).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// The origins.
    pub origins: Origins,
    /// Methods that preflights allow.
    pub methods: Vec<String>,
    /// Request fields that preflights allow; `*` allows those that were asked for.
    pub headers: Vec<String>,
    /// Response fields that scripts may read.
    pub expose: Vec<String>,
    /// Whether cookies and passwords may be sent. Not with [`Origins::Any`].
    pub credentials: bool,
    /// How long a preflight holds.
    pub age_max: Option<Duration>,
}

/// Origins that a [`Cors`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origins {
    /// Every one.
    Any,
    /// These, as browsers send them: `https://app.example.org`, no slash at the end.
    These(Vec<String>),
}

/// A name and a password, by the `Basic` scheme (RFC 7617).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// What the browser shows.
    pub realm: String,
    /// Who may come.
    pub users: Vec<User>,
    /// A file with more of them, one `name:hash` a line, as `htpasswd` writes it. It is read when the sites are opened.
    pub user_file: Option<PathBuf>,
}

/// A user with a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name, without a colon.
    pub name: String,
    /// The hash: `$argon2id$…` or bcrypt's `$2b$…`, `$2y$…`, `$2a$…`.
    pub hash: String,
}

/// An authority that is asked about each request: its 2xx lets the request go on, and everything else is the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The index of its upstream in [`Plan::upstreams`](super::Plan::upstreams).
    pub upstream: usize,
    /// The target that it is asked with GET; the request's own stands in `X-Forwarded-Uri` and `X-Forwarded-Method`.
    pub target: Template,
    /// Request fields that it gets; empty is all but those of the connection and of the body.
    pub request_fields: Vec<String>,
    /// Fields of its 2xx that the request gets, in place of its own of these names.
    pub response_fields: Vec<String>,
}

/// A change of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// What is done.
    pub change: FieldChange,
    /// The field's name. Those of the connection and of framing cannot be changed.
    pub name: String,
    /// For responses: when.
    pub when: When,
}

/// A change of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldChange {
    /// In place of all of this name; a value that comes out empty leaves the field out.
    Set(Template),
    /// Beside those of this name.
    Add(Template),
    /// Only where there is none of this name.
    Default(Template),
    /// All of this name.
    Remove,
}

/// To which responses a field rule is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// All.
    #[default]
    Always,
    /// Those with a status of 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308: `add_header` in nginx.
    Success,
}

/// A page in place of responses with some statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    /// The statuses; 400 to 599.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The page.
    pub page: Page,
    /// The status that it is sent with; `None` keeps the response's.
    pub status: Option<u16>,
    /// Whether it also takes the place of what an upstream answered with such a status.
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
    /// A file, which is read when the sites are opened.
    File(PathBuf),
}
