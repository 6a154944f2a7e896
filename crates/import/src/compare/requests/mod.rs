//! Requests that follow from configurations: their hosts and paths, and the fields, cookies and arguments that they test.
//!
//! ```text
//! nginx.conf ─┐                        ┌─ each path ─ with what is tested ─ other spellings ─ other hosts
//! site file  ─┴─> hosts, paths, fields ┴─ in this order, those of all sites in turn
//! ```

mod nginx;
mod sample;

use std::collections::HashSet;

use super::Ask;

/// Hosts and paths of one site.
#[derive(Debug, Default)]
struct Place {
    hosts: Vec<String>,
    paths: Vec<String>,
    /// What is tested at a path: a method, a target, and fields.
    tests: Vec<Test>,
}

/// A request for which a condition is true.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Test {
    method: &'static str,
    target: String,
    fields: Vec<(String, String)>,
}

/// What configurations say about requests.
#[derive(Debug, Default)]
pub struct Vocabulary {
    places: Vec<Place>,
    /// Fields with values, in the order of their names.
    fields: Vec<(String, String)>,
    queries: Vec<String>,
    /// The path of the location that is being read, and what is tested in its server.
    here: String,
    tests: Vec<Test>,
    /// Fields of responses that a configuration sets.
    set: Vec<String>,
}

/// Paths of one site, and fields and queries of all; a table may have a hundred thousand.
const PATHS_MAX: usize = 2000;
const FIELDS_MAX: usize = 200;
const QUERIES_MAX: usize = 50;

/// Conditions of one server.
const TESTS_MAX: usize = 500;

/// Paths that are requested so before the others.
const PREFLIGHTS_MAX: usize = 8;

/// A browser asks by OPTIONS whether a page of another site may send a request.
const PREFLIGHT: [(&str, &str); 3] = [
    ("Origin", "https://another.example"),
    ("Access-Control-Request-Method", "PUT"),
    ("Access-Control-Request-Headers", "authorization"),
];

/// Paths that each site is asked for: pages and scripts that many have.
const PROBES: [&str; 30] = [
    "/",
    "/index.html",
    "/index.php",
    "/index.php/a/b",
    "/a.php",
    "/nothing-is-here",
    "/nothing/is/here/",
    "/nothing.php",
    "/nothing.html",
    "/nothing.png",
    "/nothing.css",
    "/robots.txt",
    "/favicon.ico",
    "/sitemap.xml",
    "/.well-known/acme-challenge/token",
    "/.well-known/security.txt",
    "/app.js",
    "/style.css",
    "/img.png",
    "/img.svg",
    "/data.json",
    "/file.txt",
    "/sub",
    "/sub/",
    "/sub/a.php/x",
    "/admin/",
    "/api/v1/users",
    "/login",
    "/moved",
    "/broken",
];

/// Changes of a path.
const SPELLINGS: [fn(&str) -> Option<String>; 8] = [
    |path| Some(format!("{}/nothing-is-here", path.trim_end_matches('/'))),
    |path| match path.strip_suffix('/') {
        Some("") => None,
        Some(without) => Some(without.to_owned()),
        None => Some(format!("{path}/")),
    },
    |path| Some(format!("{path}{}", if path.contains('?') { "&a=1" } else { "?a=1&b=%20c" })),
    |path| (path.len() > 1).then(|| format!("/{path}")),
    |path| Some(path.to_ascii_uppercase()).filter(|upper| upper != path),
    encoded,
    |path| Some(format!("{}/%C3%A9%20b", path.trim_end_matches('/'))),
    |path| Some(format!("{}/{}.php", path.trim_end_matches('/'), "long-name".repeat(12))),
];

/// Fields that change how any response is sent.
const USUAL_FIELDS: [(&str, &str); 7] = [
    ("Accept-Encoding", "gzip"),
    ("Range", "bytes=1-4"),
    ("Range", "bytes=-3"),
    ("If-None-Match", "\"another\""),
    ("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ("Referer", "https://another.example/page"),
    ("Origin", "https://another.example"),
];

/// Names that no site has.
const OTHER_HOSTS: [&str; 2] = ["unknown.example", "192.0.2.1"];

impl Vocabulary {
    /// Adds a site: names of hosts, paths with or without a query. Those of a site with the same first name are added to that.
    pub fn add(&mut self, hosts: &[String], paths: impl IntoIterator<Item = String>) {
        let at = match self.places.iter().position(|place| place.hosts.first() == hosts.first()) {
            Some(at) => at,
            None => {
                self.places.push(Place::default());
                self.places.len() - 1
            }
        };
        let Some(place) = self.places.get_mut(at) else { return };
        for host in hosts.iter().map(|host| host.to_ascii_lowercase()) {
            if is_host(&host) && !place.hosts.contains(&host) {
                place.hosts.push(host);
            }
        }
        for path in paths.into_iter().filter_map(|path| target(&path)) {
            if place.paths.len() < PATHS_MAX && !place.paths.contains(&path) {
                place.paths.push(path);
            }
        }
    }

    /// Paths that an expression of a route finds.
    pub fn paths_of(pattern: &str) -> Vec<String> {
        let mut paths = Vec::new();
        for sample in sample::samples(pattern) {
            let path = match sample.strip_prefix('/') {
                Some(_) => sample,
                None => format!("/index{sample}"),
            };
            if !pattern.ends_with('$') {
                paths.push(format!("{path}x/more.txt"));
            }
            paths.insert(0, path);
        }
        paths
    }

    /// A name that an expression of a host finds.
    pub fn host_of(pattern: &str) -> Option<String> {
        sample::samples(pattern).into_iter().find(|name| is_host(name))
    }

    fn field(&mut self, name: &str, value: &str) {
        let field = (name.to_owned(), value.trim().to_owned());
        let is_value = !field.1.is_empty() && field.1.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if is_value && self.fields.len() < FIELDS_MAX && !self.fields.contains(&field) {
            self.fields.push(field);
        }
    }

    fn query(&mut self, query: &str) {
        let query = target(&format!("/?{query}")).map(|target| target[2..].to_owned());
        if let Some(query) =
            query.filter(|query| self.queries.len() < QUERIES_MAX && !self.queries.contains(query))
        {
            self.queries.push(query);
        }
    }

    /// Fields of responses to compare: those that a configuration sets to texts that are the same for equal requests.
    pub fn set_fields(&self) -> &[String] {
        &self.set
    }

    /// A request for which a condition of the current location is true.
    fn test(&mut self, method: &'static str, query: &str, field: Option<(&str, &str)>) {
        let target = match query {
            "" => target(&self.here),
            query => target(&format!("{}?{query}", self.here)),
        };
        let fields = field.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        let is_value =
            |value: &str| !value.is_empty() && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let Some(target) = target.filter(|_| fields.as_ref().is_none_or(|(_, value)| is_value(value))) else {
            return;
        };
        let test = Test { method, target, fields: fields.into_iter().collect() };
        if self.tests.len() < TESTS_MAX && !self.tests.contains(&test) {
            self.tests.push(test);
        }
    }

    /// At most `count_max` different requests. `usual_host` is the name of sites without one.
    pub fn requests(&self, usual_host: &str, count_max: usize) -> Vec<Ask> {
        let mut asks = Asks { found: Vec::new(), seen: HashSet::new(), count_max };
        let usual = [usual_host.to_owned()];
        let sites: Vec<(&[String], Vec<&str>)> = self
            .places
            .iter()
            .map(|place| {
                let hosts = if place.hosts.is_empty() { &usual[..] } else { &place.hosts[..] };
                let own = place.paths.iter().map(String::as_str);
                (hosts, own.chain(PROBES).collect())
            })
            .collect();
        let longest = sites.iter().map(|(_, paths)| paths.len()).max().unwrap_or(0);
        // Every path of every site, in turn.
        let all = || {
            (0..longest).flat_map(|at| {
                sites.iter().filter_map(move |(hosts, paths)| Some((hosts.first()?, *paths.get(at)?)))
            })
        };
        all().for_each(|(host, path)| asks.get(host, path, &[]));
        // What is tested, where it is.
        let most = self.places.iter().map(|place| place.tests.len()).max().unwrap_or(0);
        for at in 0..most {
            for (place, (hosts, _)) in self.places.iter().zip(&sites) {
                if let (Some(test), Some(host)) = (place.tests.get(at), hosts.first()) {
                    asks.ask(test.method, host, &test.target, &test.fields);
                }
            }
        }
        let preflight = PREFLIGHT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (host, path) in all().take(PREFLIGHTS_MAX.max(sites.len())) {
            asks.ask("OPTIONS", host, path, &preflight);
        }
        for (hosts, paths) in &sites {
            for host in hosts.iter().skip(1) {
                paths.iter().take(2).for_each(|path| asks.get(host, path, &[]));
            }
        }
        for (host, path) in all().take(4) {
            self.fields.iter().for_each(|field| asks.get(host, path, std::slice::from_ref(field)));
            self.queries.iter().for_each(|query| asks.get(host, &format!("{path}?{query}"), &[]));
        }
        for (host, paths) in sites.iter().filter_map(|(hosts, paths)| Some((hosts.first()?, paths))) {
            let others = OTHER_HOSTS.iter().map(|name| (*name).to_owned());
            for name in others.chain(spellings_of_host(host)) {
                paths.iter().take(1).for_each(|path| asks.get(&name, path, &[]));
            }
        }
        let usual_fields = USUAL_FIELDS.map(|(name, value)| (name.to_owned(), value.to_owned()));
        // The rest in turn too, as there is seldom room for all of it.
        for at in 0..longest {
            for (host, path) in
                sites.iter().filter_map(|(hosts, paths)| Some((hosts.first()?, *paths.get(at)?)))
            {
                for spelling in SPELLINGS.iter().filter_map(|change| change(path)) {
                    asks.get(host, &spelling, &[]);
                }
                asks.ask("HEAD", host, path, &[]);
                asks.ask("OPTIONS", host, path, &preflight);
                for field in &usual_fields {
                    asks.get(host, path, std::slice::from_ref(field));
                }
            }
            if asks.found.len() >= count_max {
                break;
            }
        }
        for (host, path) in all() {
            self.fields.iter().for_each(|field| asks.get(host, path, std::slice::from_ref(field)));
        }
        asks.found
    }
}

/// Requests, each once.
struct Asks {
    found: Vec<Ask>,
    seen: HashSet<Ask>,
    count_max: usize,
}

impl Asks {
    fn get(&mut self, host: &str, target: &str, fields: &[(String, String)]) {
        self.ask("GET", host, target, fields);
    }

    fn ask(&mut self, method: &str, host: &str, target: &str, fields: &[(String, String)]) {
        let ask = Ask {
            method: method.to_owned(),
            host: host.to_owned(),
            target: target.to_owned(),
            fields: fields.to_vec(),
        };
        if self.found.len() < self.count_max && self.seen.insert(ask.clone()) {
            self.found.push(ask);
        }
    }
}

/// Other spellings of a host: its port may be given already, and an address has no dot behind it.
fn spellings_of_host(host: &str) -> Vec<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let is_address = name.ends_with(']') || name.parse::<std::net::IpAddr>().is_ok();
    let mut spellings = vec![host.to_uppercase(), format!("{name}:8080")];
    spellings.extend((!is_address).then(|| format!("{name}.")));
    spellings
}

/// A path with the encoding of one letter that needs none.
fn encoded(path: &str) -> Option<String> {
    let at = path.rfind(|char: char| char.is_ascii_lowercase())?;
    let (before, rest) = path.split_at(at);
    let letter = rest.bytes().next()?;
    Some(format!("{before}%{letter:02x}{}", rest.get(1..)?)).filter(|_| !path.contains(['%', '?']))
}

/// A path in the form of a request; `None` if it cannot be one, or if clients would resolve its dots.
fn target(path: &str) -> Option<String> {
    let mut target = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'%' | b'?' | b'&' | b'=' | b'/' => target.push(char::from(byte)),
            b'#' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                target.push_str(&format!("%{byte:02X}"))
            }
            b'!'..=b'~' => target.push(char::from(byte)),
            _ => target.push_str(&format!("%{byte:02X}")),
        }
    }
    let path = target.split('?').next().unwrap_or_default().to_ascii_lowercase();
    let has_dots = path.replace("%2e", ".").replace("%2f", "/").split('/').any(|it| it == "." || it == "..");
    (target.starts_with('/') && !target.contains('$') && !has_dots).then_some(target)
}

fn is_host(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
}

#[cfg(test)]
mod tests;
