//! What conditions and texts depend on, and the values of facts for expressions.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;

use flatout_engine::{Tls, request_random};
use flatout_expression::{Facts, FileTest};
use flatout_lane::clock;
use flatout_prerender::wants_page;

use super::maps::Tables;
use super::plan::{Condition, Variable};
use super::render::{Paths, View};

/// File tests whose results a request remembers.
const FILE_TESTS_MAX: usize = 16;

/// What a text or a condition depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Uses(u8);

impl Uses {
    pub(crate) const NOTHING: Uses = Uses(0);
    /// The path, or what was found in it: another reading of the path may give another result.
    pub(crate) const PATH: Uses = Uses(1);
    /// Groups of a regular expression.
    pub(crate) const CAPTURES: Uses = Uses(2);
    /// The connection, time and random numbers: they are not known when the body is planned.
    pub(crate) const CONNECTION: Uses = Uses(4);
    /// The verified user.
    pub(crate) const USER: Uses = Uses(8);
    /// The response.
    pub(crate) const RESPONSE: Uses = Uses(16);

    /// What a variable depends on.
    pub(crate) fn of(variable: &Variable, tables: &Tables) -> Uses {
        match variable {
            Variable::Path | Variable::WantsPage => Uses::PATH,
            Variable::Capture(_) | Variable::NamedCapture(_) => Uses::PATH.and(Uses::CAPTURES),
            Variable::Client
            | Variable::ForwardedFor
            | Variable::ClientPort
            | Variable::Peer
            | Variable::PeerPort
            | Variable::Announced(_)
            | Variable::ServerPort
            | Variable::ServerAddress
            | Variable::CrawlerVerification
            | Variable::Scheme
            | Variable::Https
            | Variable::Certificate(_)
            | Variable::TlsVersion
            | Variable::TlsCipher
            | Variable::TlsResumed
            | Variable::TlsEarly
            | Variable::TlsServerName
            | Variable::Connection
            | Variable::Http2
            | Variable::Time
            | Variable::Random
            | Variable::RequestId
            | Variable::RandomId
            | Variable::TraceParent => Uses::CONNECTION,
            Variable::User | Variable::AuthField(_) => Uses::USER,
            Variable::Status
            | Variable::ResponseHeader(_)
            | Variable::CacheOutcome
            | Variable::UpstreamStatus
            | Variable::Upstream(_)
            | Variable::ResponseCookie(_)
            | Variable::ResponseMap(_)
            | Variable::Limit(_)
            | Variable::Body => Uses::RESPONSE,
            Variable::Map(at) => tables.uses_of_map(*at),
            Variable::Set(at) => tables.uses_of_set(*at),
            Variable::Host
            | Variable::Authority
            | Variable::AuthorityPort
            | Variable::AuthorityColon
            | Variable::Method
            | Variable::Query
            | Variable::QuestionMark
            | Variable::Target
            | Variable::EscapedTarget
            | Variable::Argument(_)
            | Variable::Header(_)
            | Variable::Cookie(_)
            | Variable::Crawler
            | Variable::CrawlerKind
            | Variable::Protocol
            | Variable::HostName
            | Variable::Process
            | Variable::SiteName => Uses::NOTHING,
        }
    }

    /// What conditions depend on.
    pub(crate) fn of_all(conditions: &[Condition], tables: &Tables) -> Uses {
        let facts = conditions.iter().flat_map(Condition::facts);
        facts.fold(Uses::NOTHING, |all, fact| all.and(Uses::of(fact, tables)))
    }

    pub(crate) fn and(self, other: Uses) -> Uses {
        Uses(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Uses) -> Uses {
        Uses(self.0 & !other.0)
    }

    /// Whether it depends on any of these.
    pub(crate) fn has(self, other: Uses) -> bool {
        self.0 & other.0 != 0
    }
}

/// What is made at its first use in a request, and stays the same until its end, also while the request is suspended.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    values: OnceCell<Box<NotedValues>>,
    /// The number of the request; 0 while it is not known.
    pub(crate) number: u64,
}

#[derive(Debug, Default)]
struct NotedValues {
    /// The values of variables of the file, by their index.
    values: RefCell<Vec<(usize, Vec<u8>)>>,
    moment: OnceCell<RequestMoment>,
    tls: OnceCell<Option<TlsNoted>>,
    /// The results of file tests, with their paths.
    file_tests: RefCell<Vec<(FileTest, Vec<u8>, bool)>>,
}

/// What is noted of a TLS connection.
#[derive(Debug)]
pub(crate) struct TlsNoted {
    /// The version.
    pub(crate) version: &'static str,
    /// The cipher suite.
    pub(crate) cipher: String,
    pub(crate) is_resumed: bool,
    /// The name that the client has asked for.
    pub(crate) server_name: Box<str>,
}

impl TlsNoted {
    fn of(tls: Tls<'_>) -> Option<TlsNoted> {
        let (version, cipher) = tls.cipher()?;
        let server_name = tls.server_name().unwrap_or_default();
        Some(TlsNoted { version, cipher, is_resumed: tls.is_resumed(), server_name })
    }
}

/// A time and random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestMoment {
    /// Milliseconds since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) random: [u64; 2],
}

impl RequestMoment {
    fn now(number: u64) -> RequestMoment {
        RequestMoment { unix_ms: clock::unix_milliseconds(), random: request_random(number) }
    }

    /// A number from 0 to 1, without 1.
    pub(crate) fn fraction(&self) -> f64 {
        let [random, _] = self.random;
        // As many bits as a fraction has.
        (random >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Noted {
    fn noted(&self) -> &NotedValues {
        self.values.get_or_init(Box::default)
    }

    pub(crate) fn moment(&self) -> RequestMoment {
        *self.noted().moment.get_or_init(|| RequestMoment::now(self.number))
    }

    /// What is known of this connection, or of the one that was noted.
    pub(crate) fn tls(&self, tls: Option<Tls<'_>>) -> Option<&TlsNoted> {
        self.noted().tls.get_or_init(|| tls.and_then(TlsNoted::of)).as_ref()
    }

    /// Writes the value of a variable, if it was made.
    pub(crate) fn write(&self, set: usize, out: &mut Vec<u8>) -> bool {
        let values = self.noted().values.borrow();
        let value = values.iter().find(|(at, _)| *at == set);
        value.is_some_and(|(_, value)| {
            out.extend_from_slice(value);
            true
        })
    }

    pub(crate) fn keep(&self, set: usize, value: Vec<u8>) {
        self.noted().values.borrow_mut().push((set, value));
    }

    /// Forgets the values that depend on the user, who is another one now.
    pub(crate) fn forget_user(&self, tables: &Tables) {
        if let Some(noted) = self.values.get() {
            noted.values.borrow_mut().retain(|(set, _)| !tables.uses_of_set(*set).has(Uses::USER));
        }
    }

    /// The result of a file test. A route and the rewrites before it often have the same ones, and each is a system call.
    fn file(&self, test: FileTest, path: &[u8]) -> bool {
        let mut known = self.noted().file_tests.borrow_mut();
        if let Some((.., result)) = known.iter().find(|(this, at, _)| *this == test && at == path) {
            return *result;
        }
        let result = test.holds(path);
        if known.len() < FILE_TESTS_MAX {
            known.push((test, path.to_vec(), result));
        }
        result
    }

    /// The same moment for another reading of a path, whose values may differ.
    pub(crate) fn of_reading(&self) -> Noted {
        let noted = NotedValues { moment: self.moment().into(), ..NotedValues::default() };
        Noted { values: OnceCell::from(Box::new(noted)), number: self.number }
    }
}

impl Facts<Variable> for View<'_> {
    fn text<'a>(&'a self, fact: &'a Variable) -> Cow<'a, [u8]> {
        if let Some(text) = self.borrowed(fact) {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::new();
        self.write(fact, Paths::Decoded, 0, &mut out);
        Cow::Owned(out)
    }

    fn number(&self, fact: &Variable) -> f64 {
        match fact {
            Variable::Time => (self.noted.moment().unix_ms / 1000) as f64,
            Variable::Random => self.noted.moment().fraction(),
            _ => 0.0,
        }
    }

    fn address(&self, fact: &Variable) -> Option<IpAddr> {
        match fact {
            Variable::Client => self.client.address,
            Variable::Peer => self.peer_address(),
            _ => None,
        }
    }

    fn is_true(&self, fact: &Variable) -> bool {
        match fact {
            Variable::WantsPage => {
                // Those of a renderer are marked.
                self.head.field("x-prerender").is_none()
                    && wants_page(self.head.method_name(), self.path, self.head.field("accept"))
            }
            _ => false,
        }
    }

    fn has(&self, fact: &Variable) -> bool {
        self.has_entry(fact)
    }

    fn file(&self, test: FileTest, path: &[u8]) -> bool {
        self.noted.file(test, path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn file_tests_are_made_once_a_request() {
        let path = std::env::temp_dir().join(format!("flatout-file-test-{}", std::process::id()));
        let (noted, path_bytes) = (Noted::default(), path.as_os_str().as_bytes());
        std::fs::write(&path, "").unwrap();
        assert!(noted.file(FileTest::File, path_bytes) && !noted.file(FileTest::Folder, path_bytes));
        std::fs::remove_file(&path).unwrap();
        assert!(noted.file(FileTest::File, path_bytes), "it is remembered");
        assert!(!noted.file(FileTest::Anything, path_bytes), "another test is not");
        assert!(!Noted::default().file(FileTest::File, path_bytes), "nor is one of another request");
        for number in 0..2 * FILE_TESTS_MAX {
            noted.file(FileTest::File, format!("/{number}").as_bytes());
        }
        assert_eq!(noted.noted().file_tests.borrow().len(), FILE_TESTS_MAX);
    }
}
