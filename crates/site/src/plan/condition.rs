//! Conditions and values over a request and its response.

use flatout_engine::tls::Property;
use flatout_expression::{Names, Type};

use super::rules::Rules;
use super::template::{OfCertificate, VARIABLES, Variable, known};

/// A condition.
pub type Condition = flatout_expression::Condition<Variable>;

/// A value that is computed.
pub type Expression = flatout_expression::Expression<Variable>;

pub use flatout_expression::Fault as ExpressionFault;

/// Rules that apply if all conditions are true, in addition to those around them.
///
/// Of the rules these are used: `access` (its first match decides before the list around it), `rates`, `concurrency`,
/// `request_fields`, `response_fields`, and of `cache` what is bypassed and not stored. If a condition depends on the response,
/// only `response_fields`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhenBlock {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The rules.
    pub rules: Rules,
}

/// Names in expressions. `other` resolves the `$names` of a file, such as maps and sets, and `others` lists them.
pub struct Vocabulary<'a> {
    /// The variable of a name, without `$`.
    pub other: &'a dyn Fn(&str) -> Option<Variable>,
    /// All of these names.
    pub others: &'a [String],
}

/// Facts of a request, and of its response.
pub const FACTS: [(&str, Type, Variable); 28] = [
    ("method", Type::Text, Variable::Method),
    ("host", Type::Text, Variable::Host),
    ("path", Type::Text, Variable::Path),
    ("query", Type::Text, Variable::Query),
    ("target", Type::Text, Variable::Target),
    ("scheme", Type::Text, Variable::Scheme),
    ("protocol", Type::Text, Variable::Protocol),
    ("site", Type::Text, Variable::SiteName),
    ("user", Type::Text, Variable::User),
    ("remote", Type::Address, Variable::Client),
    ("peer", Type::Address, Variable::Peer),
    ("tls.version", Type::Text, Variable::TlsVersion),
    ("tls.cipher", Type::Text, Variable::TlsCipher),
    ("client_cert.verify", Type::Text, Variable::Certificate(OfCertificate::Verify)),
    ("client_cert.subject", Type::Text, Variable::Certificate(OfCertificate::Property(Property::Subject))),
    ("client_cert.issuer", Type::Text, Variable::Certificate(OfCertificate::Property(Property::Issuer))),
    ("client_cert.serial", Type::Text, Variable::Certificate(OfCertificate::Property(Property::Serial))),
    ("crawler", Type::Text, Variable::Crawler),
    ("crawler.kind", Type::Text, Variable::CrawlerKind),
    ("crawler.verification", Type::Text, Variable::CrawlerVerification),
    ("wants_page", Type::Bool, Variable::WantsPage),
    ("time", Type::Int, Variable::Time),
    ("random", Type::Double, Variable::Random),
    ("request_id", Type::Text, Variable::RequestId),
    ("random_id", Type::Text, Variable::RandomId),
    ("status", Type::Int, Variable::Status),
    ("cache", Type::Text, Variable::CacheOutcome),
    ("upstream.status", Type::Int, Variable::UpstreamStatus),
];

/// Tables of facts: `header['accept']`.
pub const TABLES: [&str; 4] = ["header", "arg", "cookie", "response_header"];

impl Names for Vocabulary<'_> {
    type Fact = Variable;

    fn fact(&self, name: &str) -> Option<(Variable, Type)> {
        if let Some(name) = name.strip_prefix('$') {
            return known(name).or_else(|| (self.other)(name)).map(|variable| (variable, Type::Text));
        }
        let found = FACTS.into_iter().find(|(known, ..)| *known == name);
        found.map(|(_, kind, variable)| (variable, kind))
    }

    fn entry(&self, table: &str, key: &str) -> Option<Variable> {
        Some(match table {
            "header" => Variable::Header(key.to_ascii_lowercase()),
            "arg" => Variable::Argument(key.to_owned()),
            "cookie" => Variable::Cookie(key.to_owned()),
            "response_header" => Variable::ResponseHeader(key.to_ascii_lowercase()),
            _ => return None,
        })
    }

    fn all(&self) -> Vec<String> {
        let facts = FACTS.iter().map(|(name, ..)| (*name).to_owned());
        let tables = TABLES.iter().map(|name| (*name).to_owned());
        let variables = VARIABLES.iter().map(|(name, _)| format!("${name}"));
        facts
            .chain(tables)
            .chain(variables)
            .chain(self.others.iter().map(|name| format!("${name}")))
            .collect()
    }
}
