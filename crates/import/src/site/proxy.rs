//! `proxy_pass` and related fields.

use crate::nginx::Directive;

use super::cache::sliced;
use super::chain::{Chain, has_below};
use super::fastcgi::NO_POOL;
use super::lists::is_of_connection;
use super::location::Path;
use super::out::{Lines, line, option, text, value};
use super::target::Target;
use super::{Import, values};

/// Directives that are looked up when a proxied location is converted, without the name of their family.
const SEEN: [&str; 26] = [
    "buffer_size",
    "buffering",
    "connect_timeout",
    "hide_header",
    "index",
    "intercept_errors",
    "max_temp_file_size",
    "modifier1",
    "modifier2",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "param",
    "pass_header",
    "read_timeout",
    "request_buffering",
    "send_timeout",
    "set_header",
    "split_path_info",
    "ssl_name",
    "ssl_protocols",
    "ssl_server_name",
    "ssl_session_reuse",
    "ssl_trusted_certificate",
    "ssl_verify",
    "ssl_verify_depth",
];

/// The Host that a server gets whose name is in the request.
const NAMED_HOST: &str = "upstream";

/// The variable that is the upstream in `http:/$uri`.
pub(super) const UPSTREAM_OF_PATH: &str = "upstream_of_path";

/// Families of these directives.
const FAMILIES: [&str; 5] = ["proxy_", "grpc_", "fastcgi_", "uwsgi_", "scgi_"];

/// Others that are looked up from inner blocks.
const SEEN_OTHERS: [&str; 4] = ["auth_basic_user_file", "limit_conn_status", "limit_req_status", "slice"];

/// The Host that nginx sends for a server: without the usual port.
pub(super) fn host_field(authority: &str, is_tls: bool) -> &str {
    authority.strip_suffix(if is_tls { ":443" } else { ":80" }).unwrap_or(authority)
}

/// Values of `X-Forwarded-*` that are sent by default.
const FORWARDED: [(&str, &[&str]); 3] = [
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for", "$remote_addr"]),
    ("x-forwarded-proto", &["$scheme"]),
    ("x-forwarded-host", &["$http_host"]),
];

impl<'d> Import<'d> {
    /// Marks directives that are looked up from inner blocks.
    pub(super) fn seen(&mut self, block: &'d [Directive]) {
        for directive in block {
            let name = directive.name.as_str();
            let short = FAMILIES.iter().find_map(|family| name.strip_prefix(family)).unwrap_or_default();
            let is_seen = SEEN.contains(&short) || super::cache::SEEN.contains(&short);
            if (is_seen || SEEN_OTHERS.contains(&name)) && !self.fates.is_known(directive) {
                self.fates.carried(directive);
            }
        }
    }

    /// Writes `proxy` and related settings. Without `path` this is a named location.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn proxy(
        &mut self,
        pass: &'d Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) -> Result<(), String> {
        let is_grpc = pass.name == "grpc_pass";
        let (scheme, rest) = match pass.word(0).split_once("://") {
            Some(parts) => parts,
            // The scheme is in the variable too.
            None if is_grpc && pass.word(0).starts_with("$arg_") => ("", pass.word(0)),
            None if is_grpc => ("grpc", pass.word(0)),
            // The first segment of the path names the upstream.
            None if pass.word(0) == "http:/$uri" => {
                self.is_named_by_path = true;
                if !self.maps.iter().any(|map| map == UPSTREAM_OF_PATH) {
                    self.maps.push(UPSTREAM_OF_PATH.to_owned());
                }
                ("http", "$upstream_of_path")
            }
            None => return Err("it has no scheme".to_owned()),
        };
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            "grpc" | "" if is_grpc => false,
            "grpcs" if is_grpc => true,
            _ => return Err(format!("{scheme} is not supported")),
        };
        let family = if is_grpc { "grpc" } else { "proxy" };
        let (authority, given) = self.target(rest, chain, path)?;
        if authority.contains('$') {
            if let Target::Made(rewrite) = &given {
                lines.setting(rewrite.clone());
            }
            let protocol = if is_grpc { grpc_protocol(is_tls) } else { Vec::new() };
            let has_others =
                self.named_upstream((scheme, authority), is_tls, family, protocol, chain, lines)?;
            self.request_fields(chain, family, if has_others { NAMED_HOST } else { "" }, lines);
            if is_grpc {
                lines.setting("buffer-requests off".to_owned());
            } else {
                self.transfer(chain, family, lines);
            }
            return Ok(());
        }
        let uri = match &given {
            Target::Path(uri) => Some(uri.as_str()),
            Target::Same | Target::Made(_) => None,
        };
        if let Target::Made(rewrite) = &given {
            lines.setting(rewrite.clone());
        }
        if let Some(uri) = uri {
            match path.and_then(Path::prefix) {
                Some(prefix) if prefix == uri => {}
                Some(prefix) => lines.setting(format!("rewrite-prefix {} {}", value(prefix), value(uri))),
                None => match path.and_then(Path::exact) {
                    Some(exact) if exact == uri => {}
                    Some(exact) => lines.setting(format!("rewrite-prefix {} {}", value(exact), value(uri))),
                    None => {
                        return Err("an upstream with a path needs a location with a plain path".to_owned());
                    }
                },
            }
        }
        let upstream = self.upstream(authority, is_tls, family, chain, lines);
        let Some(upstream) = upstream else {
            // nginx has nobody to ask either.
            lines.setting("respond 502".to_owned());
            return Ok(());
        };
        lines.setting(line("proxy", &upstream));
        self.mirror(chain, lines);
        if is_grpc {
            self.request_fields(chain, family, authority, lines);
            // nginx never buffers bodies for gRPC.
            lines.setting("buffer-requests off".to_owned());
            return Ok(());
        }
        let is_socket = authority.starts_with("unix:");
        let host = if is_socket { "localhost" } else { host_field(authority, is_tls) };
        // Without a fixed URL, nginx changes no redirects by default.
        let has_own_host = self.request_fields(chain, family, host, lines) && !pass.word(0).contains('$');
        self.changes_back((scheme, authority, uri), has_own_host, chain, path, lines);
        self.transfer(chain, family, lines);
        Ok(())
    }

    /// Caching, buffering, and fields of responses that are not passed on.
    pub(super) fn transfer(&mut self, chain: &Chain<'d>, family: &str, lines: &mut Lines) {
        let word = |name: &str| chain.word(&format!("{family}_{name}"));
        self.cache(chain, family, lines);
        if follows_accel(chain, family) {
            lines.setting("x-accel on".to_owned());
        }
        match word("request_buffering") {
            "off" => lines.setting("buffer-requests off".to_owned()),
            // It is on in nginx unless it is switched off: once, at the top.
            _ => self.buffers_requests = true,
        }
        // Without files, nginx keeps a few pages; more than that is between the sockets here.
        match (word("buffering"), word("max_temp_file_size")) {
            ("off", _) | (_, "0") => lines.setting("buffer-response off".to_owned()),
            (_, "" | "1024m" | "1g") => {}
            (_, given) => {
                if let Some(size) = values::size(given) {
                    lines.setting(format!("buffer-response \"{size}\""));
                }
            }
        }
        // What is read from the upstream is what its client gets.
        let rate = chain.find(&format!("{family}_limit_rate")).filter(|_| chain.find("limit_rate").is_none());
        if let Some((rate, size)) = rate.and_then(|rate| Some((rate, values::size(rate.word(0))?))) {
            self.fates.carried(rate);
            if size != "0" {
                lines.setting(format!("limit-rate {}", value(&size)));
            }
        }
        // Those of the upstream go before others are added, and `expires` replaces them.
        let has_expires = !["", "off"].contains(&chain.word("expires"));
        for directive in chain.list(&[&format!("{family}_hide_header")]) {
            let name = directive.word(0);
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            if has_expires && (is("cache-control") || is("expires")) {
                continue;
            }
            // Those of the connection to the upstream are not passed on.
            if is_of_connection(name) {
                continue;
            }
            let remove = format!("response-header remove {}", value(name));
            let adds = |it: &&Directive| it.name == "add_header" && is(it.word(0));
            let added: Vec<&Directive> = chain.list(&["add_header"]).into_iter().filter(adds).collect();
            let in_if = chain.own().iter().any(|it| it.name == "if" && it.inner().iter().any(|it| adds(&it)));
            match added.is_empty() && !in_if {
                true => lines.setting(remove),
                false => lines.setting_first(remove),
            }
            // What a site adds is there before the rules of its routes.
            for text in added.into_iter().filter_map(|added| self.header(added).ok().flatten()) {
                lines.setting(text);
            }
        }
    }

    /// Writes `proxy` for an upstream or a server that variables name, and returns whether it may be a server. Without a `resolver`, nginx
    /// looks up no names.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn named_upstream(
        &mut self,
        (scheme, named): (&str, &str),
        is_tls: bool,
        family: &str,
        protocol: Vec<String>,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<bool, String> {
        if let Some(why) = self.unsupported(named) {
            return Err(why);
        }
        // A port would make the name of an upstream an address.
        let has_port = named.contains(':');
        let names: Vec<&'d str> = self.upstreams.iter().map(|upstream| upstream.word(0)).collect();
        // Upstreams that are made of addresses and sockets have names that nginx does not know.
        let mut among = Vec::new();
        for name in names.iter().filter(|_| !has_port) {
            let made = self.upstream_with(name, is_tls, family, protocol.clone(), chain, lines);
            if made.as_ref().is_some_and(|made| made != name) {
                return Err("upstreams that a variable names have the same settings in all places".to_owned());
            }
            among.extend(made);
        }
        let url = match scheme {
            "" => named.to_owned(),
            _ => format!("{}://{named}", if is_tls { "https" } else { "http" }),
        };
        // A table of the file names upstreams only, where no names are looked up.
        let variable = named.strip_prefix('$');
        let is_table = variable.is_some_and(|name| self.maps.iter().any(|map| map == name));
        let looks_up = chain.find("resolver").is_some_and(|it| it.word(0) != "off");
        let is_upstream = variable == Some(UPSTREAM_OF_PATH) || is_table && !looks_up && !names.is_empty();
        if is_upstream && names.is_empty() {
            return Err("a variable in it can only be the name of an upstream".to_owned());
        }
        // Without names, it could be any upstream.
        if is_upstream && among.is_empty() {
            return Err("none of the upstreams that a variable in it may name has a server".to_owned());
        }
        let among = option("among", &among.join(" "));
        let others = match is_upstream {
            true => String::new(),
            false => option("others", &self.others(is_tls, family, protocol, chain)?),
        };
        lines.setting(format!("proxy {}{among}{others}", text(&url)));
        Ok(!is_upstream)
    }

    /// Writes the fields of requests, and returns whether the upstream gets its own name as Host.
    fn request_fields(&mut self, chain: &Chain<'d>, family: &str, host: &str, lines: &mut Lines) -> bool {
        let mut proxy_host = (!host.is_empty()).then(|| host.to_owned());
        let mut forwarded: Vec<(&str, &str)> = Vec::new();
        for directive in chain.list(&[&format!("{family}_set_header")]) {
            self.fates.carried(directive);
            let (name, given) = (directive.word(0), directive.word(1));
            let lower = name.to_ascii_lowercase();
            let standard = FORWARDED.iter().any(|(field, known)| *field == lower && known.contains(&given));
            match lower.as_str() {
                "host" => {
                    proxy_host = match given {
                        "$http_host" => None,
                        "$proxy_host" => proxy_host,
                        other => match self.unsupported(other) {
                            Some(why) => {
                                self.leave(directive, &why, lines);
                                None
                            }
                            None => Some(other.to_owned()),
                        },
                    };
                }
                // nginx forwards all protocols; here WebSockets without further ado.
                "upgrade" if given == "$http_upgrade" => lines.setting("upgrade any".to_owned()),
                // Connections to upstreams are kept by default, and upgrades become tunnels.
                "connection" | "upgrade" | "te" | "keep-alive" => {}
                // It is sent for requests in early data, and for no others.
                "early-data" if given == "$ssl_early_data" => {}
                // The server frames bodies itself.
                "content-length" | "transfer-encoding" | "trailer" | "proxy-connection" => {
                    if !given.is_empty() {
                        self.leave(directive, "fields of the connection cannot be set", lines);
                    }
                }
                // The cache asks for the ranges of its slices.
                "range" if given == "$slice_range" && sliced(chain).is_some() => {}
                _ if standard => forwarded.push((name, given)),
                _ if given.is_empty() => lines.setting(format!("request-header remove {}", value(name))),
                _ => match self.unsupported(given) {
                    Some(why) => self.leave(directive, &why, lines),
                    None => lines.setting(format!("request-header set {} {}", value(name), text(given))),
                },
            }
        }
        if family == "proxy" {
            self.replaced_parts(chain, lines);
        }
        let has_own_host = proxy_host.as_deref() == Some(host);
        if let Some(host) = proxy_host {
            lines.setting(line("proxy-host", &host));
        }
        // An application that was not told of HTTPS, or of the client's Host beside its own, may make other URLs once it is.
        let has = |field: &str| forwarded.iter().any(|(name, _)| name.eq_ignore_ascii_case(field));
        if !FORWARDED.iter().all(|(field, _)| has(field)) {
            lines.setting("x-forwarded off".to_owned());
            for (name, given) in forwarded {
                lines.setting(format!("request-header set {} {}", value(name), text(given)));
            }
        }
        has_own_host
    }
}

impl<'d> Import<'d> {
    /// Writes what the upstream gets in place of the client's method, fields and body.
    fn replaced_parts(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        if let Some(method) = chain.find("proxy_method") {
            self.fates.carried(method);
            lines.setting(format!("proxy-method {}", text(method.word(0))));
        }
        match (chain.find("proxy_set_body"), chain.find("proxy_pass_request_body")) {
            (Some(body), _) => {
                self.fates.carried(body);
                lines.setting(format!("proxy-body {}", text(body.word(0))));
            }
            (None, Some(pass)) if pass.word(0) == "off" => {
                self.fates.carried(pass);
                lines.setting("proxy-body \"\"".to_owned());
            }
            _ => {}
        }
        if let Some(pass) = chain.find("proxy_pass_request_headers").filter(|pass| pass.word(0) == "off") {
            self.fates.carried(pass);
            lines.setting("forward-headers off".to_owned());
        }
    }

    /// Why the upstream would get another request than from nginx, and because of which directive.
    pub(super) fn lost_part(&self, chain: &Chain<'d>) -> Option<(&'d Directive, String)> {
        let why = |directive: &'d Directive| match (directive.name.as_str(), directive.word(0)) {
            ("proxy_method", given) if given.eq_ignore_ascii_case("head") || given == "CONNECT" => {
                Some("a request cannot become this one".to_owned())
            }
            // This word has another meaning here.
            (_, "kept") => Some("this text is not possible".to_owned()),
            (_, given) => self.unsupported(given),
        };
        let mut found = ["proxy_method", "proxy_set_body"].iter().filter_map(|name| chain.find(name));
        found.find_map(|directive| Some((directive, why(directive)?)))
    }
}

/// The settings of a gRPC server that requests name.
fn grpc_protocol(is_tls: bool) -> Vec<String> {
    vec![format!("protocol {}", if is_tls { "h2" } else { "h2c" }), NO_POOL.to_owned()]
}

/// Whether the upstream's `X-Accel` fields have an effect. nginx follows them unless `proxy_ignore_headers` lists them.
fn follows_accel(chain: &Chain<'_>, family: &str) -> bool {
    let ignored = chain.list(&[&format!("{family}_ignore_headers")]);
    let ignores = |name: &str| {
        ignored.iter().flat_map(|directive| directive.texts()).any(|text| text.eq_ignore_ascii_case(name))
    };
    let is_cached = !["", "off"].contains(&chain.word(&format!("{family}_cache")));
    let is_redirected = has_below(chain.server(), &["internal"]) && !ignores("x-accel-redirect");
    is_redirected || (is_cached && !ignores("x-accel-expires"))
}

/// The authority after `http://`, and the path, if any.
pub(super) fn split(rest: &str) -> (&str, Option<&str>) {
    if let Some(path) = rest.strip_prefix("unix:") {
        return match path.split_once(':') {
            Some((socket, uri)) => {
                (&rest[.."unix:".len() + socket.len()], Some(uri).filter(|uri| !uri.is_empty()))
            }
            None => (rest, None),
        };
    }
    match rest.find('/') {
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    }
}
