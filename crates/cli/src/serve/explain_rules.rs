//! The rules of a route in plain words, in the order in which a request and its response meet them.

use std::time::Duration;

use flatout_site::plan::{
    ByteCount, Cached, CookieFlag, CookieRule, Cors, ErrorPage, Expires, ExpiresFrom, FieldChange, FieldRule,
    Matcher, Origins, Page, PageSource, Plan, ReplacedParts, Reroute, Rewrite, RewriteFrom, Rules, Then,
    Validity, When,
};

use super::explain::{Lines, of_upstream};
use super::format;

/// Characters of a text that are shown.
const TEXT_SHOWN_MAX: usize = 60;

/// What a request meets before anything handles it.
pub(super) fn of_guards(lines: &mut Lines, plan: &Plan, rules: &Rules) {
    if let Some(trust) = &rules.trust {
        let networks = trust.proxies.len();
        lines.line(
            "trust",
            format!("this route trusts the client address from {networks} networks (trusted-proxies)"),
        );
    }
    if let Some(closed) = &rules.maintenance {
        let later = closed
            .retry_after
            .map_or_else(String::new, |time| format!(", Retry-After {}", format::time(time)));
        let page = page(plan, &closed.page);
        lines.line("closed", format!("503{later}, {page}; except for {} networks", closed.except.len()));
    }
    if rules.satisfies_any {
        lines.line("satisfy", "any of access, password and authority is enough");
    }
    if !rules.access.is_empty() {
        lines.line("access", rules.access.iter().map(format::access).collect::<Vec<_>>().join(", "));
    }
    for used in &rules.rates {
        let Some(rate) = plan.rates.get(used.rate) else { continue };
        lines.line(
            "rate",
            format!(
                "{} in {} with a burst of {}, for {} ({}); more get {}{}",
                rate.requests,
                format::time(rate.window),
                used.burst,
                format::limited(plan, &rate.key),
                rate.name,
                used.status,
                used.delay.map_or_else(String::new, |at_once| format!(
                    "; requests of the burst after the first {at_once} wait"
                )) + dry_run(used.is_dry_run),
            ),
        );
    }
    if let Some(cors) = &rules.cors {
        lines.line("CORS", of_cors(cors));
    }
    if let Some(auth) = &rules.basic_auth {
        let file = auth
            .user_file
            .as_ref()
            .map_or_else(String::new, |file| format!(" and those in {}", file.display()));
        lines.line("password", &auth.realm);
        lines.line("users", format!("{} in the site file{file}; others get 401", auth.users.len()));
    }
    if let Some(auth) = &rules.forward_auth {
        let upstream = plan.upstreams.get(auth.upstream).map(of_upstream).unwrap_or_default();
        let target = format::template(plan, &auth.target);
        lines.line("authority", format!("{upstream}; asked for {target}, a 2xx allows the request"));
        if let Some(to) = &auth.sign_in {
            lines.line("sign in", format!("at {} in place of its 401", format::template(plan, to)));
        }
    }
    if let Some(to) = &rules.auth_route {
        let to = match to {
            Reroute::Named(name) => name.clone(),
            Reroute::Path(path) => format::template(plan, path),
        };
        lines.line("authority", format!("the route of {to}; a 2xx allows the request"));
    }
    if let Some(bytes) = rules.body.bytes_max {
        lines.line("body", format!("at most {bytes} bytes; larger ones get 413"));
    }
    for used in &rules.concurrency {
        let Some(limit) = plan.concurrency.get(used.limit) else { continue };
        lines.line(
            "at once",
            format!(
                "{} for {}, {} more wait up to {} ({}){}",
                limit.requests_max,
                format::limited(plan, &limit.key),
                limit.queue_max,
                format::time(limit.queue_time_max),
                limit.name,
                dry_run(used.is_dry_run)
            ),
        );
    }
    of_replaced(lines, plan, &rules.replaced);
    of_fields(lines, plan, "request", &rules.request_fields);
}

/// What the upstream gets in place of parts of the request.
fn of_replaced(lines: &mut Lines, plan: &Plan, replaced: &ReplacedParts) {
    if let Some(host) = &replaced.host {
        lines.line("request", format!("its Host becomes {}", format::template(plan, host)));
    }
    if let Some(method) = &replaced.method {
        lines.line("request", format!("its method becomes {}", format::template(plan, method)));
    }
    match &replaced.body {
        Some(body) if body.0.is_empty() => lines.line("request", "its body is not forwarded"),
        Some(body) => lines.line("request", format!("its body becomes {}", format::template(plan, body))),
        None => {}
    }
    if replaced.drops_fields {
        lines.line("request", "its own fields are not forwarded");
    }
}

fn dry_run(is_dry_run: bool) -> &'static str {
    if is_dry_run { "; a dry run: none is refused" } else { "" }
}

/// What happens to the response.
pub(super) fn of_response(lines: &mut Lines, plan: &Plan, rules: &Rules) {
    if let Some(cached) = &rules.cache {
        of_cache(lines, plan, cached);
    }
    for rule in &rules.locations {
        let to = format::template(plan, &rule.to);
        let text = match &rule.from {
            Matcher::Text(from) => format!("{} at its start becomes {to}", format::template(plan, from)),
            Matcher::Pattern { pattern, .. } => format!("what ~ {pattern} finds becomes {to}"),
        };
        lines.line("Location", text);
    }
    for rule in &rules.cookies {
        lines.line("cookies", of_cookie(plan, rule));
    }
    of_fields(lines, plan, "response", &rules.response_fields);
    if let Some(expires) = &rules.expires {
        lines.line("expires", of_expires(plan, expires));
    }
    if let Some(charset) = &rules.charset {
        lines.line("charset", format!("texts that name none are {charset}"));
    }
    if let Some(origin) = &rules.redirect_origin {
        lines.line(
            "redirects",
            format!("of folders, and by proxy-redirect, begin with {}", format::template(plan, origin)),
        );
    }
    if rules.limit_rate != ByteCount::Fixed(0) {
        let count = |count: &ByteCount| match count {
            ByteCount::Fixed(bytes) => format::bytes(*bytes),
            ByteCount::Text(text) => format::template(plan, text),
        };
        let after = match &rules.limit_rate_after {
            ByteCount::Fixed(0) => String::new(),
            after => format!(" after {}", count(after)),
        };
        lines.line("rate", format!("each response {}/s{after}", count(&rules.limit_rate)));
    }
    if let Some(hsts) = &rules.hsts {
        let subdomains = if hsts.subdomains { ", subdomains too" } else { "" };
        let preload = if hsts.preload { ", preload" } else { "" };
        lines.line("HSTS", format!("HTTPS only for {}{subdomains}{preload}", format::time(hsts.max_age)));
    }
    if rules.compress.as_ref().is_some_and(|compress| compress.decodes) {
        lines.line("decode", "gzip for clients that do not accept it");
    }
    match rules.compress.as_ref().filter(|compress| !compress.levels.is_empty()) {
        Some(compress) => {
            let levels: Vec<String> = compress
                .levels
                .iter()
                .map(|level| format!("{} at level {}", level.coding.token(), level.level))
                .collect();
            lines.line(
                "compress",
                format!(
                    "{}; {} of at least {}",
                    levels.join(", then "),
                    compress.types.join(", "),
                    format::bytes(compress.bytes_min)
                ),
            );
        }
        None => lines.line("compress", "off for responses that are made for a request (see encode)"),
    }
    for error_page in &rules.error_pages {
        lines.line("page", of_error_page(plan, error_page));
    }
}

/// Rules under conditions; [`Lines`] has the conditions with their truth already.
pub(super) fn of_blocks(lines: &mut Lines, plan: &Plan, rules: &Rules) {
    // Those of logs are shown with these.
    for block in rules.when.iter().filter(|block| block.rules.log_skips == 0) {
        let conditions: Vec<&str> = block.conditions.iter().map(|condition| condition.source()).collect();
        lines.line("when", conditions.join(" && "));
        let mut inner = Lines::default();
        of_guards(&mut inner, plan, &block.rules);
        if let Some(cached) = &block.rules.cache {
            of_cache_exceptions(&mut inner, plan, cached);
        }
        of_fields(&mut inner, plan, "response", &block.rules.response_fields);
        inner.text().lines().for_each(|line| lines.line("", line));
    }
}

/// Changes of the path before the action.
pub(super) fn of_rewrites(lines: &mut Lines, plan: &Plan, rewrites: &[Rewrite]) {
    for rewrite in rewrites {
        let from = match &rewrite.from {
            RewriteFrom::Prefix(prefix) => format!("{prefix} at the start"),
            RewriteFrom::Regex { pattern, .. } => pattern.clone(),
        };
        let then = match rewrite.then {
            Then::Next => "",
            Then::Stop => ", and no further rewrites",
            Then::Route => ", and a route is chosen anew",
        };
        let when: Vec<&str> = rewrite.when.iter().map(|condition| condition.source()).collect();
        let when = if when.is_empty() { String::new() } else { format!(" if {}", when.join(" && ")) };
        lines.line("rewrite", format!("{from} becomes {}{then}{when}", format::template(plan, &rewrite.to)));
    }
}

fn of_cors(cors: &Cors) -> String {
    let origins = match &cors.origins {
        Origins::Any | Origins::Echoed => "pages of any origin".to_owned(),
        Origins::These(origins) => format!("pages of {}", origins.join(", ")),
    };
    let list = |name: &str, names: &[String]| match names.is_empty() {
        true => String::new(),
        false => format!("; {name} {}", names.join(", ")),
    };
    let credentials = if cors.credentials { "; with cookies" } else { "" };
    let age = cors
        .age_max
        .map_or_else(String::new, |time| format!("; preflights are kept for {}", format::time(time)));
    format!(
        "{origins} may read responses{}{}{}{credentials}{age}",
        list("methods", &cors.methods),
        list("request fields", &cors.headers),
        list("scripts see", &cors.expose)
    )
}

fn of_cache(lines: &mut Lines, plan: &Plan, cached: &Cached) {
    let rules = &cached.rules;
    let valid: Vec<String> = rules
        .valid
        .iter()
        .map(|valid| {
            let time = match valid.time.is_zero() {
                true => "as long as the response says".to_owned(),
                false => format!("for {}", format::time(valid.time)),
            };
            format!("{} {time}", format::statuses(&valid.statuses))
        })
        .collect();
    lines.line("cache", format!("GET and HEAD; if the response does not say it: {}", valid.join(", ")));
    let key = cached.key.as_ref().map(|key| format::template(plan, key));
    lines.line("cache key", key.unwrap_or_else(|| "scheme, host, path and query".to_owned()));
    of_cache_exceptions(lines, plan, cached);
    if rules.uses_min > 1 {
        lines.line("cache", format!("from request {} for it on", rules.uses_min));
    }
    if !rules.stale_time.is_zero() {
        let statuses = match rules.stale_statuses.is_empty() {
            true => String::new(),
            false => format!(" or responds with {}", format::statuses(&rules.stale_statuses)),
        };
        let time = format::time(rules.stale_time);
        lines.line("cache", format!("a stale response is used for {time} if the upstream fails{statuses}"));
    }
    if !rules.updating_time.is_zero() {
        let time = format::time(rules.updating_time);
        lines.line("cache", format!("a stale response is used for {time} while it is fetched again"));
    }
    if let Some(bytes) = rules.slice_bytes {
        lines.line("cache", format!("ranges are fetched in slices of {}", format::bytes(bytes)));
    }
    let ignored = [
        (rules.ignored.cache_control, "Cache-Control"),
        (rules.ignored.expires, "Expires"),
        (rules.ignored.set_cookie, "Set-Cookie"),
        (rules.ignored.vary, "Vary"),
        (rules.ignores_requests, "Cache-Control of requests"),
    ];
    let ignored: Vec<&str> = ignored.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    if !ignored.is_empty() {
        lines.line("cache", format!("ignores {}", ignored.join(", ")));
    }
    if !rules.says_status {
        lines.line("cache", "no Cache-Status field in responses");
    }
}

fn of_cache_exceptions(lines: &mut Lines, plan: &Plan, cached: &Cached) {
    let all =
        [("not used", &cached.bypass), ("refreshed", &cached.refresh), ("not stored", &cached.no_store)];
    for (name, texts) in all {
        let texts: Vec<String> = texts.iter().map(|text| format::template(plan, text)).collect();
        match &texts[..] {
            [] => {}
            [one] if one == "1" => lines.line("cache", name),
            _ => lines.line("cache", format!("{name} if {} is neither empty nor 0", texts.join(" or "))),
        }
    }
}

/// How long clients may use a response.
fn of_expires(plan: &Plan, expires: &Expires) -> String {
    let fields = "successful response (Expires, Cache-Control)";
    match expires {
        Expires::Text(text, _) => {
            format!("from {}, on successful responses (Expires, Cache-Control)", format::template(plan, text))
        }
        Expires::Fixed(Validity::Max) => format!("ten years after a {fields}"),
        Expires::Fixed(Validity::Daily(second)) => {
            format!("at {:02}:{:02} UTC after a {fields}", second / 3600, second / 60 % 60)
        }
        Expires::Fixed(Validity::Seconds(seconds @ 0.., from)) => {
            let time = format::time(Duration::from_secs(seconds.unsigned_abs()));
            match from {
                ExpiresFrom::Now => format!("{time} after a {fields}"),
                ExpiresFrom::Modified => format!("{time} after Last-Modified of a {fields}"),
            }
        }
        Expires::Fixed(Validity::Never | Validity::Seconds(..)) => {
            "at once: Cache-Control: no-cache".to_owned()
        }
    }
}

fn of_cookie(plan: &Plan, rule: &CookieRule) -> String {
    let shown = |matcher: &Matcher| match matcher {
        Matcher::Text(text) => format::template(plan, text),
        Matcher::Pattern { pattern, .. } => format!("~{pattern}"),
    };
    match rule {
        CookieRule::Domain { from, to } if to.0.is_empty() => format!("Domain {} is removed", shown(from)),
        CookieRule::Domain { from, to } => {
            format!("Domain {} becomes {}", shown(from), format::template(plan, to))
        }
        CookieRule::Path { from: from @ Matcher::Text(_), to } => {
            format!("{} at the start of Path becomes {}", shown(from), format::template(plan, to))
        }
        CookieRule::Path { from, to } => {
            format!("Path {} becomes {}", shown(from), format::template(plan, to))
        }
        CookieRule::Flags { name, flags } => {
            let flag = |flag: &CookieFlag| match flag {
                CookieFlag::Secure(is_on) => format!("Secure {}", if *is_on { "on" } else { "off" }),
                CookieFlag::HttpOnly(is_on) => format!("HttpOnly {}", if *is_on { "on" } else { "off" }),
                CookieFlag::SameSite(Some(site)) => format!("SameSite {site:?}"),
                CookieFlag::SameSite(None) => "SameSite off".to_owned(),
            };
            let name = match shown(name) {
                all if all == "*" => "all".to_owned(),
                name => name,
            };
            format!("{name}: {}", flags.iter().map(flag).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Field changes, one a line: those of credentials without their value.
fn of_fields(lines: &mut Lines, plan: &Plan, name: &str, fields: &[FieldRule]) {
    for rule in fields {
        let is_secret =
            rule.name.eq_ignore_ascii_case("authorization") || rule.name.eq_ignore_ascii_case("cookie");
        let value = |template| match is_secret {
            true => "…".to_owned(),
            false => short(&format::template(plan, template)),
        };
        let change = match &rule.change {
            FieldChange::Set(to) => format!("{}: {}", rule.name, value(to)),
            FieldChange::Add(to) => format!("one more {}: {}", rule.name, value(to)),
            FieldChange::Default(to) => format!("{}: {}, unless there is one", rule.name, value(to)),
            FieldChange::Remove => format!("no {}", rule.name),
            FieldChange::Trailer(to) => format!("trailer {}: {}", rule.name, value(to)),
        };
        let when = if rule.when == When::Success { "; successful responses only" } else { "" };
        lines.line(name, format!("{change}{when}"));
    }
}

fn of_error_page(plan: &Plan, error_page: &ErrorPage) -> String {
    let status = error_page.status.map_or_else(String::new, |status| format!(", as {status}"));
    let of_upstreams = if error_page.of_upstreams { ", also for those of upstreams" } else { "" };
    let statuses = format::statuses(&error_page.statuses);
    format!("for {statuses}: {}{status}{of_upstreams}", page(plan, &error_page.page))
}

fn page(plan: &Plan, page: &Page) -> String {
    match &page.source {
        PageSource::Text(text) => format!("the text {:?}", short(text)),
        PageSource::File(path) => format!("the file {}", path.display()),
        PageSource::Route { to: Reroute::Named(name), .. } => format!("the route {name}"),
        PageSource::Route { to: Reroute::Path(to), .. } => {
            format!("the route of {}", format::template(plan, to))
        }
    }
}

fn short(text: &str) -> String {
    let shown: String = text.chars().take(TEXT_SHOWN_MAX).collect();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}
