//! Settings of pages that a browser renders for crawlers.

use flatout_prerender::{Crawler, CrawlerKind, RenderRate};
use flatout_site::plan::CrawlerAddresses;

use crate::serve::parse;
use crate::serve::prerender::VerifiedCrawlers;
use crate::serve::setting::{Key, ROUTES, SERVERS, ServeSetting};
use crate::value;

const fn kind(name: &'static str, help: &'static str) -> Key {
    Key { name, value: "on|off", default: "on", help }
}

/// Pages in a time; `off` is no limit.
fn budget(text: &str) -> Result<Option<RenderRate>, String> {
    if text == "off" {
        return Ok(None);
    }
    let (pages, window) = parse::rate(text)?;
    Ok(Some(RenderRate { pages, window }))
}

pub(in crate::serve) const PRERENDER: &[ServeSetting] = &[
    ServeSetting {
        name: "prerender",
        value: "[on|off]",
        default: "off",
        help: "crawlers and fetchers of link previews get pages as a browser has drawn them (see prerender-for), people get them as \
               they are; needs Debian's chromium; for routes with files, proxy and reroute",
        set: |options, given| {
            options.prerender.is_on = given.is_on();
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-for",
        value: "[all|none]",
        keys: &[
            kind("search", "search engines"),
            kind("social", "social networks"),
            kind("chat", "messengers"),
            kind("ai", "models and their assistants"),
            kind("tool", "checkers of pages, archives and feeds"),
        ],
        default: "all",
        help: "the kinds of crawlers that get rendered pages, such as ai=off; the list is crates/prerender/crawlers.txt",
        set: |options, given| {
            let rest = given.value(0) != Some("none");
            options.prerender.kinds = CrawlerKind::ALL.to_vec();
            let mut kinds = Vec::new();
            for (kind, name) in CrawlerKind::ALL.into_iter().zip(["search", "social", "chat", "ai", "tool"]) {
                if given.read(name, value::switch)?.unwrap_or(rest) {
                    kinds.push(kind);
                }
            }
            options.prerender.kinds = kinds;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-when",
        value: "EXPR",
        help: "who gets rendered pages, in place of the crawlers of prerender-for: requests for pages for which this is true, such as \
               arg['render'] == '1'",
        set: |options, given| {
            let condition = options.condition(given.text()).map_err(|fault| fault.reason)?;
            options.prerender.when = Some(condition);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-verify",
        value: "[on|all|off]",
        default: "off",
        help: "verify crawlers: the name of the address by reverse DNS belongs to the operator, and leads back to the address. Others get the \
               page as it is, also until the check is done; on: crawlers whose operators publish no names are not checked; all: they get \
               the page as it is",
        set: |options, given| {
            options.prerender.verified = match given.value(0) {
                None | Some("on") => VerifiedCrawlers::Verifiable,
                Some("all") => VerifiedCrawlers::All,
                Some("off") => VerifiedCrawlers::None,
                Some(other) => return Err(format!("got `{other}`, need on, all or off").into()),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-addresses",
        value: "CRAWLER FILE",
        help: "addresses that the operator of a crawler has published, as JSON (googlebot.json, bingbot.json, gptbot.json) or with one network a line: \
               this crawler is verified by them, and by DNS only from other addresses; the file is read again when it changes",
        set: |options, given| {
            let (name, file) = (given.text(), given.value(1).unwrap_or_default());
            let crawler = Crawler::of(name).ok_or_else(|| {
                let names: Vec<&str> = Crawler::names().collect();
                let guess = flatout_config::closest(name, &names).unwrap_or("Googlebot");
                format!("got `{name}`, need the name of a crawler, such as {guess}")
            })?;
            let path = options.path(file);
            options.crawler_addresses.push(CrawlerAddresses { crawler: crawler.name.to_owned(), path });
            Ok(())
        },
        is_list: true,
        is_spread: true,
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-time",
        value: "TIME",
        default: "1d",
        help: "how long a rendered page is fresh in the cache",
        set: |options, given| {
            options.prerender.time = value::time(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-stale",
        value: "TIME",
        default: "7d",
        help: "how long after that it is still served while it is rendered again",
        set: |options, given| {
            options.prerender.stale = value::time(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "prerender-allow",
        value: "ORIGIN…",
        help: "origins that pages may fetch from besides their own site, such as https://api.example.com or https://*.example.com; \
               names that lead to addresses of this machine or of private networks are refused: put those behind a route",
        set: |options, given| {
            options.renderer.allow = given.values().map(str::parse).collect::<Result<_, _>>()?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-pages",
        value: "N",
        default: "2",
        help: "pages that are rendered at the same time",
        set: |options, given| {
            options.renderer.pages = parse::at_least_one(given.text())?;
            Ok(options.renderer.check()?)
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-queue",
        value: "N",
        default: "32",
        help: "requests that wait for a page; others get the page as it is, with X-Prerender: skipped",
        set: |options, given| {
            options.renderer.queue = value::number(given.text())?;
            Ok(options.renderer.check()?)
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-client-budget",
        value: "RATE",
        default: "120/m",
        help: "pages that are rendered for one client, such as 30/m, or off; beyond that it gets pages as they are, with X-Prerender: skipped; pages \
               in the cache do not count",
        set: |options, given| {
            options.renderer.client_budget = budget(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-site-budget",
        value: "RATE",
        default: "off",
        help: "pages that are rendered for one site, such as 300/m, or off",
        set: |options, given| {
            options.renderer.site_budget = budget(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-refresh",
        value: "N",
        default: "0",
        help: "the most used pages of all sites, which are rendered again before they expire, one after the other",
        set: |options, given| {
            options.renderer.refresh = value::number(given.text())?;
            Ok(options.renderer.check()?)
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-quiet",
        value: "HOURS",
        default: "off",
        help: "hours of the day, in UTC, such as 02:00-05:00, or off, in which pages are rendered that nobody waits for: those of warm-ups and of prerender-refresh",
        set: |options, given| {
            options.renderer.quiet = if given.text() == "off" { None } else { Some(given.text().parse()?) };
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-warm-rate",
        value: "RATE",
        default: "off",
        help: "how many pages a warm-up and prerender-refresh request in a time, such as 30/m; off: one after the other without a pause",
        set: |options, given| {
            options.renderer.warm_rate = budget(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-page-time",
        value: "TIME",
        default: "10s",
        help: "how long a page may take; then it is taken as it is, and stored for a minute only",
        set: |options, given| {
            options.renderer.page_time = value::time(given.text())?;
            Ok(options.renderer.check()?)
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-page-memory",
        value: "BYTES",
        default: "512MiB",
        help: "memory of a page; above, its process is killed, and the crawler gets the page as it is",
        set: |options, given| {
            options.renderer.page_memory_bytes = value::bytes(given.text())?;
            Ok(options.renderer.check()?)
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-browser-pages",
        value: "N",
        default: "500",
        help: "pages after which the browser is replaced by a new one",
        set: |options, given| {
            options.renderer.pages_per_browser = parse::at_least_one(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-browser",
        value: "PROGRAM",
        default: "chromium",
        help: "the browser: chromium, as a path or a name",
        set: |options, given| {
            options.renderer.program = given.text().into();
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "prerender-sandbox",
        value: "[on|off]",
        default: "on",
        help: "chromium's sandbox, which needs user namespaces; off: a page that breaks out of chromium has the rights of its user",
        set: |options, given| {
            options.renderer.has_sandbox = given.is_on();
            Ok(())
        },
        ..SERVERS
    },
];
