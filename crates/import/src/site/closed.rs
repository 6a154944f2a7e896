//! What must not be served, because nginx handled or restricted it in a way that is not converted.
//!
//! A directive that is left out must not open anything: where nginx would have passed a request to a handler that is not
//! supported, or would have checked it first, the site file has `respond 501`.

use crate::nginx::Directive;

use super::application;
use super::chain::{Chain, has_below};
use super::location::{self, Path};
use super::pattern;
use super::{Import, hidden, table, values};

/// The response in place of what nginx would have sent.
pub(super) const NOT_CONVERTED: &str = "respond 501 \"not converted\"";

/// Directives that handle the requests of their block, and do nothing for inner ones. A `*` stands for any text.
const HANDLERS: [&str; 23] = [
    "*_pass",
    "content_by_*",
    "perl",
    "js_content",
    "echo*",
    "empty_gif",
    "random_index",
    "api",
    "status",
    "upstream_conf",
    "dyups_interface",
    "nchan_*",
    "push_stream_*",
    "rtmp_*",
    "vhost_traffic_status_display",
    "mruby_content_handler*",
    "hls",
    "f4f",
    "vod",
    "zip",
    "gridfs",
    "wsgi*",
    "unit_*",
];

/// Those of them that are converted.
pub(super) const PASSES: [&str; 5] = ["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"];

/// Directives that make the response out of a file, whose text would be shown instead. Inner blocks inherit them.
const MAKERS: [&str; 4] = ["ssi", "xslt_stylesheet", "image_filter", "passenger_enabled"];

/// Directives that refuse requests. Inner blocks inherit them.
const GUARDS: [&str; 15] = [
    "auth_*",
    "access_by_*",
    "rewrite_by_*",
    "server_rewrite_by_*",
    "header_filter_by_*",
    "body_filter_by_*",
    "js_access",
    "modsecurity*",
    "naxsi*",
    "SecRulesEnabled",
    "app_protect*",
    "testcookie*",
    "mruby_*_handler*",
    "waf*",
    "ssl_ocsp",
];

/// These are converted, or change nothing alone.
const CONVERTED_GUARDS: [&str; 5] =
    ["auth_basic", "auth_basic_user_file", "auth_request", "auth_request_set", "auth_delay"];

/// Directives that decide which parts of a request an upstream gets.
pub(super) const OF_UPSTREAM_REQUESTS: [&str; 4] =
    ["proxy_method", "proxy_pass_request_body", "proxy_pass_request_headers", "proxy_set_body"];

/// Variables about the URL, the server and the browser. A redirect that depends on nothing else leads to another
/// spelling of the same page.
const OF_URL: [&str; 13] = [
    "scheme",
    "https",
    "host",
    "http_host",
    "server_name",
    "server_port",
    "uri",
    "request_uri",
    "args",
    "query_string",
    "http_x_forwarded_proto",
    "http_user_agent",
    "request_filename",
];

/// Directives without which a nested location serves the same files.
pub(super) const COSMETIC: [&str; 14] = [
    "expires",
    "limit_rate",
    "limit_rate_after",
    "add_header",
    "access_log",
    "log_not_found",
    "error_log",
    "etag",
    "gzip",
    "gzip_static",
    "open_file_cache",
    "sendfile",
    "tcp_nodelay",
    "default_type",
];

/// Whether a name matches one of these patterns.
fn is_one(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| hidden::matches(pattern, name))
}

fn is_off(directive: &Directive) -> bool {
    directive.words.len() == 1 && directive.word(0) == "off"
}

/// A reason, with the directive that it is about.
fn because(directive: &Directive, why: &str) -> String {
    let place = format!("{}:{}", directive.file, directive.line);
    format!("{directive} ({place}): {why}").replace("; (", " (")
}

impl<'d> Import<'d> {
    /// Writes `respond 501` for the current place, and adds it to the summary.
    pub(super) fn close(&mut self, why: &str, lines: &mut super::out::Lines) {
        lines.setting(NOT_CONVERTED.to_owned());
        let text = format!("{}: {why}", self.place);
        if !self.closed.contains(&text) {
            self.closed.push(text);
        }
    }

    /// Why nothing of this block may be served; `None` if everything that handles or restricts its requests is
    /// converted.
    pub(super) fn closed_by(&self, chain: &Chain<'d>) -> Option<String> {
        let own = chain.own();
        let why = |directive: &Directive| table::why(directive).unwrap_or("there is no equivalent");
        if let Some(pass) = own.iter().find(|directive| directive.name == "fastcgi_pass")
            && let Err(why) = self.fastcgi_lost(pass, chain)
        {
            return Some(because(pass, &why));
        }
        if let Some(pass) =
            own.iter().find(|directive| application::PASSES.contains(&directive.name.as_str()))
            && let Err(why) = self.application_lost(pass, chain)
        {
            return Some(because(pass, &why));
        }
        let is_handler = |it: &&Directive| {
            !PASSES.contains(&it.name.as_str()) && is_one(&it.name, &HANDLERS) && !is_off(it)
        };
        if let Some(handler) = own.iter().find(is_handler) {
            return Some(because(handler, why(handler)));
        }
        let is_proxied = own.iter().any(|directive| directive.name == "proxy_pass");
        if let Some((directive, why)) = is_proxied.then(|| self.lost_part(chain)).flatten() {
            return Some(because(directive, &why));
        }
        let depth = chain.find("ssl_verify_depth").filter(|depth| depth.word(0) == "0");
        if let Some(depth) = depth.filter(|_| !["", "off"].contains(&chain.word("ssl_verify_client"))) {
            return Some(because(depth, "certificates of all depths are accepted here"));
        }
        for limit in own.iter().filter(|directive| directive.name == "limit_except") {
            if let Err(why) = super::limit_except::rules(limit) {
                return Some(because(limit, why));
            }
        }
        if let Some(real_ip) = self.real_ip_of_location(chain) {
            let why = "access depends on the client address that it sets";
            return Some(because(real_ip, why));
        }
        let has_scripts = own.iter().any(|directive| directive.name == "fastcgi_pass");
        for (depth, level) in chain.levels().iter().enumerate() {
            let is_server = chain.is_server(depth);
            // Conditions of an outer block test files in the folder of that block.
            let around = chain.from(depth);
            for directive in level.iter() {
                let is_guard =
                    is_one(&directive.name, &GUARDS) && !CONVERTED_GUARDS.contains(&directive.name.as_str());
                let is_inherited = is_guard || is_one(&directive.name, &MAKERS);
                let is_current =
                    || chain.find(&directive.name).is_some_and(|last| std::ptr::eq(last, directive));
                if is_inherited && !is_off(directive) && is_current() {
                    return Some(because(directive, why(directive)));
                }
                if let Some(why) = self.lost_request_field(directive, chain) {
                    return Some(because(directive, &why));
                }
                if depth > 0 && !is_server {
                    continue;
                }
                let is_script_test = || has_scripts && super::fastcgi::is_script_test(directive);
                if directive.name == "if"
                    && (restricts(directive) || super::ifs::ends_rewrites(directive, &around))
                    && !is_script_test()
                    && !self.breaks.contains(&std::ptr::from_ref(directive))
                    && (depth > 0 || self.passing_if(directive, chain).is_none())
                    && self.conditional(directive, &around).is_none()
                {
                    return Some(because(directive, "it refuses or changes requests under a condition"));
                }
                if directive.name == "rewrite"
                    && let Some(why) = self.lost_rewrite(directive)
                {
                    return Some(because(directive, &why));
                }
                if table::is_unknown(directive) && !self.fates.is_known(directive) && !is_off(directive) {
                    let why = "this directive is not known here; it could handle or refuse requests";
                    return Some(because(directive, why));
                }
            }
            if is_server && let Some(lost) = lost_location(level) {
                return Some(because(lost, "its expression is not supported"));
            }
        }
        // The file of users around it would be used.
        let users = chain.find("auth_basic_user_file").filter(|file| file.word(0).contains('$'));
        if let Some(file) = users.filter(|_| !["", "off"].contains(&chain.word("auth_basic"))) {
            return Some(because(file, "variables are not supported in its name"));
        }
        match chain.find("auth_request").filter(|directive| directive.word(0) != "off") {
            Some(directive) if self.constant_auth(directive, chain).is_some() => None,
            Some(directive) => self.auth_target(directive, chain).err().map(|why| because(directive, &why)),
            None => None,
        }
    }

    /// Why the location that nginx would choose for a path does not serve it here; `None` if it does.
    pub(super) fn unserved(&self, uri: &str, chain: &Chain<'d>) -> Option<String> {
        let path = path_of(uri);
        if let Err(why) = self.served_by_location(&path, chain)? {
            return Some(why);
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        hidden::is_hidden(name).then(|| format!("{path} could be source, and is hidden"))
    }

    /// Whether the location of a path serves it as a file. `None` if it does something else with it.
    ///
    /// # Errors
    /// Why the location does not serve it here.
    fn served_by_location(&self, path: &str, chain: &Chain<'d>) -> Option<Result<(), String>> {
        if let Some(location) = location::choose(path, chain.server()) {
            let around = chain.at_server();
            let inner = around.inside(location);
            if let Some(why) = self.closed_by(&inner) {
                return Some(Err(format!("{path} goes to {why}")));
            }
            let handles = |it: &Directive| PASSES.contains(&it.name.as_str()) || it.name == "return";
            if inner.own().iter().any(handles) {
                return None;
            }
            // The file of this name is not tried.
            let tried = inner.find_own("try_files").map(Directive::texts);
            if let Some([first @ .., last]) = tried.as_deref()
                && !first.iter().any(|text| text.starts_with("$uri"))
                && self.is_route(last)
            {
                return None;
            }
        }
        Some(Ok(()))
    }

    /// Why requests for folders are not served: the location of one of their index files is not. A hidden one is not there, unless
    /// a location inside this one may have its requests.
    pub(super) fn unserved_index(&self, chain: &Chain<'d>) -> Option<String> {
        let index = chain.find("index")?;
        let may_be_passed = chain.is_location() && has_below(chain.own(), &PASSES);
        let base = location::base_of(chain);
        index.texts().into_iter().find_map(|name| {
            let path = if name.starts_with('/') { name.to_owned() } else { format!("{base}{name}") };
            match may_be_passed {
                true => self.unserved(&path, chain),
                false => self.served_by_location(&path_of(&path), chain)?.err(),
            }
        })
    }

    /// Why missing files are not served: nginx passes their requests on.
    pub(super) fn unserved_missing(&self, chain: &Chain<'d>) -> Option<String> {
        let pages = chain.list(&["error_page"]);
        let page = pages.into_iter().find(|page| page.texts().contains(&"404"))?;
        let to = page.texts().last().copied().unwrap_or_default();
        match to.starts_with('@') {
            true if self.is_route(to) => None,
            true => Some(because(page, "there is no such location")),
            false if to.starts_with('/') => self.unserved(to, chain),
            false => None,
        }
    }

    /// An `if` for missing files, as in `if (!-e $request_filename) { rewrite ^ /index.php last; }`, and its `rewrite`.
    pub(super) fn missing_rewrite(&self, chain: &Chain<'d>) -> Option<(&'d Directive, &'d Directive)> {
        let levels = chain.levels();
        let conditions =
            levels.iter().enumerate().filter(|(depth, _)| *depth == 0 || chain.is_server(*depth));
        // Conditions of an outer block test files in the folder of that block.
        let is_tried = |around: &Chain<'d>, it: &Directive| {
            is_about_missing(it) && self.conditional(it, around).is_none()
        };
        let conditions = conditions.flat_map(|(depth, level)| {
            let around = chain.from(depth);
            level.iter().filter(move |it| is_tried(&around, it))
        });
        let mut rewrites =
            conditions.filter_map(|it| Some((it, it.inner().iter().find(|inner| inner.name == "rewrite")?)));
        rewrites.next()
    }
}

/// The path that a text begins with.
fn path_of(text: &str) -> String {
    let path = text.split(['?', '$']).next().unwrap_or_default();
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Whether a nested location changes what is served, and not only its fields.
pub(super) fn matters(location: &Directive) -> bool {
    location.inner().iter().any(|directive| !COSMETIC.contains(&directive.name.as_str()))
}

/// The names of `index` that are such, each with those before it.
pub(super) fn indexes_where<'d>(
    chain: &Chain<'d>,
    is_such: impl Fn(&str) -> bool,
) -> Vec<(&'d str, Vec<&'d str>)> {
    let names = chain.find("index").map_or_else(|| vec!["index.html"], Directive::texts);
    let is_found = |name: &str| !name.contains(['/', '$']) && is_such(name);
    let found = names.iter().enumerate().filter(|(_, name)| is_found(name));
    found.map(|(at, name)| (*name, names[..at].to_vec())).collect()
}

/// Whether nginx may choose another location that is a guard for this page of a folder. Scripts have none.
pub(super) fn is_guarded(page: &str, chain: &Chain<'_>, is_guard: fn(&Directive) -> bool) -> bool {
    let base = location::base_of(chain);
    !hidden::is_hidden(page)
        && location::may_guard((&base, page), chain.server(), chain.location_at(0), is_guard)
}

/// Whether a location may refuse clients.
pub(super) fn protects(location: &Directive) -> bool {
    let may_refuse =
        |name: &str| ["allow", "deny", "if", "internal", "limit_except", "satisfy"].contains(&name);
    let is_rule = |it: &Directive| may_refuse(&it.name) || is_one(&it.name, &CONVERTED_GUARDS);
    only_refuses(location) || location.inner().iter().any(is_rule)
}

/// Whether a location refuses all its requests.
pub(super) fn only_refuses(location: &Directive) -> bool {
    let has = |name: &str, word: &str| {
        location.inner().iter().any(|directive| directive.name == name && directive.word(0) == word)
    };
    let is_refusal = |directive: &Directive| {
        directive.name == "return" && directive.word(0).parse().is_ok_and(|code: u16| code >= 400)
    };
    let has_allow = location.inner().iter().any(|directive| directive.name == "allow");
    (has("deny", "all") && !has_allow) || location.inner().iter().any(is_refusal)
}

/// A location of a server whose expression cannot even be widened.
fn lost_location(server: &[Directive]) -> Option<&Directive> {
    let mut locations = server.iter().filter(|directive| directive.name == "location");
    locations.find_map(|location| {
        let is_lost = match Path::of(location) {
            Some(Path::Regex { pattern, .. }) => pattern::read(&pattern).is_none(),
            _ => false,
        };
        if is_lost { Some(location) } else { lost_location(location.inner()) }
    })
}

/// The words of a condition without its parentheses.
fn condition(directive: &Directive) -> String {
    let words = directive.texts().join(" ");
    words.trim().trim_start_matches('(').trim_end_matches(')').trim().to_owned()
}

pub(super) fn is_about_missing(directive: &Directive) -> bool {
    let condition = condition(directive);
    directive.name == "if"
        && ["!-e", "!-f", "!-d"].iter().any(|test| condition.starts_with(test))
        && condition.contains("$request_filename")
}

/// Whether an `if` is about files that exist.
pub(super) fn is_about_found(directive: &Directive) -> bool {
    let condition = condition(directive);
    let is_test = ["-e ", "-f ", "-d "].iter().any(|test| condition.starts_with(test));
    directive.name == "if" && is_test && condition.ends_with("$request_filename")
}

/// Whether an `if` refuses requests, or passes them on.
fn restricts(directive: &Directive) -> bool {
    if is_about_missing(directive) {
        // Handled like `try_files`.
        return directive.inner().iter().any(|it| !["rewrite", "break", "set"].contains(&it.name.as_str()));
    }
    let condition = condition(directive);
    let names = values::variables(&condition);
    let is_of_url = || {
        // A dollar sign may also be the end of an expression.
        let mut names = names.iter().filter(|name| !name.is_empty());
        names.all(|name| OF_URL.contains(name) || name.starts_with("arg_"))
    };
    let is_of_file = ["-e", "-f", "-d"].iter().any(|test| condition.starts_with(test));
    directive.inner().iter().any(|inner| match inner.name.as_str() {
        "return" => match inner.word(0).parse::<u16>() {
            // A page for the time of maintenance.
            Ok(503) => !is_of_file,
            Ok(200..=299) => names != ["request_method"],
            Ok(300..=399) | Err(_) => !is_of_url(),
            Ok(_) => true,
        },
        "rewrite" => {
            !["redirect", "permanent"].contains(&inner.word(2)) && !inner.word(1).contains("://")
                || !is_of_url()
        }
        "deny" | "allow" | "limit_except" | "proxy_pass" => true,
        name => is_one(name, &HANDLERS) || is_one(name, &MAKERS) || is_one(name, &GUARDS),
    })
}
