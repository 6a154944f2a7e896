//! Converts `server` blocks into sites.

use std::borrow::Cow;

use flatout_expression::Regex;

use crate::nginx::Directive;

use super::Import;
use super::addresses::Addresses;
use super::chain::Chain;
use super::conditions::is_free;
use super::constants::has_single_addresses;
use super::location::Path;
use super::out::{Lines, text, value};
use super::pattern::{groups, has_named_group, with_only_group};
use super::rewrite::origin;
use super::tls;

/// The name of requests without a host, here and in nginx. A server without any name has it.
const UNNAMED: &str = "";

/// What a server on addresses without TLS has no use for.
const UNUSED_WITHOUT_TLS: [&str; 12] = [
    "ssl",
    "ssl_buffer_size",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_dhparam",
    "ssl_prefer_server_ciphers",
    "ssl_protocols",
    "ssl_session_cache",
    "ssl_session_timeout",
    "ssl_stapling",
    "ssl_trusted_certificate",
];

impl<'d> Import<'d> {
    /// Writes all servers.
    pub(super) fn servers(&mut self, http: &Chain<'d>, top: &mut Lines, sites: &mut Lines) {
        let servers: Vec<&'d Directive> =
            http.own().iter().filter(|directive| directive.name == "server").collect();
        self.is_only_server = servers.len() == 1;
        let (addresses, refused) = Addresses::of(&servers);
        self.addresses = addresses;
        self.shares_addresses = self.addresses.are_shared() && tls::is_one(&servers, http);
        self.process(http, top);
        self.process(&http.outer(), top);
        if !self.is_only_server {
            self.largest_heads(&servers, http, top);
            self.largest_windows(&servers, http, top);
        }
        self.one_worker(http.outer().own(), top);
        self.logs_of_http(http, top);
        for (listen, why) in refused {
            self.set_place(listen);
            self.lost.push(format!("{}: {why}", self.place));
            self.leave(listen, why, top);
        }
        let trusts = |server: &&'d Directive| {
            let chain = http.inside(server);
            chain.find("set_real_ip_from").is_some()
                && chain.word("real_ip_header").eq_ignore_ascii_case("proxy_protocol")
        };
        let trusts: Vec<bool> = servers.iter().map(trusts).collect();
        self.addresses.trust_headers(&trusts);
        let mut taken: Vec<(String, String)> = Vec::new();
        let mut written: Vec<(usize, Lines)> = Vec::new();
        for (at, server) in servers.into_iter().enumerate() {
            // Groups of its names are variables of its own.
            let known = self.maps.len();
            let mut site = Lines::default();
            self.server(server, at, http, &mut taken, top, &mut site);
            self.maps.truncate(known);
            written.push((longest_start(server), site));
        }
        // Of the names `name.*` that fit, nginx takes the longest, and all of them before expressions. Here the first site counts.
        written.sort_by_key(|(start, _)| std::cmp::Reverse(*start));
        for (_, site) in written {
            if !sites.is_empty() {
                sites.gap();
            }
            sites.extend(site);
        }
    }

    fn server(
        &mut self,
        server: &'d Directive,
        at: usize,
        http: &Chain<'d>,
        taken: &mut Vec<(String, String)>,
        top: &mut Lines,
        sites: &mut Lines,
    ) {
        let chain = http.inside(server);
        let mut lines = Lines::default();
        if has_single_addresses(server.inner()) {
            self.maps.push("server_addr".to_owned());
        }
        if self.addresses.at(at).is_empty() {
            let why = "it has no address that is supported";
            self.set_place(server);
            self.lost.push(format!("{}: {why}", self.place));
            return self.leave(server, why, sites);
        }
        let (hosts, names_default) = self.names(server, at, taken, &mut lines);
        if hosts.is_empty() {
            let why = "nginx sends it no requests either: another server has its names, or those without a known name";
            return self.leave(server, why, sites);
        }
        self.listens(server, at, names_default, top, &mut lines);
        self.tls(server, at, &chain, top, &mut lines);
        self.fates.carried(server);
        if !self.addresses.speaks_tls(at) {
            let of_tls = server.inner().iter().filter(|it| UNUSED_WITHOUT_TLS.contains(&it.name.as_str()));
            of_tls.for_each(|directive| self.fates.needless(directive));
        }
        if self.is_only_server {
            self.process(&chain, top);
        } else {
            self.real_ip(&chain, &mut lines);
        }
        let lines_before = lines.len();
        let others_serve_files = std::mem::take(&mut self.serves_files);
        self.has_proxy_redirects = false;
        self.rules_of_server(server, &chain, http, &mut lines);
        if (self.serves_files || self.has_proxy_redirects)
            && let Some(origin) = origin(&chain)
        {
            lines.setting_at(lines_before, format!("redirect-origin {}", text(&origin)));
        }
        self.serves_files |= others_serve_files;
        let hosts: Vec<String> = hosts.iter().map(|host| value(host)).collect();
        sites.block(&server.comments, format!("site {}", hosts.join(" ")), lines);
    }

    /// The names under which a server is found, and whether its site says itself that it gets all other names. Names that
    /// another server has at the same address are left out.
    fn names(
        &mut self,
        server: &'d Directive,
        at: usize,
        taken: &mut Vec<(String, String)>,
        lines: &mut Lines,
    ) -> (Vec<String>, bool) {
        let mut hosts = self.hosts(server, lines);
        if !server.inner().iter().any(|it| it.name == "server_name") {
            hosts.push(UNNAMED.to_owned());
        }
        if !self.shares_addresses {
            let is_new =
                |text: &str, host: &String| !taken.iter().any(|(at, name)| at == text && name == host);
            self.addresses.retain(at, |text| hosts.iter().any(|host| is_new(text, host)));
        }
        let here: Vec<String> = self.addresses.at(at).iter().map(|address| address.text.clone()).collect();
        if here.is_empty() {
            return (Vec::new(), false);
        }
        let is_new = |host: &String| !here.iter().any(|text| taken.contains(&(text.clone(), host.clone())));
        let doubled: Vec<&str> =
            hosts.iter().filter(|host| !is_new(host) && *host != UNNAMED).map(|host| host.as_str()).collect();
        if !doubled.is_empty() {
            lines.comment(&format!("another server has these names already: {}", doubled.join(" ")));
        }
        hosts.retain(is_new);
        taken.extend(here.iter().flat_map(|text| hosts.iter().map(|host| (text.clone(), host.clone()))));
        // All other names: said by the site's names where it is so at all its addresses.
        let is_default = self.addresses.is_default(at) || self.is_only_server;
        if is_default {
            // They are among the other ones.
            hosts.retain(|host| host != UNNAMED);
        }
        let names_default = !(is_default && (self.shares_addresses || hosts.is_empty()));
        if !names_default || (hosts.is_empty() && self.addresses.is_default_anywhere(at)) {
            hosts.push("*".to_owned());
        }
        (hosts, names_default)
    }

    /// Writes the rules, locations and default action of a server.
    fn rules_of_server(
        &mut self,
        server: &'d Directive,
        chain: &Chain<'d>,
        http: &Chain<'d>,
        lines: &mut Lines,
    ) {
        let named: Vec<&'d Directive> = server
            .inner()
            .iter()
            .filter(|directive| directive.name == "location" && Path::of(directive).is_none())
            .collect();
        self.find_named(server.inner(), &[http.own()], &named);
        self.seen(server.inner());
        self.set_place(server);
        self.settings(chain, lines);
        let asks = chain.find("auth_request").filter(|directive| directive.word(0) != "off");
        self.auth_request(asks, chain, lines);
        self.logs_of_server(chain, lines);
        let levels = [chain, http];
        self.lists(&levels, lines);
        let redirects = self.rewrites(chain, None, lines);
        let has_return = chain.until_end().last().is_some_and(|end| end.name == "return");
        let has_rest = server.inner().iter().any(|directive| {
            directive.name == "location" && Path::of(directive).is_some_and(|path| path.prefix() == Some("/"))
        });
        if let Some(why) = redirects.lost {
            self.set_place(server);
            self.close(&why, lines);
            for location in server.inner().iter().filter(|directive| directive.name == "location") {
                self.leave(location, "rules of its server are not converted", lines);
            }
            return self.rest(server.inner(), lines);
        }
        // It comes before all locations, as `return` does.
        let is_redirected = redirects.all.is_some();
        if let Some(redirect) = redirects.all {
            redirect.write(false, lines);
        } else if has_return || !has_rest {
            self.set_place(server);
            self.action_of_server(chain, http, &named, lines);
        } else if let Some(root) = chain.find_own("root") {
            self.fates.carried(root);
        }
        for (head, redirect) in redirects.routes {
            let mut inner = Lines::default();
            self.lists(&[&chain.within(&[]), chain, http], &mut inner);
            redirect.write(false, &mut inner);
            lines.block(&[], head, inner);
        }
        if has_return || is_redirected {
            let first = if is_redirected { "rewrite" } else { "return" };
            for location in server.inner().iter().filter(|directive| directive.name == "location") {
                self.leave(location, &format!("`{first}` of its server applies first"), lines);
            }
        } else {
            self.locations(server.inner(), &levels, &named, lines);
        }
        self.named_locations(&named, &levels, lines);
        self.moved_routes(lines);
        self.rest(server.inner(), lines);
        if !serves(lines) && !lines.has_routes() {
            lines.setting("respond 404".to_owned());
        }
    }

    /// Writes what the server does with requests that match no location. If it has lists that some of its locations replace, or does
    /// something else under a condition, it stands in a route of its own.
    fn action_of_server(
        &mut self,
        chain: &Chain<'d>,
        http: &Chain<'d>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        let mut inner = Lines::default();
        let has_replaced = Self::has_replaced_lists(chain);
        if has_replaced {
            self.lists(&[&chain.within(&[]), chain, http], &mut inner);
        }
        self.action(chain, None, named, &mut inner);
        // A route of fields alone would serve nothing.
        if has_replaced && !serves(&inner) {
            return;
        }
        // An action under a condition would come before all routes in a site.
        match has_replaced || inner.has_conditional_action() {
            true => lines.block(&[], "route \"/\"".to_owned(), inner),
            false => lines.extend(inner),
        }
    }

    /// The host names of a server.
    fn hosts(&mut self, server: &'d Directive, lines: &mut Lines) -> Vec<String> {
        let mut hosts = Vec::new();
        for directive in server.inner().iter().filter(|directive| directive.name == "server_name") {
            self.fates.carried(directive);
            for name in directive.texts() {
                let name = &*with_ascii_classes(name);
                match name {
                    "" => hosts.push(UNNAMED.to_owned()),
                    "_" => {}
                    _ if name.starts_with('.') => hosts.extend([name[1..].to_owned(), format!("*{name}")]),
                    _ if self.named_groups(name, lines) => hosts.push(name.to_owned()),
                    // Named groups become variables in nginx.
                    _ if name.starts_with('~') && !has_named_group(name) => {
                        hosts.push(name.to_owned());
                    }
                    _ if name.ends_with(".*") && !name.starts_with('~') => {
                        let start = name.trim_end_matches('*').replace('.', "\\.");
                        hosts.push(format!("~^{start}.+$"));
                    }
                    _ if name.starts_with('~') || name.contains('$') => {
                        lines.comment(&format!(
                            "not converted: the name {name}; named groups and variables are not supported in names"
                        ));
                    }
                    _ if !is_host_name(name) => {
                        lines.comment(&format!("not converted: the name {name}, which no request has"));
                    }
                    _ => hosts.push(name.to_ascii_lowercase()),
                }
            }
        }
        let mut seen = Vec::new();
        hosts.retain(|host| {
            let is_new = !seen.contains(host);
            seen.push(host.clone());
            is_new
        });
        hosts
    }

    /// A name whose expression has groups with names: these are variables.
    fn named_groups(&mut self, name: &str, lines: &mut Lines) -> bool {
        let Some(pattern) = name.strip_prefix('~').filter(|pattern| has_named_group(pattern)) else {
            return false;
        };
        // Texts of expressions are bytes. A dollar sign before the end would begin a variable.
        let is_plain = !pattern.contains('\'')
            && !pattern.contains("\\p")
            && (!pattern.contains('$') || pattern.ends_with('$'));
        let named: Vec<(usize, &str)> = (1..)
            .zip(groups(pattern))
            .map(|(number, group)| (number, group.name))
            .filter(|(_, name)| !name.is_empty())
            .collect();
        let is_new = |name: &str| is_free(name) && !self.maps.iter().any(|known| known == name);
        if !is_plain || Regex::new(pattern, false).is_err() || !named.iter().all(|(_, name)| is_new(name)) {
            return false;
        }
        for (number, name) in named {
            let Some(only) = with_only_group(pattern, number) else { return false };
            let expression = text(&format!("host.extract(r'(?i){only}')"));
            lines.setting(format!("set {} expr={expression}", value(name)));
            self.maps.push(name.to_owned());
        }
        true
    }

    /// The addresses of a server: at the top of the file if all servers have the same, otherwise in its site.
    fn listens(
        &mut self,
        server: &'d Directive,
        at: usize,
        names_default: bool,
        top: &mut Lines,
        lines: &mut Lines,
    ) {
        let has_tls = self.addresses.has_tls();
        for address in self.addresses.at(at) {
            match self.shares_addresses {
                true => self.listens.setting(address.setting(has_tls, false)),
                false => lines.setting(address.setting(has_tls, names_default)),
            }
        }
        for directive in server.inner().iter().filter(|directive| directive.name == "listen") {
            if self.fates.is_known(directive) {
                continue;
            }
            self.fates.carried(directive);
            for option in directive.texts().iter().skip(1) {
                match option.split_once('=').unwrap_or((option, "")) {
                    ("backlog", count) => top.setting(format!("backlog {count}")),
                    (
                        "default_server" | "default" | "reuseport" | "deferred" | "http2" | "ipv6only"
                        | "bind" | "ssl" | "proxy_protocol" | "rcvbuf" | "sndbuf" | "so_keepalive",
                        _,
                    ) => {}
                    _ => lines.comment(&format!("not converted: `{option}` of {directive}")),
                }
            }
        }
    }
}

/// Whether a place has an action.
fn serves(lines: &Lines) -> bool {
    ["files", "proxy", "reroute", "respond", "stub-status", "redirect", "close"]
        .iter()
        .any(|name| lines.has(name))
}

/// An expression of a name with classes of ASCII in place of those of Unicode: names of hosts have nothing else.
fn with_ascii_classes(name: &str) -> Cow<'_, str> {
    const CLASSES: [(&str, &str); 5] = [
        ("\\p{N}", "[0-9]"),
        ("\\p{Nd}", "[0-9]"),
        ("\\p{L}", "[A-Za-z]"),
        ("\\p{Ll}", "[a-z]"),
        ("\\p{Lu}", "[A-Z]"),
    ];
    if !name.starts_with('~') || !name.contains("\\p{") {
        return Cow::Borrowed(name);
    }
    let replaced = |text: String, (class, ascii): &(&str, &str)| text.replace(class, ascii);
    Cow::Owned(CLASSES.iter().fold(name.to_owned(), replaced))
}

/// The length of the longest of a server's names that end with a wildcard.
fn longest_start(server: &Directive) -> usize {
    let names = server.inner().iter().filter(|it| it.name == "server_name").flat_map(Directive::texts);
    let starts = names.filter(|name| name.ends_with(".*") && !name.starts_with('~'));
    starts.map(str::len).max().unwrap_or(0)
}

/// Whether a name, or one with a wildcard, may be that of a host.
fn is_host_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._*:[]".contains(&byte) || !byte.is_ascii())
}
