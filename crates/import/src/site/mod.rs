//! Converts directives into a site file.
//!
//! Directives with an equivalent are converted; those without one become comments in the same place; those that are
//! not needed are only counted. nginx takes lists such as `add_header` only from the innermost block that has any,
//! while a site file combines all levels. So a list is written where no inner block changes it, otherwise into each
//! route.

mod addresses;
mod answers;
mod application;
mod auth;
mod back;
mod cache;
mod chain;
mod closed;
mod compress;
#[cfg(test)]
mod condition_tests;
mod conditions;
mod constants;
mod expires;
mod fastcgi;
#[cfg(test)]
mod fastcgi_tests;
mod file_tests;
mod folders;
mod geo;
pub(crate) mod hidden;
mod ifs;
#[cfg(test)]
mod inherited_tests;
mod issued;
mod limit_except;
mod lists;
mod location;
mod logs;
mod map_targets;
mod media_types;
mod mirror;
mod more_headers;
mod named;
mod named_groups;
mod out;
pub(crate) mod pattern;
mod pcre;
mod places;
mod proxy;
mod real_ip;
mod referers;
mod rewrite;
mod secure_link;
mod server;
mod settings;
mod table;
mod target;
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod tests;
mod tls;
mod upstream;
#[cfg(test)]
mod upstream_tests;
mod users;
mod values;
mod visitor_cookie;
#[cfg(test)]
mod written;

#[cfg(test)]
use crate::nginx;
use crate::nginx::Directive;
use chain::Chain;
use out::{Fate, Fates, Lines, value};

/// A site file, and how much of the configuration it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The site file.
    pub text: String,
    /// Directives that were converted.
    pub carried: usize,
    /// Directives that are not needed.
    pub needless: usize,
    /// Directives that became comments.
    pub left: usize,
    /// The first lines of the site file: places that respond 501, because nginx handled or restricted their requests in
    /// a way that is not converted, and servers that are missing. Empty if there are none.
    pub unserved: Vec<String>,
}

/// The site file for a configuration.
pub fn site_file(main: &[Directive]) -> Imported {
    let (main, mut named) =
        constants::replaced(&named_groups::numbered(&pcre::expressions(&places::absolute(main))));
    let main = &map_targets::expanded(&main, &mut named);
    let mut import = Import { named_by_variables: named, ..Import::default() };
    let mut top = Lines::default();
    let (mut blocks, mut sites) = (Lines::default(), Lines::default());
    let nothing: &[Directive] = &[];
    let http = main.iter().find(|directive| directive.name == "http");
    let block = http.map_or(nothing, Directive::inner);
    let chain = Chain::of(main);
    import.settings(&chain, &mut top);
    if let Some(http) = http {
        import.fates.carried(http);
    }
    let chain = chain.within(block);
    import.of_users = users::names(block);
    // What they define is used in all others.
    import.referers(block, &mut top);
    import.tables(block, &mut blocks);
    import.zones(block);
    import.stores(block, &mut top);
    import.seen(block);
    import.settings(&chain, &mut top);
    import.lists(&[&chain], &mut top);
    import.secure_links(block, &mut top);
    import.visitor_cookies(block, &mut top);
    import.variables(block, &mut top);
    import.known_upstreams(block);
    import.resolver(block, &mut top);
    import.servers(&chain, &mut top, &mut sites);
    import.resolver_of_variables(&mut top);
    import.rest(block, &mut top);
    import.rest(main, &mut top);
    if import.buffers_requests {
        top.setting("buffer-requests on".to_owned());
    }
    if import.has_logs {
        top.setting(format!("log-flush \"{}\"", logs::FLUSH));
    }
    if import.is_named_by_path {
        let mut cases = Lines::default();
        cases.setting("case \"~^/([^/]+)$\" \"$1\"".to_owned());
        blocks.block(&[], format!("map {} \"$uri\"", value(proxy::UPSTREAM_OF_PATH)), cases);
    }
    for made in std::mem::take(&mut import.made) {
        blocks.block(&[], format!("upstream {}", value(&made.name)), made.lines);
    }
    for upstream in std::mem::take(&mut import.upstreams) {
        if !import.fates.is_known(upstream) {
            import.leave(upstream, "nothing is passed to it", &mut blocks);
        }
    }
    let mut first = std::mem::take(&mut import.listens);
    first.extend(top);
    import.hide(&mut first);
    if import.serves_files && !first.has("compress") {
        first.setting("compress off".to_owned());
    }
    first.gap();
    first.extend(blocks);
    import.finish(first, sites)
}

/// The state of a conversion.
#[derive(Default)]
struct Import<'d> {
    fates: Fates,
    /// Each `if` with `break` that became the condition of a redirect behind it.
    breaks: Vec<*const Directive>,
    /// `upstream` blocks.
    upstreams: Vec<&'d Directive>,
    /// Servers that variables name, and the `resolver` of the places where they are used.
    named_by_variables: Vec<String>,
    resolvers: Vec<&'d Directive>,
    /// Whether other servers have names that nginx looks up when it starts.
    has_fixed_names: bool,
    /// Upstreams of the site file.
    made: Vec<upstream::Made>,
    /// `limit_req_zone` and `limit_conn_zone`.
    zones: Vec<lists::Zone>,
    /// `proxy_cache_path`.
    stores: Vec<cache::Store>,
    /// `log_format`: names, texts, and how values are escaped.
    formats: Vec<(String, String, &'d str)>,
    /// Addresses at the top.
    listens: Lines,
    /// Names of maps, and of variables that `set` makes.
    maps: Vec<String>,
    /// Names of maps that depend on the response.
    response_maps: Vec<String>,
    /// Names of all maps.
    table_names: Vec<String>,
    /// Those that depend on the user.
    of_users: Vec<String>,
    /// Those of `set`.
    set_names: Vec<String>,
    /// Named locations of the current server that become routes.
    named_routes: Vec<String>,
    /// Whether there is a single server: it may contain settings of the process.
    is_only_server: bool,
    /// Where servers are served.
    addresses: addresses::Addresses,
    /// All servers have the same addresses and TLS settings: these are at the top of the file.
    shares_addresses: bool,
    /// The block that is being converted, for messages.
    place: String,
    /// Places that respond 501, and servers that are missing.
    closed: Vec<String>,
    lost: Vec<String>,
    /// Bodies of requests to some upstream are taken whole before they are sent.
    buffers_requests: bool,
    /// The path of a request names its upstream.
    is_named_by_path: bool,
    /// Redirects of the current server in place of errors, with the names of their routes.
    moved_pages: Vec<(String, String)>,
    /// Whether a folder is served.
    serves_files: bool,
    /// Whether `Location` of upstreams is changed in this server.
    has_proxy_redirects: bool,
    /// Whether there is an access log.
    has_logs: bool,
}

impl<'d> Import<'d> {
    /// A comment in place of a directive.
    fn leave(&mut self, directive: &Directive, why: &str, lines: &mut Lines) {
        self.fates.left(directive);
        let place = format!("{}:{}", directive.file, directive.line);
        lines.comment(format!("not converted: {directive}  ({place}) {why}").trim_end());
        // Counted together with its content, which needs no further check.
        self.leave_inner(directive.inner());
    }

    fn leave_inner(&mut self, block: &[Directive]) {
        for directive in block {
            self.fates.left(directive);
            self.leave_inner(directive.inner());
        }
    }

    /// Counts a directive as converted, with its content.
    fn carry(&mut self, directive: &Directive) {
        self.fates.carried(directive);
        directive.inner().iter().for_each(|inner| self.carry(inner));
    }

    /// The first variable of a text for responses that does not exist here.
    fn unknown_in_response<'t>(&self, text: &'t str) -> Option<&'t str> {
        let all: Vec<String> = self.maps.iter().chain(&self.response_maps).cloned().collect();
        values::unknown_in_response(text, &all)
    }

    /// Directives of a block that were not used: they are not needed, or become comments with the reason.
    fn rest(&mut self, block: &'d [Directive], lines: &mut Lines) {
        for directive in block.iter() {
            if self.fates.is_known(directive)
                || ["server", "location", "http", "upstream"].contains(&directive.name.as_str())
            {
                continue;
            }
            if directive.name == "auth_request_set" && directive.word(1).starts_with("$auth_http_") {
                // Texts have the field in place of the variable.
                self.fates.carried(directive);
                continue;
            }
            // A list that inner ones replace everywhere.
            if lists::is_list(&directive.name) {
                self.fates.needless(directive);
                continue;
            }
            match table::why(directive) {
                // With its content: a table of media types counts as one.
                None => self.fates.needless(directive),
                Some(why) => self.leave(directive, why, lines),
            }
        }
    }

    /// Names of files that are not served.
    fn hide(&self, top: &mut Lines) {
        if !self.serves_files {
            return;
        }
        for (why, names) in hidden::HIDDEN {
            top.comment(&format!("not served: {why}; change the list if a site needs such files"));
            let names: Vec<String> = names.iter().map(|name| out::text(name)).collect();
            top.setting(format!("hide {}", names.join(" ")));
        }
    }

    fn finish(self, mut top: Lines, sites: Lines) -> Imported {
        let unserved = summary(&self.closed, &self.lost);
        top.comment_first(&unserved);
        let (carried, needless, left) =
            (self.fates.count(Fate::Carried), self.fates.count(Fate::Needless), self.fates.count(Fate::Left));
        let mut text = String::new();
        top.write(0, &mut text);
        if !text.is_empty() && !sites.is_empty() {
            text.push('\n');
        }
        sites.write(0, &mut text);
        let all = carried + needless + left;
        let closed = match self.closed.len() {
            0 => String::new(),
            1 => "1 place responds 501, see the first lines. ".to_owned(),
            count => format!("{count} places respond 501, see the first lines. "),
        };
        text.push_str(&format!(
            "\n// {closed}{all} directives: {carried} converted, {needless} not needed, {left} not converted.\n"
        ));
        Imported { text: text.trim_start().to_owned(), carried, needless, left, unserved }
    }
}

/// `1 place`, `2 places`.
fn places(count: usize) -> String {
    if count == 1 { "1 place".to_owned() } else { format!("{count} places") }
}

/// The first lines of the site file: what is not served.
fn summary(closed: &[String], lost: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    if !closed.is_empty() {
        let why = "what handles or checks their requests is not converted";
        let respond = if closed.len() == 1 { "responds" } else { "respond" };
        lines.push(format!("NOT SERVED: {} {respond} 501, because {why}:", places(closed.len())));
        lines.extend(closed.iter().map(|text| format!("  {text}")));
    }
    if !lost.is_empty() {
        lines.push("NOT SERVED: these servers are missing.".to_owned());
        lines.extend(lost.iter().map(|text| format!("  {text}")));
    }
    lines
}

/// Does nothing here: this crate cannot read site files. `flatout-cli` runs these tests with a function that does.
#[cfg(test)]
fn check_written(_: &str) {}
