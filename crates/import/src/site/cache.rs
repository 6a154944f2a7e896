//! `proxy_cache`, `fastcgi_cache`, `uwsgi_cache`, `scgi_cache` and related directives.

use std::ops::RangeInclusive;

use flatout_wire::cache::is_never_stored;

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{Lines, line, text, value};
use super::{Import, values};

/// Directives that are looked up where a request is forwarded, without `proxy_` or `fastcgi_`.
pub(super) const SEEN: [&str; 8] = [
    "cache",
    "cache_key",
    "cache_valid",
    "cache_bypass",
    "no_cache",
    "cache_min_uses",
    "cache_use_stale",
    "ignore_headers",
];

/// Sizes of slices that are possible here; the largest with the usual memory.
const SLICE_BYTES: RangeInclusive<u64> = 4 << 10..=16 << 20;

/// How long nginx keeps what nobody asks for, if `inactive` is not given.
const INACTIVE: &str = "10m";

/// A `proxy_cache_path`, or that of another family.
pub(super) struct Store {
    name: String,
    inactive: String,
}

impl<'d> Import<'d> {
    /// Writes the cache folder. There is one, for all sites.
    pub(super) fn stores(&mut self, http: &'d [Directive], top: &mut Lines) {
        for directive in http.iter().filter(|directive| is_path(directive)) {
            let find = |key: &str| directive.texts().into_iter().find_map(|text| text.strip_prefix(key));
            let name = find("keys_zone=").and_then(|zone| zone.split(':').next()).unwrap_or_default();
            let inactive = find("inactive=").and_then(values::time).unwrap_or_else(|| INACTIVE.to_owned());
            self.stores.push(Store { name: name.to_owned(), inactive: inactive.clone() });
            if top.has("cache-dir") {
                self.leave(directive, "there is one folder, which all sites share", top);
                continue;
            }
            self.fates.carried(directive);
            // Not the same folder: nginx deletes files that it does not know.
            let folder = format!("{}-flatout", directive.word(0).trim_end_matches('/'));
            top.setting(format!("cache-dir {}", text(&folder)));
            if let Some(size) = find("max_size=").and_then(values::size) {
                top.setting(format!("cache-size {}", text(&size)));
            }
            top.setting(format!("cache-inactive {}", text(&inactive)));
        }
    }

    /// Writes the cache settings of a proxied route.
    pub(super) fn cache(&mut self, chain: &Chain<'d>, family: &str, lines: &mut Lines) {
        let named = |name: &str| format!("{family}_{name}");
        let Some(cache) = chain.find(&named("cache")).filter(|cache| cache.word(0) != "off") else { return };
        let Some(store) = self.stores.iter().find(|store| store.name == cache.word(0)) else {
            let why = format!("there is no {family}_cache_path with this keys_zone");
            return self.leave(cache, &why, lines);
        };
        let inactive = store.inactive.clone();
        let (unstored, is_closed) = self.conditions(chain, &named("no_cache"), lines);
        if is_closed {
            // The responses that it keeps out may be for one person only.
            let why =
                format!("without all of {family}_no_cache it would store too much: nothing is cached here");
            return self.leave(cache, &why, lines);
        }
        self.validity(chain, &named("cache_valid"), lines);
        if let Some(key) = chain.find(&named("cache_key")) {
            // Slices have keys of their own.
            let whole = key.word(0).replace("$slice_range", "").replace("${slice_range}", "");
            match self.unsupported(&whole) {
                None => lines.setting(format!("cache-key {}", text(&whole))),
                Some(why) => {
                    self.leave(key, &format!("{why}; the key is scheme, host, path and query"), lines)
                }
            }
        }
        let (bypassed, _) = self.conditions(chain, &named("cache_bypass"), lines);
        // nginx stores what it got although it did not use the cache.
        let (bypassed, refreshed): (Vec<_>, Vec<_>) =
            bypassed.into_iter().partition(|text| unstored.contains(text));
        for (setting, texts) in
            [("cache-bypass", bypassed), ("cache-refresh", refreshed), ("cache-no-store", unstored)]
        {
            if !texts.is_empty() {
                lines.setting(format!("{setting} {}", texts.join(" ")));
            }
        }
        if let Some(uses) = chain.find(&named("cache_min_uses")) {
            lines.setting(format!("cache-min-uses {}", uses.word(0)));
        }
        self.slice(chain, lines);
        lines.setting(ignored(chain, &named("ignore_headers")));
        self.stale(chain.list(&[&named("cache_use_stale")]), &inactive, lines);
        if !chain.list(&["add_header"]).into_iter().any(is_cache_status) {
            lines.setting("cache-status off".to_owned());
        }
    }

    /// When stale responses are used: as long as nginx keeps them.
    fn stale(&mut self, used: Vec<&'d Directive>, inactive: &str, lines: &mut Lines) {
        let words: Vec<&str> = used.iter().flat_map(|directive| directive.texts()).collect();
        let has = |word: &str| words.contains(&word);
        let statuses: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix("http_")).collect();
        let is_for_failures = has("error") || has("timeout") || has("invalid_header") || !statuses.is_empty();
        let stale = if is_for_failures { inactive } else { "0s" };
        let statuses: String = statuses.iter().map(|status| format!(" {status}")).collect();
        lines.setting(format!("cache-stale {}{statuses}", text(stale)));
        if has("updating") {
            lines.setting(format!("cache-updating {}", text(inactive)));
        }
    }

    /// Ranges are fetched in pieces.
    fn slice(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let Some(slice) = sliced(chain) else { return };
        let bytes = values::bytes(slice.word(0)).filter(|bytes| SLICE_BYTES.contains(bytes));
        match values::size(slice.word(0)).filter(|_| bytes.is_some()) {
            Some(size) => lines.setting(format!("cache-slice {}", text(&size))),
            None => self.leave(slice, "a slice has 4 KiB to 16 MiB, more only with more cache-memory", lines),
        }
    }

    /// How long responses are fresh. For each status the first directive that names it holds, as here.
    fn validity(&mut self, chain: &Chain<'d>, name: &str, lines: &mut Lines) {
        let mut of_200 = None;
        let mut others = Vec::new();
        for directive in chain.list(&[name]) {
            let texts = directive.texts();
            let Some((time, statuses)) = texts.split_last() else { continue };
            let Some(time) = values::time(time) else {
                self.leave(directive, "its time is not understood", lines);
                continue;
            };
            let statuses = if statuses.is_empty() { &["200", "301", "302"] } else { statuses };
            // In nginx slices have the time of a 206, here that of the response that they are part of.
            let of_whole: &[&str] = if sliced(chain).is_some() { &["200", "206"] } else { &["200"] };
            if statuses.iter().any(|status| *status == "any" || of_whole.contains(status)) {
                of_200.get_or_insert(time.clone());
            }
            let rest: Vec<String> = statuses
                .iter()
                .filter(|status| !of_whole.contains(status) && !status.parse().is_ok_and(is_never_stored))
                .map(|status| text(if *status == "any" { "201-599" } else { status }))
                .collect();
            if !rest.is_empty() {
                others.push(format!("cache-valid {} {}", text(&time), rest.join(" ")));
            }
        }
        lines.setting(format!("cache {}", text(of_200.as_deref().unwrap_or("0s"))));
        others.into_iter().for_each(|other| lines.setting(other));
    }

    /// `proxy_cache_bypass` or `proxy_no_cache`: conditions that must all be empty or 0, and whether others are not supported.
    fn conditions(&mut self, chain: &Chain<'d>, name: &str, lines: &mut Lines) -> (Vec<String>, bool) {
        let mut conditions = Vec::new();
        let mut is_partial = false;
        for directive in chain.list(&[name]) {
            for given in directive.texts() {
                match self.unsupported(given) {
                    None => conditions.push(text(given)),
                    Some(why) => {
                        self.leave(directive, &why, lines);
                        is_partial = true;
                    }
                }
            }
        }
        (conditions, is_partial)
    }
}

/// The directive by which ranges are fetched in slices, if they are.
pub(super) fn sliced<'d>(chain: &Chain<'d>) -> Option<&'d Directive> {
    chain.find("slice").filter(|slice| slice.word(0) != "0")
}

/// The fields that the cache ignores. nginx ignores `Cache-Control` of requests.
fn ignored(chain: &Chain<'_>, name: &str) -> String {
    let fields = chain.list(&[name]).into_iter().flat_map(Directive::texts);
    let known = ["cache-control", "expires", "set-cookie", "vary", "x-accel-expires"];
    let fields = fields.map(str::to_ascii_lowercase).filter(|field| known.contains(&field.as_str()));
    fields.fold(line("cache-ignore", "request"), |so_far, field| format!("{so_far} {}", value(&field)))
}

/// Whether this is the folder of a cache.
fn is_path(directive: &Directive) -> bool {
    ["proxy_cache_path", "fastcgi_cache_path", "uwsgi_cache_path", "scgi_cache_path"]
        .contains(&directive.name.as_str())
}

/// Whether this field reports the cache status, which `cache-status` does here.
pub(super) fn is_cache_status(directive: &Directive) -> bool {
    directive.word(0).eq_ignore_ascii_case("x-cache-status") && directive.word(1) == "$upstream_cache_status"
}
