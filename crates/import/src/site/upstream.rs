//! `upstream` blocks, and the `proxy_*` settings of connections to them.

use crate::nginx::Directive;

use super::chain::Chain;
use super::fastcgi::NO_POOL;
use super::out::{Lines, option, value};
use super::{Import, values};

/// An upstream of the site file.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) lines: Lines,
    /// What it was made from: another place with the same settings shares it.
    key: (String, bool, Vec<String>),
}

/// Whether a `proxy_bind` is an address of this machine, without a port and without `transparent`.
fn is_source(bind: &Directive) -> bool {
    bind.words.len() == 1 && bind.word(0).trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}

/// The name of an upstream whose servers are named by requests.
const NAMED: &str = "named-by-requests";

/// How long nginx waits for a resolver by default.
const RESOLVER_TIMEOUT_MS: u64 = 30_000;

/// Whether a text of `resolver` is an address.
fn is_dns_server(text: &str) -> bool {
    text.parse::<std::net::SocketAddr>().is_ok()
        || text.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}

/// Whether the host of an authority is a name of the DNS.
fn is_looked_up(authority: &str) -> bool {
    let has_port = authority.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let host = has_port.map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    let is_address = host.parse::<std::net::IpAddr>().is_ok() || host.starts_with("unix:");
    !is_address && host != "localhost"
}

/// `retry-on` for `proxy_next_upstream`; `None` for the default of both.
fn retry_on(directive: Option<&Directive>) -> Option<String> {
    let words = directive?.texts();
    let convert = |word: &&str| match *word {
        "invalid_header" => Some("invalid-response".to_owned()),
        "non_idempotent" => Some("non-idempotent".to_owned()),
        "error" | "timeout" => Some((*word).to_owned()),
        other => other.strip_prefix("http_").map(str::to_owned),
    };
    let mut found: Vec<String> = words.iter().filter_map(convert).collect();
    found.sort_by_key(|word| word.parse().unwrap_or(0));
    let is_default = found.len() == 2 && found.iter().all(|word| word == "error" || word == "timeout");
    (!found.is_empty() && !is_default).then(|| format!("retry-on {}", found.join(" ")))
}

impl<'d> Import<'d> {
    pub(super) fn known_upstreams(&mut self, http: &'d [Directive]) {
        self.upstreams = http.iter().filter(|directive| directive.name == "upstream").collect();
    }

    /// The DNS servers, if nginx looks up names of servers while it runs. Other names are those of its start, by the system's
    /// resolver.
    pub(super) fn resolver(&mut self, http: &'d [Directive], top: &mut Lines) {
        let looks_up = |block: &&'d Directive| {
            let mut options =
                block.inner().iter().filter(|it| it.name == "server").flat_map(Directive::texts);
            options.any(|option| option == "resolve" || option.starts_with("service="))
        };
        let looking: Vec<&'d Directive> = self.upstreams.iter().copied().filter(looks_up).collect();
        if looking.is_empty() {
            return;
        }
        let of = |block: &'d [Directive]| block.iter().find(|directive| directive.name == "resolver");
        let own = looking.iter().filter_map(|block| of(block.inner()));
        own.chain(of(http)).for_each(|directive| self.one_resolver(directive, top));
    }

    fn one_resolver(&mut self, directive: &'d Directive, top: &mut Lines) {
        let servers: Vec<&str> = directive.texts().into_iter().filter(|text| !text.contains('=')).collect();
        let setting =
            format!("resolver {}", servers.iter().map(|it| value(it)).collect::<Vec<_>>().join(" "));
        if servers.is_empty() || !servers.iter().all(|server| is_dns_server(server)) {
            self.leave(directive, "a DNS server must be an IP address", top);
        } else if top.has("resolver") && !top.has_setting(&setting) {
            self.leave(directive, "only one resolver for all upstreams is supported", top);
        } else {
            self.fates.carried(directive);
            top.setting(setting);
        }
    }

    /// The DNS servers of names that stood in variables: nginx looks them up while it runs. A resolver is for all names, so that it is
    /// written only if there are no others.
    pub(super) fn resolver_of_variables(&mut self, top: &mut Lines) {
        for resolver in std::mem::take(&mut self.resolvers) {
            if self.has_fixed_names && !top.has("resolver") {
                let why =
                    "names that nginx looks up at its start need the system's resolver, which looks up all";
                self.leave(resolver, why, top);
            } else {
                self.one_resolver(resolver, top);
            }
        }
    }

    /// Notes who looks up the name of a server that is not in an `upstream`.
    fn note_name(&mut self, authority: &str, chain: &Chain<'d>) {
        if !is_looked_up(authority) {
            return;
        }
        let resolver = chain.find("resolver").filter(|it| it.word(0) != "off");
        match resolver.filter(|_| self.named_by_variables.iter().any(|named| named == authority)) {
            None => self.has_fixed_names = true,
            Some(resolver) if self.resolvers.iter().any(|known| std::ptr::eq(*known, resolver)) => {}
            Some(resolver) => self.resolvers.push(resolver),
        }
    }

    /// The argument of `proxy` for the authority of a `proxy_pass`.
    pub(super) fn upstream(
        &mut self,
        authority: &str,
        is_tls: bool,
        family: &str,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Option<String> {
        let mut settings = Vec::new();
        if family == "grpc" {
            settings.push(format!("protocol {}", if is_tls { "h2" } else { "h2c" }));
            // Without `keepalive`, each request of nginx has a connection of its own. Behind an address that stands for many
            // servers, all requests would otherwise go to the one that has accepted the connection.
            settings.push(NO_POOL.to_owned());
        }
        self.upstream_with(authority, is_tls, family, settings, chain, lines)
    }

    /// The same, with settings of its protocol.
    pub(super) fn upstream_with(
        &mut self,
        authority: &str,
        is_tls: bool,
        family: &str,
        protocol: Vec<String>,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Option<String> {
        let mut settings = self.connecting(chain, family, is_tls);
        settings.extend(protocol);
        let block = self.upstreams.iter().copied().find(|upstream| upstream.word(0) == authority);
        let word = |name: &str| chain.word(&format!("{family}_{name}"));
        let uses_name =
            word("ssl_name").is_empty() && (word("ssl_server_name") == "on" || word("ssl_verify") == "on");
        let is_name =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        if is_tls && uses_name && block.is_some() && is_name(authority) {
            // In nginx, the servers of an upstream have its name.
            settings.push(format!("upstream-name {}", value(authority)));
        }
        match block {
            None => self.note_name(authority, chain),
            Some(block) => {
                let fixed = block.inner().iter().filter(|it| it.name == "server");
                let is_fixed = |it: &Directive| is_looked_up(it.word(0)) && !it.texts().contains(&"resolve");
                self.has_fixed_names |= fixed.into_iter().any(is_fixed);
            }
        }
        let scheme = if is_tls { "https" } else { "http" };
        if let (None, true) = (block, settings.is_empty()) {
            return Some(match authority.starts_with("unix:") && !is_tls {
                true => authority.to_owned(),
                false => format!("{scheme}://{authority}"),
            });
        }
        let key = (authority.to_owned(), is_tls, settings.clone());
        if let Some(made) = self.made.iter().find(|made| made.key == key) {
            return Some(made.name.clone());
        }
        let is_down = |server: &Directive| server.name != "server" || server.texts().contains(&"down");
        if let Some(block) = block.filter(|block| block.inner().iter().all(is_down)) {
            self.fates.carried(block);
            lines.comment(&format!("upstream {authority} has no server that is not down"));
            return None;
        }
        let name = self.name_for(authority);
        let mut inner = Lines::default();
        match block {
            Some(block) => self.servers_of(block, is_tls, &mut inner),
            None => inner.setting(format!("server {}", value(&address(authority, is_tls)))),
        }
        for setting in settings {
            if !(setting == NO_POOL && inner.has("pool")) {
                inner.setting(setting);
            }
        }
        self.made.push(Made { name: name.clone(), lines: inner, key });
        Some(name)
    }

    /// The upstream of servers that requests name, as in nginx: any that this machine reaches, by names only if there is a resolver.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn others(
        &mut self,
        is_tls: bool,
        family: &str,
        protocol: Vec<String>,
        chain: &Chain<'d>,
    ) -> Result<String, String> {
        let mut settings = vec![self.named_servers(chain)?];
        settings.extend(self.connecting(chain, family, is_tls));
        settings.extend(protocol);
        // Requests wait in the queue for a lookup.
        let timeout = values::milliseconds(chain.word("resolver_timeout")).unwrap_or(RESOLVER_TIMEOUT_MS);
        settings.push(format!("queue-time \"{}ms\"", timeout.saturating_add(1000)));
        let key = (NAMED.to_owned(), is_tls, settings.clone());
        if let Some(made) = self.made.iter().find(|made| made.key == key) {
            return Ok(made.name.clone());
        }
        let name = self.name_for(NAMED);
        let mut lines = Lines::default();
        lines.comment("requests name the servers, as in nginx: clients reach all that this machine reaches, unless hosts are listed here in place of *");
        settings.into_iter().for_each(|setting| lines.setting(setting));
        self.made.push(Made { name: name.clone(), lines, key });
        Ok(name)
    }

    fn named_servers(&mut self, chain: &Chain<'d>) -> Result<String, String> {
        let Some(resolver) = chain.find("resolver").filter(|it| it.word(0) != "off") else {
            return Ok("named-servers address".to_owned());
        };
        let (options, servers): (Vec<&str>, Vec<&str>) =
            resolver.texts().into_iter().partition(|text| text.contains('='));
        if servers.is_empty() || !servers.iter().all(|it| is_dns_server(it)) {
            return Err(format!("{resolver}: a DNS server must be an IP address"));
        }
        self.fates.carried(resolver);
        let option = |name: &str| options.iter().find_map(|option| option.strip_prefix(name));
        let ipv6 = if option("ipv6=") == Some("off") { " ipv6=off" } else { "" };
        let valid = option("valid=").and_then(values::time).map(|time| format!(" valid=\"{time}\""));
        let timeout = values::milliseconds(chain.word("resolver_timeout")).unwrap_or(RESOLVER_TIMEOUT_MS);
        Ok(format!(
            "named-servers \"*\" resolver={}{ipv6} time=\"{timeout}ms\"{}",
            value(&servers.join(" ")),
            valid.unwrap_or_default()
        ))
    }

    /// A name that no upstream has yet.
    fn name_for(&self, authority: &str) -> String {
        // A socket has the name of its file.
        let name = authority.strip_prefix("unix:").and_then(|path| path.rsplit('/').next());
        let name = name.map(|file| file.trim_end_matches(".sock")).filter(|file| !file.is_empty());
        let base: String = name
            .unwrap_or(authority)
            .chars()
            .map(|char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '-' })
            .collect();
        let base = base.trim_matches('-');
        let is_free = |name: &String| self.made.iter().all(|made| made.name != *name);
        let mut names =
            (1..).map(|count| if count == 1 { base.to_owned() } else { format!("{base}-{count}") });
        names.find(is_free).unwrap_or_default()
    }

    /// The settings of connections to an upstream from this place.
    fn connecting(&mut self, chain: &Chain<'d>, family: &str, is_tls: bool) -> Vec<String> {
        let mut settings = Vec::new();
        for (theirs, ours) in [
            ("connect_timeout", "connect-time"),
            ("send_timeout", "send-time"),
            ("read_timeout", "read-time"),
        ] {
            if let Some(time) = chain
                .find(&format!("{family}_{theirs}"))
                .and_then(|directive| values::time(directive.word(0)))
            {
                settings.push(format!("{ours} \"{time}\""));
            }
        }
        let word = |name: &str| chain.word(&format!("{family}_{name}"));
        match (word("next_upstream"), word("next_upstream_tries").parse::<u32>()) {
            ("off", _) => settings.push("retries 0".to_owned()),
            (_, Ok(tries)) if tries > 0 => settings.push(format!("retries {}", tries - 1)),
            _ => {}
        }
        settings.extend(retry_on(chain.find(&format!("{family}_next_upstream"))));
        if let Some(time) =
            values::time(word("next_upstream_timeout")).filter(|_| word("next_upstream_timeout") != "0")
        {
            settings.push(format!("retry-time \"{time}\""));
        }
        if let Some(bind) = chain.find(&format!("{family}_bind")).filter(|bind| is_source(bind)) {
            self.fates.carried(bind);
            settings.push(format!("upstream-source {}", value(bind.word(0))));
        }
        if is_tls {
            // nginx verifies certificates only if configured.
            if word("ssl_verify") != "on" {
                settings.push("upstream-verify off".to_owned());
            }
            let is_plain = |text: &str| !text.is_empty() && !text.contains('$');
            // nginx ignores the port of a name.
            let name = match word("ssl_name").rsplit_once(':') {
                Some((name, port)) if port.parse::<u16>().is_ok() => name,
                _ => word("ssl_name"),
            };
            if is_plain(name) {
                settings.push(format!("upstream-name {}", value(name)));
            }
            let authorities = word("ssl_trusted_certificate");
            if is_plain(authorities) {
                chain.find(&format!("{family}_ssl_crl")).iter().for_each(|crl| self.fates.carried(crl));
                let crl = option("crl", word("ssl_crl"));
                settings.push(format!("upstream-ca {}{crl}", value(authorities)));
            }
            let (certificate, key) = (word("ssl_certificate"), word("ssl_certificate_key"));
            let is_file = |name: &str| is_plain(name) && !name.contains(':');
            if is_file(certificate) && is_file(key) {
                for name in ["ssl_certificate", "ssl_certificate_key", "ssl_password_file"] {
                    let directive = chain.find(&format!("{family}_{name}"));
                    directive.iter().for_each(|directive| self.fates.carried(directive));
                }
                let passwords = option("passwords", word("ssl_password_file"));
                let pair = format!("{} {}", value(certificate), value(key));
                settings.push(format!("upstream-certificate {pair}{passwords}"));
            }
        }
        settings
    }

    fn servers_of(&mut self, block: &'d Directive, is_tls: bool, lines: &mut Lines) {
        self.fates.carried(block);
        let mut failures = None;
        let mut has_limit = false;
        let is_first = |it: &Directive| {
            it.name == "server" && !it.texts().contains(&"backup") && !it.texts().contains(&"down")
        };
        let has_others = block.inner().iter().any(is_first);
        for directive in block.inner() {
            let word = directive.word(0);
            match directive.name.as_str() {
                "server" if directive.texts().contains(&"down") => {
                    self.fates.carried(directive);
                    lines.comment(&format!("{directive}"));
                    continue;
                }
                "server" => {
                    let service = directive.texts().iter().find_map(|it| it.strip_prefix("service="));
                    let at = match service {
                        Some(service) => service_of(service, word, is_tls),
                        None => address(word, is_tls),
                    };
                    let mut text = format!("server {}", value(&at));
                    let (mut fails, mut time) = (None, None);
                    for option in &directive.texts()[1..] {
                        match option.split_once('=').unwrap_or((option, "")) {
                            ("service", _) | ("resolve", "") => {}
                            ("weight" | "backup", _) if service.is_some() => {
                                lines.comment(&format!("SRV records decide, not `{option}` of {word}"));
                            }
                            ("weight", weight) => text.push_str(&format!(" weight={weight}")),
                            ("backup", "") if has_others => text.push_str(" backup=on"),
                            ("backup", "") => {}
                            ("max_conns", "0") => {}
                            ("max_conns", most) if service.is_none() && most.parse::<u32>().is_ok() => {
                                text.push_str(&format!(" max-requests={most}"));
                                has_limit = true;
                            }
                            ("max_fails", count) => fails = count.parse::<u32>().ok(),
                            ("fail_timeout", text) => time = values::time(text),
                            _ => lines.comment(&format!("not converted: `{option}` of {word}")),
                        }
                    }
                    if fails.is_some() || time.is_some() {
                        failures
                            .get_or_insert((fails.unwrap_or(1), time.unwrap_or_else(|| "10s".to_owned())));
                    }
                    // A server that is there twice gets twice the share.
                    lines.setting_again(text);
                }
                "keepalive" => lines.setting(format!("pool {word}")),
                "keepalive_timeout" => {
                    if let Some(time) = values::time(word) {
                        lines.setting(format!("pool-time \"{time}\""));
                    }
                }
                "queue" => {
                    lines.setting(format!("queue {word}"));
                    let time = directive.texts().into_iter().find_map(|text| text.strip_prefix("timeout="));
                    if let Some(time) = time.and_then(values::time) {
                        lines.setting(format!("queue-time \"{time}\""));
                    }
                }
                "resolver" if self.fates.is_known(directive) => continue,
                "keepalive_requests" | "keepalive_time" | "zone" | "resolver" | "resolver_timeout" => {
                    self.fates.needless(directive);
                    continue;
                }
                "least_conn" | "least_time" | "ip_hash" | "random" | "hash" | "sticky"
                    if lines.has("balance") =>
                {
                    self.leave(directive, "an upstream has one way to choose a server", lines);
                    continue;
                }
                "least_time" => lines.setting("balance least-time".to_owned()),
                "least_conn" => lines.setting("balance least-connections".to_owned()),
                "ip_hash" => lines.setting("balance hash key=client".to_owned()),
                "random" => lines.setting("balance two-choices".to_owned()),
                "hash" => match hash_key(word) {
                    Some(key) => lines.setting(format!("balance hash key={}", value(&key))),
                    None => {
                        self.leave(
                            directive,
                            "only the client, the path, a field, a cookie or a parameter of the query is hashed",
                            lines,
                        );
                        continue;
                    }
                },
                "sticky" if word == "cookie" => {
                    lines.setting(format!("balance sticky cookie={}", value(directive.word(1))));
                }
                _ => {
                    self.leave(directive, "there is no equivalent", lines);
                    continue;
                }
            }
            self.fates.carried(directive);
        }
        if has_limit && !lines.has("queue") {
            // nginx responds at once if all servers are at their limit.
            lines.setting("queue 0".to_owned());
        }
        let is_in_use = |it: &&Directive| it.name == "server" && !it.texts().contains(&"down");
        if failures.is_none() && block.inner().iter().filter(is_in_use).count() > 1 {
            // nginx's default.
            failures = Some((1, "10s".to_owned()));
        }
        if let Some((fails, time)) = failures {
            lines.setting(format!("failures {fails} window=\"{time}\" down-time=\"{time}\""));
        }
    }
}

/// A server's address in the site file's form.
fn address(text: &str, is_tls: bool) -> String {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match (text.starts_with("unix:"), is_tls, has_port) {
        (_, true, _) => format!("https://{text}"),
        (true, _, _) | (_, _, true) => text.to_owned(),
        _ => format!("http://{text}"),
    }
}

/// The servers of a service by SRV records.
fn service_of(service: &str, host: &str, is_tls: bool) -> String {
    let scheme = if is_tls { "srv+https" } else { "srv+http" };
    match service.contains('.') {
        true => format!("{scheme}://{service}.{host}"),
        false => format!("{scheme}://_{service}._tcp.{host}"),
    }
}

fn hash_key(text: &str) -> Option<String> {
    Some(match text {
        "$remote_addr" | "$binary_remote_addr" => "client".to_owned(),
        "$uri" => "path".to_owned(),
        "$request_uri" => "target".to_owned(),
        // A text of several variables has a second `$`.
        _ if text.matches('$').count() != 1 => return None,
        _ => match (text.strip_prefix("$http_"), text.strip_prefix("$cookie_")) {
            (Some(field), _) => format!("header {}", field.replace('_', "-")),
            (_, Some(cookie)) => format!("cookie {cookie}"),
            _ => format!("argument {}", text.strip_prefix("$arg_")?),
        },
    })
}

#[cfg(test)]
mod tests {
    use flatout_config::Source;

    use super::*;
    use crate::nginx::{FILE, parse};

    #[test]
    fn services_have_the_names_that_nginx_looks_up() {
        assert_eq!(service_of("http", "a.test", false), "srv+http://_http._tcp.a.test");
        assert_eq!(service_of("_http._tcp", "a.test", true), "srv+https://_http._tcp.a.test");
        assert_eq!(service_of("s1.b", "a.test", false), "srv+http://s1.b.a.test");
    }

    #[test]
    fn conditions_for_the_next_server_are_converted() {
        let convert = |text: &str| {
            let text = format!("proxy_next_upstream {text};").into_bytes();
            let source = Source::new("nginx.conf", text, &FILE).unwrap();
            let tree = parse(&source, "nginx.conf").unwrap();
            retry_on(tree.first())
        };
        assert_eq!(convert("error timeout"), None);
        assert_eq!(
            convert("http_503 error invalid_header non_idempotent http_429").as_deref(),
            Some("retry-on error invalid-response non-idempotent 429 503")
        );
        assert_eq!(convert("off"), None, "`retries 0` does it");
    }
}
