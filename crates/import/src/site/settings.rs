//! Directives with one equivalent and one value: they keep their place.

use crate::nginx::Directive;

use super::chain::{Chain, has_below};
use super::file_tests::pieces;
use super::out::{Lines, line, text, value};
use super::{Import, expires, values};

/// The most names of `index` here.
const INDEX_NAMES_MAX: usize = 16;

/// Bytes of a body that clients of HTTP/2 send before they are taken, here and in nginx, and the most that is possible here.
const WINDOW_BYTES: u64 = 64 << 10;
const WINDOW_BYTES_MAX: u64 = 16 << 20;

/// The longest line of a head in nginx, unless a server has another limit.
const HEAD_LINE_BYTES: u64 = 8 << 10;

/// The largest head that is possible here.
const HEAD_BYTES_MAX: u64 = 48 << 10;

/// nginx's variable for the rate of a response, and the one that has the rate of `limit_rate` if that is empty.
const RATE: &str = "limit_rate";
const RATE_HERE: &str = "limit_rate_here";

/// The largest file in which texts are replaced.
const REPLACED_FILE: &str = "1MiB";

impl<'d> Import<'d> {
    /// Writes the settings of a block, with those of the locations around it.
    pub(super) fn settings(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let mut inner: Vec<&str> = Vec::new();
        for level in chain.of_route() {
            let applies = |directive: &&'d Directive| !inner.contains(&family(&directive.name));
            for directive in level.iter().filter(applies) {
                self.plain_setting(directive, level, chain, lines);
            }
            inner.extend(level.iter().map(|directive| family(&directive.name)));
        }
        self.compression(chain, lines);
        if chain.find_in_route("sub_filter").is_some() && !lines.has("compress") {
            // Texts are replaced in what is not compressed yet.
            lines.setting("compress off".to_owned());
            // And in files that are in memory.
            lines.setting(format!("small-bytes \"{REPLACED_FILE}\""));
        }
        self.access(chain, lines);
        self.limit_except(chain, lines);
        self.more_headers(chain, lines);
        self.ifs_and_sets(chain, lines);
        self.rate_of_set(chain, lines);
    }

    fn plain_setting(
        &mut self,
        directive: &'d Directive,
        level: &[Directive],
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) {
        if directive.name == "index" && self.folder_path(chain).is_some() {
            // Written with what serves the files.
            return self.fates.carried(directive);
        }
        if directive.name == "index"
            && let Some(names) = self.names_beside_script(directive, chain)
        {
            self.fates.carried(directive);
            return lines.setting(index_line(&names));
        }
        if directive.name == "expires" && directive.texts().iter().any(|text| text.contains('$')) {
            return self.expires_of_variable(directive, lines);
        }
        if ["limit_rate", "limit_rate_after"].contains(&directive.name.as_str()) {
            if self.sets_rate() && directive.name == "limit_rate" && chain.levels().len() > 2 {
                // Written with the variable that replaces it.
                return self.fates.carried(directive);
            }
            if directive.word(0).contains('$') {
                return self.rate_of_variable(directive, lines);
            }
        }
        match plain(directive, level, chain) {
            None => {}
            Some(Ok(text)) => {
                self.fates.carried(directive);
                if !text.is_empty() {
                    lines.setting(text);
                }
                if directive.name == "index" && index_names(directive).len() < directive.texts().len() {
                    lines.comment(&format!("these index files in place of {directive}"));
                }
            }
            Some(Err(why)) => self.leave(directive, why, lines),
        }
    }

    /// Whether some `set $limit_rate` replaces the rates of its requests.
    fn sets_rate(&self) -> bool {
        self.set_names.iter().any(|name| name == RATE)
    }

    /// A rate that a request has.
    fn rate_of_variable(&mut self, directive: &'d Directive, lines: &mut Lines) {
        let word = directive.word(0);
        match values::unknown_variable(word, &self.maps) {
            Some(unknown) => self.leave(directive, &values::unsupported(unknown), lines),
            None => {
                self.fates.carried(directive);
                lines.setting(format!("{} {}", directive.name.replace('_', "-"), text(word)));
            }
        }
    }

    /// The rate of a server or a location whose requests may get another one by `set $limit_rate`.
    fn rate_of_set(&self, chain: &Chain<'d>, lines: &mut Lines) {
        let is_set = |it: &Directive| it.name == "set" && it.word(0).trim_start_matches('$') == RATE;
        let sets = |it: &Directive| is_set(it) || it.name == "if" && it.inner().iter().any(is_set);
        let has_own = chain.own().iter().any(sets) || chain.find_in_route("limit_rate").is_some();
        if chain.levels().len() < 3 || !has_own || !self.sets_rate() {
            return;
        }
        let usual = chain.word("limit_rate");
        let usual = pieces(usual).filter(|_| values::unknown_variable(usual, &self.maps).is_none());
        let Some(usual) = usual.filter(|pieces| !pieces.is_empty()) else {
            return lines.setting(format!("limit-rate \"${RATE}\""));
        };
        let expression = format!("${RATE} == '' ? {} : ${RATE}", usual.join(" + "));
        lines.setting(format!("set {} expr={}", value(RATE_HERE), text(&expression)));
        lines.setting(format!("limit-rate \"${RATE_HERE}\""));
    }

    /// The names of index files beside a script, to which requests for folders go before. `None` if there are no others.
    pub(super) fn names_beside_script(
        &self,
        index: &'d Directive,
        chain: &Chain<'d>,
    ) -> Option<Vec<&'d str>> {
        let (script, _) = self.script_index(chain)?;
        let texts = index.texts();
        let (last, before) = texts.split_last()?;
        let names = if last.starts_with('/') { before } else { &texts[..] };
        let names: Vec<&str> = names.iter().copied().filter(|name| *name != script).collect();
        let is_page = |name: &&str| name.ends_with(".html") || name.ends_with(".htm");
        let is_plain = !names.is_empty() && names.len() <= INDEX_NAMES_MAX;
        (is_plain && names.iter().all(is_page)).then_some(names)
    }

    /// `allow` and `deny`, in order: those of the innermost block that has any.
    fn access(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let is_rule = |directive: &&'d Directive| ["allow", "deny"].contains(&directive.name.as_str());
        let mut levels = chain.of_route().iter();
        let rules = levels.find(|level| level.iter().any(|directive| is_rule(&directive)));
        for directive in rules.into_iter().flat_map(|level| level.iter()).filter(is_rule) {
            let peer = directive.word(0);
            lines.setting(line(&directive.name, peer.trim_end_matches(':')));
            self.fates.carried(directive);
        }
    }

    /// Settings of the process: at the top, or in the only server.
    pub(super) fn process(&mut self, chain: &Chain<'d>, top: &mut Lines) {
        self.processed(chain, |_| true, top);
    }

    /// Whose information about clients is trusted, in one of several servers.
    pub(super) fn real_ip(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        self.processed(chain, |name| ["set_real_ip_from", "real_ip_header"].contains(&name), lines);
    }

    /// The largest heads of any server: here all have the same.
    pub(super) fn largest_heads(&mut self, servers: &[&'d Directive], http: &Chain<'d>, top: &mut Lines) {
        let of = |server: &&'d Directive| {
            let own = server.inner().iter().find(|it| it.name == "large_client_header_buffers")?;
            Some((own, values::bytes(own.word(1))?))
        };
        let own: Vec<(&'d Directive, u64)> = servers.iter().filter_map(of).collect();
        let Some((largest, bytes)) = own.iter().max_by_key(|(_, bytes)| *bytes) else { return };
        if http.find("large_client_header_buffers").is_some() || *bytes <= HEAD_LINE_BYTES {
            return;
        }
        if let Some(Some(text)) = of_process(largest) {
            self.fates.carried(largest);
            top.setting(text);
        }
    }

    /// The largest window for bodies of any server, of several ones: here all have the same.
    pub(super) fn largest_windows(&mut self, servers: &[&'d Directive], http: &Chain<'d>, top: &mut Lines) {
        const NAME: &str = "http2_body_preread_size";
        let of = |server: &&'d Directive| {
            let own = server.inner().iter().find(|it| it.name == NAME)?;
            Some((own, values::bytes(own.word(0))?))
        };
        let own: Vec<(&'d Directive, u64)> = servers.iter().filter_map(of).collect();
        let Some((largest, _)) = own.iter().max_by_key(|(_, bytes)| *bytes) else { return };
        let of_http =
            http.find(NAME).and_then(|of_http| values::bytes(of_http.word(0))).unwrap_or(WINDOW_BYTES);
        // Without a window of its own, a smaller one would be a limit.
        own.iter().filter(|(_, bytes)| *bytes >= of_http).for_each(|(own, _)| self.fates.carried(own));
        if http.find(NAME).is_none()
            && let Some(Some(text)) =
                of_process(largest).filter(|text| text.as_ref().is_some_and(|it| !it.is_empty()))
        {
            top.setting(text);
        }
    }

    /// A whole nginx.conf, which has a block of `events`, without a number of processes: nginx has one.
    pub(super) fn one_worker(&mut self, main: &[Directive], top: &mut Lines) {
        let has = |name: &str| main.iter().any(|directive| directive.name == name);
        if has("events") && !has("worker_processes") {
            top.setting("workers 1".to_owned());
        }
    }

    fn processed(&mut self, chain: &Chain<'d>, is_wanted: impl Fn(&str) -> bool, top: &mut Lines) {
        let is_own = |name: &str| chain.own().iter().any(|directive| directive.name == name);
        if is_own("set_real_ip_from") && chain.find("real_ip_header").is_none() {
            // nginx's default.
            top.setting("client-address \"X-Real-IP\"".to_owned());
        }
        for directive in chain.own().iter().filter(|directive| is_wanted(&directive.name)) {
            let Some(text) = of_process(directive) else { continue };
            match text {
                Some(text) => {
                    self.fates.carried(directive);
                    if !text.is_empty() {
                        top.setting(text);
                    }
                }
                None => self.leave(directive, "its value is not understood", top),
            }
        }
    }
}

/// The name under which inner directives replace outer ones: a password and its file become one setting.
fn family(name: &str) -> &str {
    if name == "auth_basic_user_file" { "auth_basic" } else { name }
}

/// The converted setting, or why it cannot be converted; `None` for other directives. `level` is the directive's block.
fn plain(
    directive: &Directive,
    level: &[Directive],
    chain: &Chain<'_>,
) -> Option<Result<String, &'static str>> {
    let word = directive.word(0);
    Some(Ok(match directive.name.as_str() {
        "client_max_body_size" => match values::size(word) {
            Some(size) if size == "0" => "body-bytes \"1024TiB\"".to_owned(),
            Some(size) => format!("body-bytes \"{size}\""),
            None => return Some(Err("its value is not understood")),
        },
        "index" => match &index_names(directive)[..] {
            [] => {
                return Some(Err("a path or a variable is supported alone, in a location that serves files"));
            }
            names => index_line(names),
        },
        "autoindex" if word != "on" => line("listing", word),
        "autoindex" => listing(chain),
        // Inherited in another format.
        "autoindex_format" if level.iter().any(|own| own.name == "autoindex") => String::new(),
        "autoindex_format" if chain.is_on("autoindex") => listing(chain),
        "autoindex_format" => String::new(),
        "max_ranges" => match word.parse::<u32>() {
            Ok(count) => format!("ranges {count}"),
            Err(_) => return Some(Err("its value is not understood")),
        },
        "expires" => return Some(expires::setting(directive)),
        "limit_rate" if word == "0" => "limit-rate off".to_owned(),
        "limit_rate" | "limit_rate_after" => match values::size(word) {
            Some(size) => format!("{} {}", directive.name.replace('_', "-"), value(&size)),
            None => return Some(Err("its value is not understood")),
        },
        "charset" if word.contains('$') => return Some(Err("variables are not supported in it")),
        "charset" if is_recoded(word, chain) => {
            return Some(Err("texts are not converted from one charset to another"));
        }
        "charset" if word.eq_ignore_ascii_case("utf-8") => "charset utf-8".to_owned(),
        "charset" => line("charset", word),
        "charset_types" => {
            format!("charset-types {}", types_with_pages(directive))
        }
        "satisfy" => line("satisfy", word),
        "underscores_in_headers" if word == "on" => "underscore-headers on".to_owned(),
        "sub_filter_once" => String::new(),
        "sub_filter_types" => {
            format!("replace-types {}", types_with_pages(directive))
        }
        "auth_basic" if word == "off" => "basic-auth off".to_owned(),
        "auth_basic_user_file" if word.contains('$') => {
            return Some(Err("variables are not supported in its name"));
        }
        "auth_basic" => match chain.find("auth_basic_user_file").filter(|file| !file.word(0).contains('$')) {
            Some(file) => format!("basic-auth {} file={}", value(word), value(file.word(0))),
            None => return Some(Err("there is no auth_basic_user_file")),
        },
        "auth_basic_user_file" if level.iter().any(|own| own.name == "auth_basic") => String::new(),
        // Inherited with another file, or without any until here.
        "auth_basic_user_file" => match chain.word("auth_basic") {
            "" | "off" => return None,
            realm => format!("basic-auth {} file={}", value(realm), value(word)),
        },
        _ => return None,
    }))
}

/// The setting for these index files.
pub(super) fn index_line(names: &[&str]) -> String {
    format!("index {}", names.iter().map(|name| value(name)).collect::<Vec<_>>().join(" "))
}

/// The names of index files, up to a path or a name with variables. A script is the last one: it is hidden, so a name behind it would be
/// served in its place.
pub(super) fn index_names(directive: &Directive) -> Vec<&str> {
    let names = directive.texts();
    let plain = names.iter().take_while(|name| !name.contains(['$', '/'])).count().min(INDEX_NAMES_MAX);
    let is_page = |name: &&str| name.ends_with(".html") || name.ends_with(".htm");
    let last = names.iter().take_while(|name| is_page(name)).count() + 1;
    names[..plain.min(last)].to_vec()
}

/// The content types of a directive. Pages always are among them.
fn types_with_pages(directive: &Directive) -> String {
    let mut types: Vec<&str> = vec!["text/html"];
    for given in directive.texts() {
        let kind = if given == "*" { "*/*" } else { given };
        if !types.contains(&kind) {
            types.push(kind);
        }
    }
    types.into_iter().map(super::out::text).collect::<Vec<_>>().join(" ")
}

/// Whether nginx converts texts to this charset.
fn is_recoded(charset: &str, chain: &Chain<'_>) -> bool {
    let source = chain.word("source_charset");
    let converts = chain.levels().iter().any(|level| level.iter().any(|it| it.name == "charset_map"));
    converts && !["", "off", charset].contains(&source)
}

/// Whether requests of this block, or of one inside it, go to another server.
pub(super) fn passes(chain: &Chain<'_>) -> bool {
    const PASSES: [&str; 6] =
        ["proxy_pass", "fastcgi_pass", "grpc_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"];
    chain.own().iter().any(|it| PASSES.contains(&it.name.as_str())) || has_below(chain.own(), &PASSES)
}

/// The setting for `autoindex` in its format. Pages have a form of their own, and JSONP is not supported.
fn listing(chain: &Chain<'_>) -> String {
    match chain.word("autoindex_format") {
        "json" | "jsonp" => "listing json".to_owned(),
        "xml" => "listing xml".to_owned(),
        _ => "listing on".to_owned(),
    }
}

/// A setting of the process; `Some(None)` if its value cannot be converted.
pub(super) fn of_process(directive: &Directive) -> Option<Option<String>> {
    let word = directive.word(0);
    let timed = |name: &str| values::time(word).map(|time| format!("{name} \"{time}\""));
    Some(match directive.name.as_str() {
        "user" => Some(line("user", word)),
        "worker_processes" if word == "auto" => Some(String::new()),
        "worker_processes" => word.parse().ok().map(|count: u32| format!("workers {count}")),
        "worker_shutdown_timeout" => timed("drain-time"),
        "keepalive_timeout" => timed("idle-time"),
        "max_headers" => word.parse().ok().map(|count: u16| format!("headers {count}")),

        "keepalive_requests" => {
            word.parse().ok().map(|count: u32| format!("requests-per-connection {count}"))
        }
        "http2_max_concurrent_streams" => word.parse().ok().map(|count: u32| format!("streams {count}")),
        "http2_body_preread_size" => values::bytes(word).map(|bytes| match bytes > WINDOW_BYTES {
            true => format!("stream-window {}", bytes.min(WINDOW_BYTES_MAX)),
            false => String::new(),
        }),
        "client_header_timeout" => timed("head-time"),
        "tcp_nodelay" => Some(if word == "off" { "nodelay off".to_owned() } else { String::new() }),
        "large_client_header_buffers" => values::bytes(directive.word(1)).and_then(|each| {
            let count: u64 = word.parse().ok()?;
            let head = each.saturating_mul(count).clamp(1024, HEAD_BYTES_MAX);
            Some(format!("head-bytes {head}; uri-bytes {}", each.min(head)))
        }),
        "set_real_ip_from" => Some(line("trusted-proxies", word.trim_end_matches(':'))),
        "real_ip_header" => Some(match word.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => "client-address x-forwarded-for".to_owned(),
            "proxy_protocol" => "client-address proxy-protocol".to_owned(),
            _ => line("client-address", word),
        }),
        _ => return None,
    })
}
