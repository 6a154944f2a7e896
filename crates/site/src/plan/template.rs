//! Texts with variables.

use std::fmt;

use flatout_engine::tls::Property;

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template(pub Vec<Piece>);

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Text(String),
    /// The value of a variable.
    Variable(Variable),
}

/// A property of a request. A missing one is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// `http` or `https`, as the client used it.
    Scheme,
    /// The host name in lower case, without a port.
    Host,
    /// `Host` as it was sent, with its port.
    Authority,
    /// The port in `Host`, as the client sent it.
    AuthorityPort,
    /// `:` if there is such a port, else nothing.
    AuthorityColon,
    /// The method's name.
    Method,
    /// The path in its normal form, after rewrites so far.
    Path,
    /// The query, without `?`.
    Query,
    /// `?` if there is a query, else nothing.
    QuestionMark,
    /// Path and query as the client sent them.
    Target,
    /// The same with everything escaped that has a meaning in a query.
    EscapedTarget,
    /// The value of a parameter of the query, as it was sent.
    Argument(String),
    /// The fields of this name, joined.
    Header(String),
    /// The cookie of this name.
    Cookie(String),
    /// The client's address.
    Client,
    /// The address of the connection's peer.
    Peer,
    /// The client's port; nothing if a field names the client.
    ClientPort,
    /// The port of the connection's peer.
    PeerPort,
    /// What the PROXY protocol header of the connection says.
    Announced(OfAnnounced),
    /// `h2` for HTTP/2 over TLS, `h2c` for HTTP/2 without, else nothing.
    Http2,
    /// `r` if the TLS session was resumed, `.` if not, nothing without TLS.
    TlsResumed,
    /// `1` for a request that came before the end of the handshake (early data), else nothing.
    TlsEarly,
    /// The name that the client asks for by TLS (SNI).
    TlsServerName,
    /// The number of the connection.
    Connection,
    /// The name of this machine.
    HostName,
    /// The process.
    Process,
    /// The port on which the connection was accepted; nothing for a socket that is none, or whose port the kernel has chosen.
    ServerPort,
    /// The address on which the connection was accepted; nothing for a socket that has none, or that has all addresses.
    ServerAddress,
    /// The user name whose password was verified.
    User,
    /// The field of this name of the auth service's response, if it has allowed the request.
    AuthField(String),
    /// A property of the client's verified certificate.
    Certificate(OfCertificate),
    /// What a group of the route's or the rewrite's regular expression matched; 0 is the whole match.
    Capture(usize),
    /// The same for a named group.
    NamedCapture(String),
    /// The result of a map; the index in [`Plan::maps`](super::Plan::maps).
    Map(usize),
    /// The same of a map that depends on the response, for rules of responses.
    ResponseMap(usize),
    /// The value of a variable of the file; the index in [`Plan::sets`](super::Plan::sets).
    Set(usize),
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2.0`.
    Protocol,
    /// `on` over https, else nothing.
    Https,
    /// The version of TLS, such as `TLSv1.3`.
    TlsVersion,
    /// The cipher suite.
    TlsCipher,
    /// Seconds since 1970, with milliseconds.
    Time,
    /// A number from 0 to 1, the same during a request.
    Random,
    /// The client's `X-Request-Id`, or 32 random hexadecimal digits; the same during a request.
    RequestId,
    /// 22 random letters of base64, the same during a request.
    RandomId,
    /// The client's `traceparent`, or that of a new trace with the digits of a made request id.
    TraceParent,
    /// The name of the site.
    SiteName,
    /// The name of the crawler that sends the request, by its `User-Agent`; nothing for browsers and all others.
    Crawler,
    /// Its kind, such as `search`.
    CrawlerKind,
    /// Whether it is who it claims to be: `verified`, `forged`, `unknown` or `unverifiable`.
    CrawlerVerification,
    /// Whether the request asks for a page: by its method, `Accept`, and the extension of its path.
    WantsPage,
    /// The status of the response; only for rules of responses.
    Status,
    /// The fields of this name of the response, joined; only for rules of responses.
    ResponseHeader(String),
    /// The use of the cache, such as `HIT`; only for rules of responses.
    CacheOutcome,
    /// The status of an upstream's response; only for rules of responses.
    UpstreamStatus,
    /// What is known of the attempts at servers of an upstream; only for rules of responses.
    Upstream(OfUpstream),
    /// The value of a cookie that the response sets; only for rules of responses.
    ResponseCookie(String),
    /// The request's body, if it is not too long for a field; only for rules of responses.
    Body,
    /// What limits have decided about the request; only for rules of responses.
    Limit(OfLimits),
    /// `X-Forwarded-For` of the request, and the client's address.
    ForwardedFor,
}

/// A property of the attempts at servers of an upstream, separated by commas. Times are seconds with milliseconds, or `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfUpstream {
    /// The addresses of the servers.
    Address,
    /// How long connecting took.
    ConnectTime,
    /// How long it took until the head of the response was there.
    HeaderTime,
    /// How long it took until the attempt failed; `-` for the last one, which has not ended.
    ResponseTime,
}

/// Limits whose decision is a variable: `PASSED`, `DELAYED`, `REJECTED`, the last two also with `_DRY_RUN`; nothing without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfLimits {
    /// Rates.
    Rates,
    /// Limits of concurrent requests.
    Concurrency,
}

/// A part of a PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfAnnounced {
    /// The address of the client.
    Address,
    /// Its port.
    Port,
    /// The address to which the client has connected.
    ServerAddress,
    /// Its port.
    ServerPort,
}

/// A property of a client's certificate. Without a certificate it is empty, unless otherwise stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfCertificate {
    /// `SUCCESS`, or `NONE` without a certificate.
    Verify,
    /// The certificate in PEM, percent-encoded.
    Pem,
    /// The same in one line, with a blank in place of each line end.
    FoldedPem,
    /// A text from the certificate.
    Property(Property),
}

/// Why the text of a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadTemplate {
    /// No variable of this name.
    Unknown {
        /// The name, without `$`.
        name: String,
        /// The byte position of its `$`.
        at: usize,
    },
    /// A `$` without a name, or `${` without `}`.
    Dollar {
        /// Its byte position.
        at: usize,
    },
}

impl Variable {
    /// Whether only rules of responses know it.
    pub fn is_of_response(&self) -> bool {
        matches!(
            self,
            Variable::Status
                | Variable::ResponseHeader(_)
                | Variable::ResponseCookie(_)
                | Variable::CacheOutcome
                | Variable::UpstreamStatus
                | Variable::Upstream(_)
                | Variable::ResponseMap(_)
                | Variable::Body
                | Variable::Limit(_)
        )
    }
}

impl Template {
    /// A text without variables.
    pub fn text(text: &str) -> Template {
        if text.is_empty() { Template::default() } else { Template(vec![Piece::Text(text.to_owned())]) }
    }

    /// Parses `text` with nginx's names for variables: those of [`VARIABLES`], `$arg_NAME`, `$http_NAME`,
    /// `$cookie_NAME`, `$1` to `$9`. `${name}` is `$name`, and `$$` is a single `$`. `other` resolves other names,
    /// such as maps and named groups.
    ///
    /// # Errors
    /// See [`BadTemplate`].
    pub fn parse(text: &str, other: impl Fn(&str) -> Option<Variable>) -> Result<Template, BadTemplate> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            let at = text.len() - rest.len() + dollar;
            let (before, behind) = rest.split_at(dollar);
            literal.push_str(before);
            let behind = behind.get(1..).unwrap_or_default();
            if let Some(behind) = behind.strip_prefix('$') {
                literal.push('$');
                rest = behind;
                continue;
            }
            let (name, behind) = variable_name(behind).ok_or(BadTemplate::Dollar { at })?;
            let variable = known(name)
                .or_else(|| other(name))
                .ok_or_else(|| BadTemplate::Unknown { name: name.to_owned(), at })?;
            if !literal.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Variable(variable));
            rest = behind;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Template(pieces))
    }
}

/// Splits the name after a `$` from the rest. A number is one digit, so `$10` is `$1` and a zero.
fn variable_name(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let bytes = text.as_bytes();
    let end = match bytes.first()? {
        byte if byte.is_ascii_digit() => 1,
        _ => {
            let ends = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_');
            bytes.iter().position(ends).unwrap_or(bytes.len())
        }
    };
    text.split_at_checked(end).filter(|(name, _)| !name.is_empty())
}

/// Variables with a fixed name. Where several names mean the same, the usual one is first.
pub const VARIABLES: [(&str, Variable); 67] = [
    ("scheme", Variable::Scheme),
    ("host", Variable::Host),
    ("http_host", Variable::Authority),
    ("request_port", Variable::AuthorityPort),
    ("is_request_port", Variable::AuthorityColon),
    ("request_method", Variable::Method),
    ("uri", Variable::Path),
    ("document_uri", Variable::Path),
    ("args", Variable::Query),
    ("query_string", Variable::Query),
    ("is_args", Variable::QuestionMark),
    ("request_uri", Variable::Target),
    ("escaped_request_uri", Variable::EscapedTarget),
    ("remote_addr", Variable::Client),
    ("remote_port", Variable::ClientPort),
    ("realip_remote_addr", Variable::Peer),
    ("realip_remote_port", Variable::PeerPort),
    ("proxy_protocol_addr", Variable::Announced(OfAnnounced::Address)),
    ("proxy_protocol_port", Variable::Announced(OfAnnounced::Port)),
    ("proxy_protocol_server_addr", Variable::Announced(OfAnnounced::ServerAddress)),
    ("proxy_protocol_server_port", Variable::Announced(OfAnnounced::ServerPort)),
    ("remote_user", Variable::User),
    ("server_protocol", Variable::Protocol),
    ("server_name", Variable::SiteName),
    ("server_port", Variable::ServerPort),
    ("server_addr", Variable::ServerAddress),
    ("https", Variable::Https),
    ("ssl_protocol", Variable::TlsVersion),
    ("ssl_cipher", Variable::TlsCipher),
    ("ssl_session_reused", Variable::TlsResumed),
    ("ssl_early_data", Variable::TlsEarly),
    ("ssl_server_name", Variable::TlsServerName),
    ("connection", Variable::Connection),
    ("http2", Variable::Http2),
    ("hostname", Variable::HostName),
    ("pid", Variable::Process),
    ("msec", Variable::Time),
    ("random", Variable::Random),
    ("request_id", Variable::RequestId),
    ("random_id", Variable::RandomId),
    ("traceparent", Variable::TraceParent),
    ("crawler", Variable::Crawler),
    ("crawler_kind", Variable::CrawlerKind),
    ("crawler_verification", Variable::CrawlerVerification),
    ("status", Variable::Status),
    ("upstream_cache_status", Variable::CacheOutcome),
    ("upstream_status", Variable::UpstreamStatus),
    ("upstream_addr", Variable::Upstream(OfUpstream::Address)),
    ("upstream_connect_time", Variable::Upstream(OfUpstream::ConnectTime)),
    ("upstream_header_time", Variable::Upstream(OfUpstream::HeaderTime)),
    ("upstream_response_time", Variable::Upstream(OfUpstream::ResponseTime)),
    ("request_body", Variable::Body),
    ("limit_req_status", Variable::Limit(OfLimits::Rates)),
    ("limit_conn_status", Variable::Limit(OfLimits::Concurrency)),
    ("proxy_add_x_forwarded_for", Variable::ForwardedFor),
    ("ssl_client_verify", Variable::Certificate(OfCertificate::Verify)),
    ("ssl_client_escaped_cert", Variable::Certificate(OfCertificate::Pem)),
    ("ssl_client_s_dn", Variable::Certificate(OfCertificate::Property(Property::Subject))),
    ("ssl_client_i_dn", Variable::Certificate(OfCertificate::Property(Property::Issuer))),
    ("ssl_client_serial", Variable::Certificate(OfCertificate::Property(Property::Serial))),
    ("ssl_client_cert", Variable::Certificate(OfCertificate::FoldedPem)),
    ("ssl_client_s_dn_legacy", Variable::Certificate(OfCertificate::Property(Property::LegacySubject))),
    ("ssl_client_i_dn_legacy", Variable::Certificate(OfCertificate::Property(Property::LegacyIssuer))),
    ("ssl_client_v_start", Variable::Certificate(OfCertificate::Property(Property::ValidFrom))),
    ("ssl_client_v_end", Variable::Certificate(OfCertificate::Property(Property::ValidUntil))),
    ("ssl_client_v_remain", Variable::Certificate(OfCertificate::Property(Property::DaysLeft))),
    ("ssl_client_fingerprint", Variable::Certificate(OfCertificate::Property(Property::Fingerprint))),
];

/// The variable of this name, if it is none of a file.
pub(super) fn known(name: &str) -> Option<Variable> {
    let fixed = VARIABLES.into_iter().find(|(known, _)| *known == name);
    fixed.map(|(_, variable)| variable).or_else(|| prefixed(name))
}

fn prefixed(name: &str) -> Option<Variable> {
    if let Some(name) = name.strip_prefix("http_").filter(|name| !name.is_empty()) {
        return Some(Variable::Header(name.replace('_', "-")));
    }
    let response = name.strip_prefix("sent_http_").or_else(|| name.strip_prefix("upstream_http_"));
    if let Some(name) = response.filter(|name| !name.is_empty()) {
        return Some(Variable::ResponseHeader(name.replace('_', "-")));
    }
    if let Some(name) = name.strip_prefix("auth_http_").filter(|name| !name.is_empty()) {
        return Some(Variable::AuthField(name.replace('_', "-")));
    }
    if let Some(name) = name.strip_prefix("upstream_cookie_").filter(|name| !name.is_empty()) {
        return Some(Variable::ResponseCookie(name.to_owned()));
    }
    if let "content_type" | "content_length" = name {
        return Some(Variable::Header(name.replace('_', "-")));
    }
    if let Some(name) = name.strip_prefix("arg_").filter(|name| !name.is_empty()) {
        return Some(Variable::Argument(name.to_owned()));
    }
    if let Some(name) = name.strip_prefix("cookie_").filter(|name| !name.is_empty()) {
        return Some(Variable::Cookie(name.to_owned()));
    }
    let is_number = name.len() == 1 && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { name.parse().ok().map(Variable::Capture) } else { None }
}

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadTemplate::Unknown { name, .. } => write!(f, "unknown variable `${name}`"),
            BadTemplate::Dollar { .. } => f.write_str("expected the name of a variable after `$`, or `$$`"),
        }
    }
}

impl std::error::Error for BadTemplate {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Template, BadTemplate> {
        Template::parse(text, |name| (name == "backend").then_some(Variable::Map(3)))
    }

    #[test]
    fn templates_are_read_with_the_names_of_nginx() {
        use Variable::*;
        let text = |text: &str| Piece::Text(text.to_owned());
        let variable = Piece::Variable;
        for (given, expected) in [
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("https://$host$request_uri", vec![text("https://"), variable(Host), variable(Target)]),
            ("/$1/${2}0", vec![text("/"), variable(Capture(1)), text("/"), variable(Capture(2)), text("0")]),
            ("$10", vec![variable(Capture(1)), text("0")]),
            ("$$5", vec![text("$5")]),
            ("$http_x_api_key", vec![variable(Header("x-api-key".to_owned()))]),
            ("$backend.", vec![variable(Map(3)), text(".")]),
        ] {
            assert_eq!(parse(given), Ok(Template(expected)), "{given}");
        }
        assert_eq!(parse("a$"), Err(BadTemplate::Dollar { at: 1 }));
        assert_eq!(parse("${host"), Err(BadTemplate::Dollar { at: 0 }));
        assert_eq!(parse("${}"), Err(BadTemplate::Dollar { at: 0 }));
        assert_eq!(parse("é$ho"), Err(BadTemplate::Unknown { name: "ho".to_owned(), at: 2 }));
    }
}
