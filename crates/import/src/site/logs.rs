//! `access_log` and `log_format`.

use super::chain::Chain;
use super::constants::of_server_in;
use super::file_tests::pieces;
use super::out::{Lines, value};
use super::{Import, values};
use crate::nginx::Directive;

/// Variables of access logs that are known when a request begins, besides `$http_NAME`, `$arg_NAME` and `$cookie_NAME`.
const EARLY: [&str; 22] = [
    "binary_remote_addr",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_method",
    "request_uri",
    "uri",
    "document_uri",
    "args",
    "query_string",
    "is_args",
    "host",
    "server_protocol",
    "scheme",
    "pid",
    "https",
    "ssl_protocol",
    "ssl_cipher",
    "request_id",
    "content_type",
    "content_length",
];

/// Those that are known when a request has ended.
const LATE: [&str; 17] = [
    "status",
    "body_bytes_sent",
    "bytes_sent",
    "request_length",
    "request_time",
    "msec",
    "time_local",
    "time_iso8601",
    "request_completion",
    "outcome",
    "upstream_addr",
    "upstream_status",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_response_time",
    "upstream_cache_status",
    "request_body",
];

/// Variables with one value for all requests of a server.
const OF_SERVER: [&str; 3] = ["server_name", "server_port", "server_addr"];

/// The longest time before a line without `buffer=` is written: nginx writes it at once.
pub(super) const FLUSH: &str = "100ms";

/// The same with `buffer=`: nginx waits until the buffer is full.
const BUFFERED_FLUSH: &str = "10s";

/// Conditions of access logs that can apply to one request here.
const CONDITIONS_MAX: usize = 6;

/// The port of a system log.
const SYSLOG_PORT: u16 = 514;

/// The name of a log for `syslog:server=…` of nginx, in the order that is read here; `None` if the server has a host name.
fn system_log(path: &str) -> Option<String> {
    let parts = path.strip_prefix("syslog:")?.split(',');
    let server = parts.clone().find_map(|part| part.strip_prefix("server="))?;
    let server = match (server.strip_prefix("unix:"), server.parse::<std::net::SocketAddr>()) {
        (Some(_), _) | (None, Ok(_)) => server.to_owned(),
        (None, Err(_)) => {
            server.trim_matches(['[', ']']).parse::<std::net::IpAddr>().ok()?;
            format!("{server}:{SYSLOG_PORT}")
        }
    };
    let options: String =
        parts.filter(|part| !part.starts_with("server=")).map(|part| format!(",{part}")).collect();
    Some(format!("syslog:server={server}{options}"))
}

/// Whether a variable exists in access logs and is known when a request begins.
fn is_early(name: &str) -> bool {
    let is_named = ["http_", "arg_", "cookie_"].iter().any(|prefix| name.starts_with(prefix));
    is_named || EARLY.contains(&name)
}

/// A format with `-` in place of variables that do not exist here, and their names.
fn known_variables(format: &str, maps: &[String]) -> (String, Vec<String>) {
    let (mut known, mut unknown) = (format.to_owned(), Vec::new());
    let mut names = values::variables(format);
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in names {
        let is_group = name.starts_with(|first: char| first.is_ascii_digit());
        let is_of_site = || !is_group && values::unknown_in_response(&format!("${name}"), maps).is_none();
        if is_early(name) || LATE.contains(&name) || name.is_empty() || is_of_site() {
            continue;
        }
        // The longest first: a name may be the start of another.
        known = known.replace(&format!("${{{name}}}"), "-").replace(&format!("${name}"), "-");
        unknown.push(name.to_owned());
    }
    (known, unknown)
}

/// The option for how nginx escapes the values of a format, if it is not the usual one: texts that begin with `{` are JSON here.
fn escaped(format: &str, escape: &str) -> &'static str {
    match (escape, format.trim_start().starts_with('{')) {
        ("json", true) | ("default", false) => "",
        ("json", false) => " escape=json",
        ("none", _) => " escape=none",
        _ => " escape=text",
    }
}

/// Whether a path has variables that are known when a request begins, and these only in the name of its file.
fn names_files(path: &str) -> bool {
    let (folder, _) = path.rsplit_once('/').unwrap_or(("", path));
    !path.starts_with("syslog:")
        && !folder.contains('$')
        && values::variables(path).iter().all(|name| is_early(name))
}

/// Where the lines of a log go; `None` if that is not supported.
fn log_name(path: &str) -> Option<String> {
    match path {
        "" => None,
        _ if path.contains('$') && !names_files(path) => None,
        _ if path.starts_with("syslog:") => system_log(path),
        _ => Some(path.to_owned()),
    }
}

/// Whether the logs around a request have no more conditions than a request can have here.
fn has_few_conditions(chain: &Chain<'_>) -> bool {
    let all = chain.levels().iter().flat_map(|level| level.iter()).filter(|it| it.name == "access_log");
    let mut words: Vec<&str> =
        all.flat_map(Directive::texts).filter(|word| word.starts_with("if=")).collect();
    words.sort_unstable();
    words.dedup();
    words.len() <= CONDITIONS_MAX
}

fn has_log(block: &[Directive]) -> bool {
    block.iter().any(|directive| directive.name == "access_log")
}

impl<'d> Import<'d> {
    /// The logs of the innermost block.
    pub(super) fn logs(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        self.logs_in(chain.own(), chain, lines);
    }

    /// The logs of this block, for requests of the chain.
    fn logs_in(&mut self, block: &'d [Directive], chain: &Chain<'d>, lines: &mut Lines) {
        let known = [&self.table_names[..], &self.set_names[..]].concat();
        'logs: for directive in block {
            if directive.name != "access_log" {
                continue;
            }
            let texts = directive.texts();
            if texts.first() == Some(&"off") {
                self.fates.carried(directive);
                lines.setting("access-log off".to_owned());
                continue;
            }
            let path = texts.first().copied().unwrap_or_default();
            let Some(name) = log_name(path) else {
                self.leave(directive, "a log is one file, or a system log with an address", lines);
                continue;
            };
            let mut text = format!("access-log {}", value(&name));
            let mut left = None;
            for word in &texts[1..] {
                match word.split_once('=') {
                    Some(("buffer", size)) => match values::size(size) {
                        Some(size) => text.push_str(&format!(" buffer=\"{size}\"")),
                        None => left = Some(*word),
                    },
                    Some(("flush", time)) => match values::time(time) {
                        Some(time) => text.push_str(&format!(" flush=\"{time}\"")),
                        None => left = Some(*word),
                    },
                    Some(("if", _)) => match self.log_condition(word).filter(|_| has_few_conditions(chain)) {
                        Some(variable) => {
                            let condition = format!("!({variable} in ['', '0'])");
                            text.push_str(&format!(" when={}", super::out::text(&condition)));
                        }
                        None => left = Some(*word),
                    },
                    Some(_) => left = Some(*word),
                    None if *word == "gzip" => left = Some(*word),
                    None if *word == "combined" => {}
                    None => match self.formats.iter().find(|(name, ..)| name == word) {
                        Some((_, format, escape)) => {
                            let (format, unknown) =
                                known_variables(&of_server_in(format, chain.server()), &known);
                            if values::variables(&format).is_empty() {
                                self.leave(directive, "no variable of its format is supported", lines);
                                continue 'logs;
                            }
                            text.push_str(&format!(" format={}{}", value(&format), escaped(&format, escape)));
                            unknown.iter().for_each(|name| {
                                lines.comment(&format!("not converted: ${name} of the log format {word}"));
                            });
                        }
                        None => left = Some(*word),
                    },
                }
            }
            if !text.contains(" flush=") && text.contains(" buffer=") {
                text.push_str(&format!(" flush=\"{BUFFERED_FLUSH}\""));
            }
            self.has_logs = true;
            lines.setting(text);
            if let Some(word) = left {
                lines.comment(&format!(
                    "not converted: `{word}` of this log ({}:{})",
                    directive.file, directive.line
                ));
            }
            self.fates.carried(directive);
        }
    }

    /// The logs of `http` are at the top, unless a server has its own ones: these replace them.
    pub(super) fn logs_of_http(&mut self, http: &Chain<'d>, top: &mut Lines) {
        if !self.have_logs(http) {
            self.logs(http, top);
        }
        let mut servers = http.own().iter().filter(|it| it.name == "server");
        if servers.all(|server| has_log(server.inner())) {
            // All servers have others in their place.
            let logs = http.own().iter().filter(|it| it.name == "access_log");
            logs.for_each(|log| self.fates.needless(log));
        }
    }

    /// Whether each server has the logs of `http`, or its own: one of them does, or a format has what differs between servers.
    fn have_logs(&self, http: &Chain<'d>) -> bool {
        let has_own = http.own().iter().any(|server| server.name == "server" && has_log(server.inner()));
        let is_of_server = |log: &Directive| {
            let mut formats = self.formats.iter().filter(|(name, ..)| log.texts().contains(&name.as_str()));
            formats
                .any(|(_, format, _)| values::variables(format).iter().any(|name| OF_SERVER.contains(name)))
        };
        has_own || http.own().iter().any(|log| log.name == "access_log" && is_of_server(log))
    }

    /// The logs of a server: its own ones, or those of `http` that are not at the top.
    pub(super) fn logs_of_server(&mut self, server: &Chain<'d>, lines: &mut Lines) {
        let http = server.outer();
        if has_log(server.own()) {
            self.logs(server, lines);
        } else if self.have_logs(&http) {
            // With the names and ports of this server.
            let logs = http.own();
            self.logs_in(logs, server, lines);
        }
    }

    /// The text of `if=$variable` as an expression. It may depend on the response.
    fn log_condition(&self, word: &str) -> Option<String> {
        let text = word.strip_prefix("if=").filter(|text| text.contains('$'))?;
        let pieces = pieces(text).filter(|_| self.unknown_in_response(text).is_none())?;
        Some(if pieces.len() == 1 { pieces.concat() } else { format!("({})", pieces.join(" + ")) })
    }

    /// The logs of a location, or of the one around it: its requests are in no others.
    pub(super) fn logs_of_location(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let is_log = |directive: &&'d Directive| directive.name == "access_log";
        let mut nearest = chain.clone();
        while !nearest.is_server(0) && !nearest.own().iter().any(|directive| is_log(&directive)) {
            nearest = nearest.outer();
        }
        if nearest.is_server(0) {
            return;
        }
        // Routes are beside each other: around each is its server.
        let around: Vec<Vec<&str>> =
            chain.at_server().list(&["access_log"]).into_iter().map(Directive::texts).collect();
        let own: Vec<&'d Directive> = nearest.own().iter().filter(is_log).collect();
        let is_same = own.len() == around.len() && own.iter().all(|log| around.contains(&log.texts()));
        let are_none = own.iter().all(|log| log.word(0) == "off") && around.iter().all(|log| *log == ["off"]);
        if is_same || are_none {
            own.iter().for_each(|log| self.fates.carried(log));
        } else {
            self.logs(&nearest, lines);
        }
    }

    /// Collects log formats.
    pub(super) fn formats(&mut self, http: &'d [Directive]) {
        for directive in http.iter().filter(|directive| directive.name == "log_format") {
            let texts = directive.texts();
            let Some((name, rest)) = texts.split_first() else { continue };
            let escape = rest.first().and_then(|text| text.strip_prefix("escape="));
            let text: String = rest.iter().skip(usize::from(escape.is_some())).copied().collect();
            self.formats.push(((*name).to_owned(), text, escape.unwrap_or("default")));
            self.fates.carried(directive);
        }
    }
}
