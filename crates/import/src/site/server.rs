//! Converts `server` blocks into sites.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, line, value};
use super::tls;

/// Whether PROXY protocol headers are trusted, and from whom.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum HeaderPeers {
    /// From the addresses of `set_real_ip_from`.
    Trusted,
    #[default]
    Unknown,
}

impl HeaderPeers {
    fn of(http: &[Directive]) -> HeaderPeers {
        let servers = http.iter().filter(|directive| directive.name == "server").flat_map(Directive::inner);
        let mut all: Vec<&Directive> = http.iter().collect();
        all.extend(servers);
        let has = |wanted: &dyn Fn(&Directive) -> bool| all.iter().any(|directive| wanted(directive));
        let is_trusted = has(&|it| it.name == "set_real_ip_from")
            && has(&|it| it.name == "real_ip_header" && it.word(0).eq_ignore_ascii_case("proxy_protocol"));
        if is_trusted { HeaderPeers::Trusted } else { HeaderPeers::Unknown }
    }
}

impl<'d> Import<'d> {
    /// Writes all servers.
    pub(super) fn servers(&mut self, http: &Chain<'d>, top: &mut Lines, sites: &mut Lines) {
        let servers: Vec<&'d Directive> =
            http.own().iter().filter(|directive| directive.name == "server").collect();
        self.is_only_server = servers.len() == 1;
        self.header_peers = HeaderPeers::of(http.own());
        self.has_tls = tls::is_spoken(http.own());
        self.process(http, top);
        self.process(&http.outer(), top);
        self.logs(http, top);
        let is_default = |server: &&'d Directive| {
            let listens = server.inner().iter().filter(|directive| directive.name == "listen");
            listens.flat_map(Directive::texts).any(|text| ["default_server", "default"].contains(&text))
        };
        // Without `default_server`, the first server is the default.
        let mut served =
            servers.iter().copied().filter(|server| !self.has_tls || !tls::only_redirects(server));
        let default = served.clone().find(is_default).or_else(|| served.next());
        let mut taken: Vec<String> = Vec::new();
        for server in servers {
            let is_default = default.is_some_and(|default| std::ptr::eq(default, server));
            self.server(server, is_default, http, &mut taken, top, sites);
        }
    }

    fn server(
        &mut self,
        server: &'d Directive,
        is_default: bool,
        http: &Chain<'d>,
        taken: &mut Vec<String>,
        top: &mut Lines,
        sites: &mut Lines,
    ) {
        let chain = http.within(server.inner());
        let mut lines = Lines::default();
        let mut hosts = self.hosts(server, &mut lines);
        if is_default {
            hosts.push("*".to_owned());
        }
        let is_new = |host: &String| !taken.contains(host);
        let doubled: Vec<&String> = hosts.iter().filter(|host| !is_new(host)).collect();
        if !doubled.is_empty() {
            let names: Vec<&str> = doubled.iter().map(|host| host.as_str()).collect();
            lines.comment(&format!("another server has these names already: {}", names.join(" ")));
        }
        hosts.retain(|host| !taken.contains(host));
        hosts.dedup();
        let is_redirect = self.has_tls && tls::only_redirects(server);
        if hosts.is_empty() && !is_redirect {
            // Its addresses are not served either: another server would get its requests.
            let why = "no request would reach it here: sites have all addresses in common";
            self.set_place(server);
            self.lost.push(format!("{}: {why}", self.place));
            return self.leave(server, why, sites);
        }
        self.listens(server, top, &mut lines);
        self.tls(server, &chain, top);
        if is_redirect {
            if tls::serves_plainly(http.own()) {
                return self.leave(
                    server,
                    "https-redirect would hold for the servers without TLS too",
                    sites,
                );
            }
            top.setting("https-redirect on".to_owned());
            return self.carry(server);
        }
        taken.extend(hosts.iter().cloned());
        self.fates.carried(server);
        if self.is_only_server {
            self.process(&chain, top);
        }
        self.seen(server.inner());
        self.set_place(server);
        self.local_only(server, http, &mut lines);
        self.settings(&chain, &mut lines);
        let asks = chain.find("auth_request").filter(|directive| directive.word(0) != "off");
        self.auth_request(asks, &chain, &mut lines);
        self.logs(&chain, &mut lines);
        let levels = [&chain, http];
        self.lists(&levels, &mut lines);
        let redirects = self.rewrites(&chain, false, &mut lines);
        let named: Vec<&'d Directive> = server
            .inner()
            .iter()
            .filter(|directive| directive.name == "location" && Path::of(directive).is_none())
            .collect();
        let has_return = server.inner().iter().any(|directive| directive.name == "return");
        let has_rest = server.inner().iter().any(|directive| {
            directive.name == "location" && Path::of(directive).is_some_and(|path| path.prefix() == Some("/"))
        });
        if has_return || !has_rest {
            self.set_place(server);
            self.action(&chain, None, &named, &mut lines);
        } else if let Some(root) = server.inner().iter().find(|directive| directive.name == "root") {
            self.fates.carried(root);
        }
        for (head, redirect) in redirects.0 {
            let mut inner = Lines::default();
            self.lists(&[&chain.within(&[]), &chain, http], &mut inner);
            inner.setting(redirect);
            lines.block(&[], head, inner);
        }
        if has_return {
            for location in server.inner().iter().filter(|directive| directive.name == "location") {
                self.leave(location, "`return` of its server applies first", &mut lines);
            }
        } else {
            self.locations(server.inner(), &levels, &named, &mut lines);
        }
        for location in named {
            if !self.fates.is_known(location) {
                self.leave(location, "no try_files refers to it", &mut lines);
            }
        }
        self.rest(server.inner(), &mut lines);
        if !lines.has("files")
            && !lines.has("proxy")
            && !lines.has("respond")
            && !lines.has("redirect")
            && !lines.has("close")
            && !lines.has_blocks()
        {
            lines.setting("respond 404".to_owned());
        }
        let hosts: Vec<String> = hosts.iter().map(|host| value(host)).collect();
        sites.block(&server.comments, format!("site {}", hosts.join(" ")), lines);
    }

    /// A server that listens only where nobody else can connect is closed for others, because sites have all addresses
    /// in common.
    fn local_only(&mut self, server: &'d Directive, http: &Chain<'d>, lines: &mut Lines) {
        let servers = || http.own().iter().filter(|directive| directive.name == "server");
        if !is_local(server) || servers().all(is_local) {
            return;
        }
        lines.comment(
            "it listens only where nobody else can connect, and all sites have the same addresses here",
        );
        for peers in ["127.0.0.0/8", "::1", "unix"] {
            lines.setting(line("allow", peers));
        }
        lines.setting("deny all".to_owned());
        // A list of an inner block would replace this one.
        let mut inner = server.inner().iter();
        if super::chain::has_below(server.inner(), &["allow", "deny"])
            || inner.any(|directive| ["allow", "deny"].contains(&directive.name.as_str()))
        {
            let why = "it listens only where nobody else can connect, and has access rules of its own";
            self.closed_servers.push((server, why.to_owned()));
        }
    }

    /// The host names of a server.
    fn hosts(&mut self, server: &'d Directive, lines: &mut Lines) -> Vec<String> {
        let mut hosts = Vec::new();
        for directive in server.inner().iter().filter(|directive| directive.name == "server_name") {
            self.fates.carried(directive);
            for name in directive.texts() {
                match name {
                    "" | "_" => {}
                    _ if name.starts_with('.') => hosts.extend([name[1..].to_owned(), format!("*{name}")]),
                    // Named groups become variables in nginx.
                    _ if name.starts_with('~') && !name.contains("(?<") && !name.contains("(?P<") => {
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

    /// The listen addresses of all servers together.
    fn listens(&mut self, server: &'d Directive, top: &mut Lines, lines: &mut Lines) {
        let mut count = 0;
        for directive in server.inner().iter().filter(|directive| directive.name == "listen") {
            count += 1;
            let texts = directive.texts();
            if texts.contains(&"quic") {
                self.leave(directive, "HTTP/3 is not supported yet", lines);
                continue;
            }
            let setting = if self.has_tls && !texts.contains(&"ssl") { "listen-plain" } else { "listen" };
            let address = texts.first().copied().unwrap_or_default();
            let address = match address.strip_prefix("*:") {
                Some(port) => format!(":{port}"),
                None if address.parse::<u16>().is_ok() => format!(":{address}"),
                None if !address.contains(':') => format!("{address}:80"),
                None if address.starts_with('[') && address.ends_with(']') => format!("{address}:80"),
                None => address.to_owned(),
            };
            self.fates.carried(directive);
            let has_header = texts.contains(&"proxy_protocol");
            let header = match self.header_peers {
                HeaderPeers::Trusted if has_header => " proxy-protocol=on",
                // `real_ip_header proxy_protocol` applies to all listeners.
                HeaderPeers::Trusted => " proxy-protocol=off",
                HeaderPeers::Unknown if has_header => {
                    lines.comment(&format!(
                        "not converted: proxy_protocol of {directive}; it needs set_real_ip_from, and real_ip_header proxy_protocol"
                    ));
                    ""
                }
                HeaderPeers::Unknown => "",
            };
            self.listens.setting(format!("{}{header}", line(setting, &address)));
            for option in texts.iter().skip(1) {
                match option.split_once('=').unwrap_or((option, "")) {
                    ("backlog", count) => top.setting(format!("backlog {count}")),
                    ("proxy_protocol", "") => {}
                    (
                        "default_server" | "default" | "reuseport" | "deferred" | "http2" | "ipv6only"
                        | "bind" | "ssl",
                        _,
                    ) => {}
                    _ => lines.comment(&format!("not converted: `{option}` of {directive}")),
                }
            }
        }
        if count == 0 {
            let setting = if self.has_tls { "listen-plain" } else { "listen" };
            self.listens.setting(format!("{setting} \":80\""));
        }
    }
}

/// Whether a server listens only on addresses of the loopback network, or on Unix sockets.
fn is_local(server: &Directive) -> bool {
    let listens = server.inner().iter().filter(|directive| directive.name == "listen");
    let mut addresses = listens.map(|directive| directive.word(0)).peekable();
    let is_local = |address: &str| {
        ["127.", "[::1]", "localhost", "unix:"].iter().any(|start| address.starts_with(start))
    };
    addresses.peek().is_some() && addresses.all(is_local)
}
