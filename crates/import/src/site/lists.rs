//! Directives that nginx takes only from the innermost block that has any, while a site file combines all levels.

use flatout_wire::chunk::is_forbidden_trailer;

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{Lines, value};
use super::values::unsupported;
use super::{Import, values};

/// A zone of `limit_req_zone` or `limit_conn_zone`.
pub(super) struct Zone {
    name: String,
    key: String,
    /// The rate of requests; `None` limits concurrent ones.
    rate: Option<String>,
    /// The numbers of concurrent requests that it was used with so far, with the statuses of refusals.
    counts: Vec<(u32, String)>,
}

/// Variables that no request is without.
const ALWAYS_THERE: [&str; 8] = [
    "remote_addr",
    "realip_remote_addr",
    "uri",
    "document_uri",
    "request_uri",
    "request_method",
    "scheme",
    "server_protocol",
];

/// Lists that are converted in the same way.
const LISTS: [&[&str]; 6] =
    [&["add_header"], &["add_trailer"], &["limit_req"], &["limit_conn"], &["error_page"], &["sub_filter"]];

/// Whether directives of this name are such a list.
pub(super) fn is_list(name: &str) -> bool {
    LISTS.iter().any(|names| names.contains(&name))
}

impl<'d> Import<'d> {
    /// Collects zones.
    pub(super) fn zones(&mut self, http: &'d [Directive]) {
        self.formats(http);
        for directive in http {
            let is_rate = directive.name == "limit_req_zone";
            if !is_rate && directive.name != "limit_conn_zone" {
                continue;
            }
            let find = |key: &str| directive.texts().into_iter().find_map(|text| text.strip_prefix(key));
            let (Some(zone), Some(key)) = (find("zone="), values::key(directive.word(0), &self.maps)) else {
                continue;
            };
            let rate = find("rate=").and_then(values::rate);
            if is_rate && rate.is_none() {
                continue;
            }
            let name = zone.split(':').next().unwrap_or_default().to_owned();
            self.zones.push(Zone { name, key, rate, counts: Vec::new() });
            self.fates.carried(directive);
        }
    }

    /// Writes the lists that apply in the innermost of `levels`, unless an outer level has written them, or an inner
    /// one will. The last is `http`.
    pub(super) fn lists(&mut self, levels: &[&Chain<'d>], lines: &mut Lines) {
        let Some(here) = levels.first() else { return };
        for names in LISTS {
            let all = list_here(levels, names);
            for (at, directive) in all.iter().enumerate() {
                let is_same = |other: &&'d Directive| other.texts() == directive.texts();
                let is_again = ["add_header", "add_trailer"].contains(&&*directive.name)
                    && all.iter().take(at).any(is_same);
                self.list(directive, is_again, here, lines);
            }
            for directive in here.own().iter().filter(|it| names.contains(&it.name.as_str())) {
                if let Some(outer) = written_around(levels, names).find(|outer| is_same(outer, directive)) {
                    self.fates.like(outer, directive);
                }
            }
        }
        self.visitor_cookie(levels, lines);
    }

    /// The fields of an action in a server: those that stand in its routes, because some of these have others.
    pub(super) fn fields_of_action(&mut self, server: &Chain<'d>) -> Lines {
        let mut fields = Lines::default();
        self.lists(&[&server.within(&[]), server, &server.outer()], &mut fields);
        fields.retain("response-header");
        fields
    }

    /// Whether a list applies to a server that a nested block replaces by its own.
    pub(super) fn has_replaced_lists(chain: &Chain<'d>) -> bool {
        LISTS.iter().any(|names| !chain.list(names).is_empty() && is_replaced_below(chain, names))
    }

    fn list(&mut self, directive: &'d Directive, is_again: bool, chain: &Chain<'d>, lines: &mut Lines) {
        let text = match directive.name.as_str() {
            // The response has no other length.
            "add_header" if is_empty_length(directive) && chain.own().iter().any(is_empty_return) => Ok(None),
            "add_header" => self.header(directive),
            "add_trailer" => self.trailer(directive, chain),
            "limit_req" => self.limit_req(directive, chain),
            "limit_conn" => self.limit_conn(directive, chain, lines),
            "sub_filter" => self.sub_filter(directive, chain),
            _ => self.error_page(directive, chain),
        };
        match text {
            Ok(text) => {
                self.fates.carried(directive);
                let condition = match directive.name.as_str() {
                    "limit_req" | "limit_conn" => self.has_key(directive),
                    _ => None,
                };
                match condition {
                    Some(condition) => {
                        let mut inner = Lines::default();
                        text.into_iter().for_each(|text| inner.setting(text));
                        lines.block(&[], format!("when {}", super::out::text(&condition)), inner);
                    }
                    // nginx sends a field as often as it is there.
                    None if is_again => text.into_iter().for_each(|text| lines.setting_again(text)),
                    None => text.into_iter().for_each(|text| lines.setting(text)),
                }
            }
            Err(why) => self.leave(directive, &why, lines),
        }
    }

    /// # Errors
    /// Why a text cannot be the value of a field of responses.
    pub(super) fn check_field_value(&self, text: &str) -> Result<(), String> {
        if let Some(unknown) = self.unknown_in_response(text) {
            return Err(unsupported(unknown));
        }
        match text.chars().any(char::is_control) {
            true => Err("its value has control characters".to_owned()),
            false => Ok(()),
        }
    }

    /// The field of an `add_header`. `None` if nothing is to be written.
    pub(super) fn header(&self, directive: &Directive) -> Result<Option<String>, String> {
        let (name, text) = (directive.word(0), directive.word(1).trim_end());
        if super::cache::is_cache_status(directive) {
            return Ok(None);
        }
        self.check_field_value(text)?;
        if is_of_connection(name) {
            return Err("fields of the connection cannot be set".to_owned());
        }
        // nginx has one of each of these.
        let is_single = ["etag", "last-modified"].iter().any(|field| name.eq_ignore_ascii_case(field));
        // It omits fields without a value.
        if text.is_empty() {
            return Ok(is_single.then(|| format!("response-header remove {}", value(name))));
        }
        let how = if is_single { "set" } else { "add" };
        let when = if directive.word(2) == "always" { "" } else { " when=success" };
        Ok(Some(format!("response-header {how} {} {}{when}", value(name), super::out::text(text))))
    }

    fn trailer(&self, directive: &Directive, chain: &Chain<'d>) -> Result<Option<String>, String> {
        let (name, text) = (directive.word(0), directive.word(1).trim_end());
        self.check_field_value(text)?;
        if is_of_connection(name) || is_forbidden_trailer(name.as_bytes()) {
            return Err("this field cannot follow a body".to_owned());
        }
        // nginx omits fields without a value, and all of them where there are no chunks.
        if text.is_empty() || chain.word("chunked_transfer_encoding") == "off" {
            return Ok(None);
        }
        let when = if directive.word(2) == "always" { "" } else { " when=success" };
        Ok(Some(format!("response-trailer {} {}{when}", value(name), super::out::text(text))))
    }

    fn sub_filter(&self, directive: &Directive, chain: &Chain<'d>) -> Result<Option<String>, String> {
        let (from, to) = (directive.word(0), directive.word(1));
        if let Some(why) = self.unsupported(from).or_else(|| self.unsupported(to)) {
            return Err(why);
        }
        let once = if chain.word("sub_filter_once") == "off" { " once=off" } else { "" };
        Ok(Some(format!("replace-text {} {}{once}", super::out::text(from), super::out::text(to))))
    }

    fn limit_req(&self, directive: &Directive, chain: &Chain<'d>) -> Result<Option<String>, String> {
        let find = |key: &str| directive.texts().into_iter().find_map(|text| text.strip_prefix(key));
        let zone = find("zone=").unwrap_or_default();
        let known = self
            .zones
            .iter()
            .find_map(|known| Some((known, known.rate.as_ref().filter(|_| known.name == zone)?)));
        let Some((known, rate)) = known else { return Err("its zone is not converted".to_owned()) };
        let burst = find("burst=").map_or_else(String::new, |burst| format!(" burst={burst}"));
        // Without `nodelay`, requests of a burst are delayed.
        let texts = directive.texts();
        let delay = match find("delay=") {
            Some(count) => format!(" delay={count}"),
            None if burst.is_empty() || texts.contains(&"nodelay") => String::new(),
            None => " delay=0".to_owned(),
        };
        let status = chain.find("limit_req_status").map_or("503", |status| status.word(0));
        Ok(Some(format!(
            "rate-limit \"{rate}\"{burst}{delay} key={} name={} status={status} fields=off{}",
            value(&known.key),
            value(&known.name),
            dry_run(directive, chain)
        )))
    }

    /// The condition that the key of a limit is not empty, if it may be: nginx does not count requests without one.
    fn has_key(&self, directive: &Directive) -> Option<String> {
        let texts = directive.texts();
        let of_rate = texts.iter().find_map(|text| text.strip_prefix("zone="));
        let name = of_rate.or(texts.first().copied()).unwrap_or_default();
        let is_rate = directive.name == "limit_req";
        let zone = self.zones.iter().find(|zone| zone.name == name && zone.rate.is_some() == is_rate)?;
        let names = values::variables(&zone.key);
        let literal = names.iter().fold(zone.key.clone(), |rest, name| {
            rest.replacen(&format!("${{{name}}}"), "", 1).replacen(&format!("${name}"), "", 1)
        });
        let is_always = |name: &&str| ALWAYS_THERE.contains(name);
        if names.is_empty() || !literal.is_empty() || names.iter().any(is_always) {
            return None;
        }
        let tests: Vec<String> = names.iter().map(|name| format!("${name} != ''")).collect();
        Some(tests.join(" || "))
    }

    fn limit_conn(
        &mut self,
        directive: &Directive,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<Option<String>, String> {
        let (zone, count) = (directive.word(0), directive.word(1));
        let status = chain.find("limit_conn_status").map_or("503", |status| status.word(0));
        let known = self.zones.iter_mut().find(|known| known.name == zone && known.rate.is_none());
        let (Some(known), Ok(count)) = (known, count.parse::<u32>()) else {
            return Err("its zone is not converted".to_owned());
        };
        // Limits with one name have one number and one status.
        let at = known.counts.iter().position(|(other, _)| *other == count).unwrap_or(known.counts.len());
        if at == known.counts.len() {
            known.counts.push((count, status.to_owned()));
        }
        let first = known.counts.get(at).map_or(status, |(_, first)| first);
        if first != status {
            lines.comment(&format!(
                "{directive} has the status {first} here too, so that one number is counted"
            ));
        }
        let status = if first == "503" { String::new() } else { format!(" status={first}") };
        let name = if at == 0 { known.name.clone() } else { format!("{}-{}", known.name, at + 1) };
        Ok(Some(format!(
            "request-limit {count} key={} name={} queue=0{status}{}",
            value(&known.key),
            value(&name),
            dry_run(directive, chain)
        )))
    }

    fn error_page(&mut self, directive: &Directive, chain: &Chain<'d>) -> Result<Option<String>, String> {
        let texts = directive.texts();
        let Some((page, rest)) = texts.split_last() else { return Err(String::new()) };
        let (status, codes) = match rest.split_last() {
            Some((status, codes)) if status.starts_with('=') => (Some(*status), codes),
            _ => (None, rest),
        };
        let given = status;
        let status = match given {
            None => String::new(),
            Some("=") => " status=own".to_owned(),
            Some(status) => format!(" status={}", status.trim_start_matches('=')),
        };
        if let Some(moved) = self.moved_page(page, given, codes, chain)? {
            return Ok(Some(moved));
        }
        let is_named = page.starts_with('@');
        let (path, query) = match page.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (*page, None),
        };
        let has_unknown = |query: &str| values::unknown_variable(query, &self.maps).is_some();
        if !(page.starts_with('/') || self.is_route(page))
            || path.contains('$')
            || query.is_some_and(has_unknown)
        {
            return Err("a page is a file or a location".to_owned());
        }
        if let Some(why) = (!is_named).then(|| self.unserved(page, chain)).flatten() {
            return Err(why);
        }
        check_statuses(codes)?;
        let upstream = of_upstreams(chain);
        let root = match if is_named { self.named_handler(page, chain) } else { self.page_root(path, chain) }
        {
            Ok(root) if status != " status=own" => root,
            // Only a route that responds at once can replace a response of an upstream.
            Err(handler) if upstream.is_empty() || ["return", "alias"].contains(&handler) => {
                let codes = codes.join(" ");
                let status = match status.as_str() {
                    // The route's own status is used.
                    "" | " status=own" => status,
                    " status=200" if handler != "return" => " status=own".to_owned(),
                    _ => return Err("its status cannot be set for a location".to_owned()),
                };
                return Ok(Some(format!(
                    "error-page {codes} to={}{status}{upstream}",
                    super::out::text(page)
                )));
            }
            Ok(_) => return Err("taking the status of a file is not supported".to_owned()),
            Err(handler) => return Err(format!("its page is handled by {handler}")),
        };
        let file = format!("{}{path}", root.trim_end_matches('/'));
        if std::path::Path::new(&file).is_dir() && status.is_empty() && upstream.is_empty() {
            return Ok(Some(format!("error-page {} to={}", codes.join(" "), super::out::text(page))));
        }
        if is_missing(&file) {
            return Err(format!("there is no file {file}"));
        }
        if std::path::Path::new(&file).parent().is_some_and(|folder| folder.is_absolute() && !folder.exists())
        {
            // It may not be there yet, and nginx starts without it.
            if status.is_empty() && upstream.is_empty() {
                return Ok(Some(format!("error-page {} to={}", codes.join(" "), super::out::text(page))));
            }
        }
        Ok(Some(format!("error-page {} file={}{status}{upstream}", codes.join(" "), value(&file))))
    }

    /// An error that becomes a redirect to a URL: by a route of its own.
    fn moved_page(
        &mut self,
        page: &str,
        status: Option<&str>,
        codes: &[&str],
        chain: &Chain<'d>,
    ) -> Result<Option<String>, String> {
        let is_url = ["http://", "https://", "$scheme://"].iter().any(|scheme| page.starts_with(scheme));
        if !is_url {
            return Ok(None);
        }
        check_statuses(codes)?;
        if chain.levels().len() < 3 {
            return Err("a URL is possible in servers and locations".to_owned());
        }
        if let Some(why) = self.unsupported(page) {
            return Err(why);
        }
        let status = status.map_or("302", |status| status.trim_start_matches('='));
        let status = if ["301", "302", "303", "307", "308"].contains(&status) { status } else { "302" };
        let redirect = format!("redirect {} status={status}", super::out::text(page));
        let known = self.moved_pages.iter().find(|(_, known)| *known == redirect);
        let name = known.map(|(name, _)| name.clone()).unwrap_or_else(|| {
            let name = self.moved_name(chain);
            self.moved_pages.push((name.clone(), redirect));
            name
        });
        let upstream = of_upstreams(chain);
        Ok(Some(format!("error-page {} to=\"{name}\" status=own{upstream}", codes.join(" "))))
    }

    /// Writes the routes of such redirects of a server.
    pub(super) fn moved_routes(&mut self, site: &mut Lines) {
        for (name, redirect) in std::mem::take(&mut self.moved_pages) {
            let mut lines = Lines::default();
            lines.setting(redirect);
            site.block(&[], format!("route \"{name}\""), lines);
        }
    }

    /// The name of the next route that redirects, which no location of the server has.
    fn moved_name(&self, chain: &Chain<'d>) -> String {
        let is_used = |name: &String| {
            self.moved_pages.iter().any(|(known, _)| known == name)
                || chain.server().iter().any(|it| it.name == "location" && it.word(0) == name)
        };
        let mut names = (1..).map(|number| format!("@error-page-{number}"));
        names.find(|name| !is_used(name)).unwrap_or_default()
    }

    /// The directive that handles a named location, as in [`page_root`](Self::page_root).
    fn named_handler(&self, name: &str, chain: &Chain<'d>) -> Result<&'d str, &'d str> {
        let location = chain.server().iter().find(|it| it.name == "location" && it.word(0) == name);
        let handler = location.and_then(|location| {
            location.inner().iter().find(|it| it.name.ends_with("_pass") || it.name == "return")
        });
        Err(handler.map_or("alias", |handler| handler.name.as_str()))
    }

    /// The folder of an error page: that of the location which nginx chooses for it.
    ///
    /// # Errors
    /// The name of the directive that handles it, if that is no folder.
    fn page_root(&self, page: &str, chain: &Chain<'d>) -> Result<&'d str, &'d str> {
        let around = chain.at_server();
        let location = super::location::choose(page, chain.server());
        let inner = location.map_or(around, |location| chain.at_server().inside(location));
        let handler = inner.own().iter().find(|directive| {
            directive.name.ends_with("_pass")
                || ["return", "rewrite", "alias"].contains(&directive.name.as_str())
        });
        match (handler, inner.word("root")) {
            (Some(handler), _) => Err(handler.name.as_str()),
            // The folder depends on the request.
            (None, root) if root.contains('$') => Err("root"),
            (None, "") => Ok("html"),
            (None, root) => Ok(root),
        }
    }
}

/// The list of these names that is written in the innermost of `levels`: none if an inner one will write it, without what an outer
/// level has written.
pub(super) fn list_here<'d>(levels: &[&Chain<'d>], names: &[&str]) -> Vec<&'d Directive> {
    let Some(here) = levels.first() else { return Vec::new() };
    // In `http` and `server`, a list is postponed if a nested block replaces it. Routes are beside each other.
    if !here.is_location() && is_replaced_below(here, names) {
        return Vec::new();
    }
    let is_new =
        |directive: &&Directive| !written_around(levels, names).any(|outer| is_same(outer, directive));
    here.list(names).into_iter().filter(is_new).collect()
}

/// What the levels around the innermost one write of these lists.
fn written_around<'d>(levels: &[&Chain<'d>], names: &[&str]) -> impl Iterator<Item = &'d Directive> {
    let outer = levels.get(1..).unwrap_or_default().iter();
    let written = outer.filter(|chain| !chain.is_location() && !is_replaced_below(chain, names));
    written.flat_map(|chain| chain.list(names)).collect::<Vec<_>>().into_iter()
}

/// Whether a nested block has a list in place of this one. In nginx any list does that; one of fields that has all of this one's only
/// adds to it.
fn is_replaced_below(chain: &Chain<'_>, names: &[&str]) -> bool {
    let list = chain.list(names);
    let adds = |own: &[&Directive]| {
        names.contains(&"add_header")
            && list.iter().all(|outer| own.iter().any(|inner| is_same(outer, inner)))
    };
    has_list_below(chain.own(), names, &adds)
}

fn has_list_below(block: &[Directive], names: &[&str], adds: &impl Fn(&[&Directive]) -> bool) -> bool {
    block.iter().filter(|directive| ["server", "location"].contains(&directive.name.as_str())).any(|inner| {
        let own = inner.inner().iter().filter(|directive| names.contains(&directive.name.as_str()));
        let own: Vec<&Directive> = own.collect();
        !own.is_empty() && !adds(&own) || has_list_below(inner.inner(), names, adds)
    })
}

fn is_same(one: &Directive, other: &Directive) -> bool {
    one.name == other.name && one.texts() == other.texts()
}

/// Whether errors of upstreams have these pages too.
fn of_upstreams(chain: &Chain<'_>) -> &'static str {
    let families = ["proxy", "fastcgi", "grpc", "uwsgi", "scgi"];
    match families.iter().any(|family| chain.is_on(&format!("{family}_intercept_errors"))) {
        true => " upstream=on",
        false => "",
    }
}

/// The option of a limit that only counts.
fn dry_run(limit: &Directive, chain: &Chain<'_>) -> &'static str {
    if chain.is_on(&format!("{}_dry_run", limit.name)) { " dry-run=on" } else { "" }
}

/// Whether an `add_header` says that a response has no body.
pub(super) fn is_empty_length(directive: &Directive) -> bool {
    directive.word(0).eq_ignore_ascii_case("content-length") && directive.word(1) == "0"
}

/// Whether a response is made without a body.
pub(super) fn is_empty_return(directive: &Directive) -> bool {
    directive.name == "return" && directive.words.len() == 1 && directive.word(0).parse::<u16>().is_ok()
}

fn check_statuses(codes: &[&str]) -> Result<(), String> {
    let is_error = |code: &&str| code.parse().is_ok_and(|code: u16| (300..=599).contains(&code));
    match !codes.is_empty() && codes.iter().all(is_error) {
        true => Ok(()),
        false => Err("it needs statuses from 300 to 599".to_owned()),
    }
}

/// Whether a file is missing whose folder is there: the configuration is imported where it is used.
pub(super) fn is_missing(file: &str) -> bool {
    let path = std::path::Path::new(file);
    path.is_absolute() && path.parent().is_some_and(std::path::Path::is_dir) && !path.is_file()
}

/// Whether a field belongs to one connection, so that rules cannot set it.
pub(super) fn is_of_connection(name: &str) -> bool {
    let fields =
        ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];
    fields.iter().any(|field| name.eq_ignore_ascii_case(field))
}
