//! What an nginx configuration says about requests.

use crate::nginx::Directive;

use super::Vocabulary;
use super::sample::samples;

/// Cases of one `map` that are requested.
const CASES_MAX: usize = 12;

/// Variables whose values two requests do not share: of time, of a connection, of a server.
const OWN_VARIABLES: [&str; 16] = [
    "request_id",
    "request_time",
    "request_length",
    "msec",
    "time_",
    "date_",
    "pid",
    "connection",
    "remote_port",
    "server_port",
    "nginx_version",
    "hostname",
    "upstream_",
    "bytes_sent",
    "tcpinfo_",
    "ssl_",
];

/// Fields of responses that are compared in other ways, or that two servers need not share.
const UNCOMPARED: [&str; 9] = [
    "vary",
    "etag",
    "date",
    "server",
    "last-modified",
    "content-length",
    "transfer-encoding",
    "connection",
    "alt-svc",
];

/// Fields that are part of how a request is sent, or that are set in other ways.
const OWN_FIELDS: [&str; 12] = [
    "host",
    "connection",
    "upgrade",
    "transfer-encoding",
    "content-length",
    "te",
    "expect",
    "trailer",
    "range",
    "if-none-match",
    "if-modified-since",
    "http2-settings",
];

impl Vocabulary {
    /// Adds the servers, locations and conditions of an nginx configuration.
    pub fn add_nginx(&mut self, main: &[Directive]) {
        for http in main.iter().filter(|directive| directive.name == "http") {
            for server in http.inner().iter().filter(|directive| directive.name == "server") {
                let names = server.inner().iter().filter(|it| it.name == "server_name");
                let hosts: Vec<String> = names.flat_map(Directive::texts).filter_map(host).collect();
                let mut paths = Vec::new();
                "/".clone_into(&mut self.here);
                self.block(server.inner(), &mut paths);
                self.add(&hosts, paths);
                let tests = std::mem::take(&mut self.tests);
                if let Some(place) = self.places.iter_mut().find(|place| place.hosts.first() == hosts.first())
                {
                    place.tests.extend(tests);
                }
            }
            for directive in http.inner().iter().filter(|directive| directive.name != "server") {
                self.variables(directive);
                self.sets(directive);
                if directive.name == "map" {
                    self.map(directive);
                }
            }
        }
    }

    fn block(&mut self, block: &[Directive], paths: &mut Vec<String>) {
        for directive in block {
            let word = |at: usize| directive.word(at).to_owned();
            let around = self.here.clone();
            match directive.name.as_str() {
                "location" => {
                    let known = paths.len();
                    location(directive, paths);
                    if let Some(first) = paths.get(known) {
                        self.here.clone_from(first);
                    }
                }
                "rewrite" => paths.extend(Vocabulary::paths_of(&word(0))),
                "if" => self.condition(directive, paths),
                "error_page" | "try_files" | "index" => {
                    paths.extend(
                        directive
                            .texts()
                            .last()
                            .and_then(|last| last.starts_with('/').then(|| (*last).to_owned())),
                    );
                }
                // The user ann with the password secret, whom few sites know.
                "auth_basic" | "auth_request" => self.field("Authorization", "Basic YW5uOnNlY3JldA=="),
                "limit_except" => self.test("OPTIONS", "", None),
                "valid_referers" => {
                    for name in directive.texts().into_iter().filter_map(host) {
                        self.field("Referer", &format!("https://{name}/page"));
                    }
                }
                _ => {}
            }
            self.variables(directive);
            self.sets(directive);
            self.block(directive.inner(), paths);
            self.here = around;
        }
    }

    /// The field that a directive sets in responses.
    fn sets(&mut self, directive: &Directive) {
        let name = match directive.name.as_str() {
            "add_header" => directive.word(0).to_ascii_lowercase(),
            "expires" => "expires".to_owned(),
            _ => return,
        };
        // Other texts differ between two requests, or between two servers.
        let is_fixed = !directive.word(1).split('$').skip(1).any(|rest| {
            let name = rest.trim_start_matches('{');
            OWN_VARIABLES.iter().any(|own| name.starts_with(own))
        });
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if is_fixed && is_name && !UNCOMPARED.contains(&name.as_str()) && !self.set.contains(&name) {
            self.set.push(name);
        }
    }

    /// What makes an `if` true.
    fn condition(&mut self, directive: &Directive, paths: &mut Vec<String>) {
        let words: Vec<&str> = directive.texts();
        let words: Vec<&str> =
            words.iter().map(|word| word.trim_matches(['(', ')'])).filter(|word| !word.is_empty()).collect();
        let Some(variable) = words.first().and_then(|word| word.strip_prefix('$')) else { return };
        // An expression may end with the parenthesis that closes its group. Behind a quoted one, the last parenthesis is a word.
        let operand = match directive.texts()[..] {
            [.., operand, ")"] => operand,
            [.., last] => last.strip_suffix(')').unwrap_or(last),
            [] => "",
        };
        let values = match words.get(1) {
            Some(operator) if operator.contains('~') => samples(operand),
            Some(_) => vec![operand.to_owned()],
            None => vec!["1".to_owned()],
        };
        for value in values {
            self.tested(variable, &value, paths);
        }
    }

    /// The cases of a `map` of one variable.
    fn map(&mut self, map: &Directive) {
        let source = map.word(0).trim_start_matches('$').trim_matches(['{', '}']).to_owned();
        let cases = map
            .inner()
            .iter()
            .filter(|case| !["default", "hostnames", "volatile", "include"].contains(&&*case.name));
        let mut paths = Vec::new();
        for case in cases.take(CASES_MAX) {
            match case.name.strip_prefix('~') {
                Some(pattern) => {
                    for value in samples(pattern.trim_start_matches('*')) {
                        self.tested(&source, &value, &mut paths);
                    }
                }
                None => self.tested(&source, &case.name, &mut paths),
            }
        }
        let paths: Vec<String> = paths.into_iter().take(CASES_MAX).collect();
        for at in 0..self.places.len() {
            let hosts = self.places.get(at).map(|place| place.hosts.clone()).unwrap_or_default();
            self.add(&hosts, paths.iter().cloned());
        }
    }

    /// A variable that has this value in some request.
    fn tested(&mut self, variable: &str, value: &str, paths: &mut Vec<String>) {
        match variable {
            "request_method" if value.eq_ignore_ascii_case("OPTIONS") => self.test("OPTIONS", "", None),
            "uri" | "request_uri" | "document_uri" | "request_filename" | "fastcgi_script_name" => {
                paths.push(if value.starts_with('/') { value.to_owned() } else { format!("/index{value}") });
            }
            "args" | "query_string" => {
                self.query(value);
                self.test("GET", value, None);
            }
            _ => match variable.split_once('_') {
                Some(("http", name)) => {
                    let name = name.replace('_', "-");
                    if !OWN_FIELDS.contains(&&*name) {
                        self.field(&name, value);
                        self.test("GET", "", Some((&name, value)));
                    }
                }
                Some(("arg", name)) => {
                    self.query(&format!("{name}={value}"));
                    self.test("GET", &format!("{name}={value}"), None);
                }
                Some(("cookie", name)) => {
                    self.field("Cookie", &format!("{name}={value}"));
                    self.test("GET", "", Some(("Cookie", &format!("{name}={value}"))));
                }
                _ => {}
            },
        }
    }

    /// Variables of a request in the words of a directive, with values of their kind.
    fn variables(&mut self, directive: &Directive) {
        let mut paths = Vec::new();
        for text in directive.texts() {
            for rest in text.split('$').skip(1) {
                let rest = rest.trim_start_matches('{');
                let end = rest
                    .find(|char: char| !char.is_ascii_alphanumeric() && char != '_')
                    .unwrap_or(rest.len());
                let name = &rest[..end];
                let value = match name {
                    "http_origin" | "http_referer" => "https://another.example",
                    "http_x_forwarded_proto" => "https",
                    "http_x_forwarded_for" | "http_x_real_ip" => "192.0.2.7",
                    "http_cookie" => "name=value",
                    "args" | "query_string" | "uri" | "request_uri" | "document_uri" | "request_filename" => {
                        continue;
                    }
                    _ => "some-value",
                };
                self.tested(name, value, &mut paths);
            }
        }
    }
}

/// A name that `server_name` finds.
fn host(name: &str) -> Option<String> {
    match name.strip_prefix('~') {
        Some(pattern) => Vocabulary::host_of(pattern.trim_start_matches('*')),
        None => match (name.strip_prefix("*."), name.strip_suffix(".*"), name.strip_prefix('.')) {
            (Some(rest), ..) => Some(format!("any.{rest}")),
            (_, Some(rest), _) => Some(format!("{rest}.example")),
            (_, _, Some(rest)) => Some(rest.to_owned()),
            _ => Some(name.to_owned()).filter(|name| {
                !["", "_", "none", "blocked", "server_names"].contains(&&**name) && !name.contains(['$', '/'])
            }),
        },
    }
}

/// Paths of a location.
fn location(location: &Directive, paths: &mut Vec<String>) {
    let (how, path) = match location.texts()[..] {
        [how, path] => (how, path),
        [one] => match one.strip_prefix("~*").or_else(|| one.strip_prefix('~')) {
            Some(pattern) => ("~", pattern),
            None => ("", one.trim_start_matches("^~").trim_start_matches('=')),
        },
        _ => return,
    };
    match how {
        "~" | "~*" => paths.extend(Vocabulary::paths_of(path)),
        "=" => paths.extend([path.to_owned(), format!("{path}/"), format!("{path}x")]),
        _ => {
            let folder = path.trim_end_matches('/');
            paths.push(path.to_owned());
            paths.extend(
                ["nothing-is-here", "a.php", "style.css", "sub/", "file.txt"]
                    .map(|name| format!("{folder}/{name}")),
            );
        }
    }
}
