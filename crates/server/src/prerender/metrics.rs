//! The figures of a renderer.

use flatout_admin::CrawlerRequests;
use flatout_admin::upstreams::RendererSnapshot;
use flatout_observe::metrics::{Family, Kind, Value};
use flatout_prerender::{Crawler, RenderOutcome, Renderer, Verification, requests_by_crawler};
use flatout_site::verified_crawlers;

/// The figures for the live page.
pub(crate) fn snapshot(renderer: &Renderer) -> RendererSnapshot {
    let figures = renderer.figures();
    let verified = verified_crawlers();
    let count = |name: &str, result: Verification| {
        let mut found = verified.iter().filter(|(of, is, _)| *of == name && *is == result);
        found.next().map_or(0, |(.., count)| *count)
    };
    let crawlers = requests_by_crawler().into_iter().map(|(crawler, requests)| {
        let name = crawler.map_or("", |crawler| crawler.name);
        CrawlerRequests {
            name: name.to_owned(),
            kind: crawler.map_or("", |crawler| crawler.kind.name()).to_owned(),
            requests,
            verified: count(name, Verification::Verified),
            forged: count(name, Verification::Forged),
        }
    });
    let crawlers: Vec<CrawlerRequests> = crawlers.collect();
    RendererSnapshot {
        requests: crawlers.iter().map(|crawler| crawler.requests).sum(),
        misses: figures.for_clients,
        rendered: figures.outcome(RenderOutcome::Rendered) + figures.outcome(RenderOutcome::Late),
        skipped: RenderOutcome::ALL
            .into_iter()
            .filter(|outcome| outcome.is_skipped())
            .map(|outcome| figures.outcome(outcome))
            .sum(),
        page_time: figures.page_time,
        active: figures.active,
        waiting: figures.waiting,
        memory_bytes: figures.memory_bytes,
        warming: figures.warming,
        crawlers,
    }
}

/// Requests of crawlers, and checks of their addresses.
fn crawler_families() -> [Family; 2] {
    let mut requests = Family::new(
        "flatout_prerender_crawler_requests",
        Kind::Counter,
        "Requests for rendered pages, by crawler; `other` is in no list",
    );
    for (crawler, count) in requests_by_crawler() {
        let labels = |crawler: Crawler| [("crawler", crawler.name), ("kind", crawler.kind.name())];
        let labels = crawler.map_or([("crawler", "other"), ("kind", "other")], labels);
        requests.add(&labels, Value::Count(count));
    }
    let mut checks = Family::new(
        "flatout_prerender_crawler_checks",
        Kind::Counter,
        "Addresses of crawlers that were checked, by crawler and result",
    );
    for (name, result, count) in verified_crawlers() {
        checks.add(&[("crawler", name), ("result", result.name())], Value::Count(count));
    }
    [requests, checks]
}

/// The figures of a renderer for metrics.
pub(crate) fn collect(renderer: &Renderer, into: &mut Vec<Family>) {
    let figures = renderer.figures();
    let one = |kind, name, help, value| {
        let mut family = Family::new(name, kind, help);
        family.add(&[], value);
        family
    };
    let mut renders =
        Family::new("flatout_prerender_requests", Kind::Counter, "Requests to the renderer, by outcome");
    for (outcome, count) in flatout_prerender::RenderOutcome::ALL.into_iter().zip(figures.outcomes) {
        renders.add(&[("outcome", outcome.label())], Value::Count(count));
    }
    let mut times = Family::new(
        "flatout_prerender_milliseconds",
        Kind::Counter,
        "Milliseconds of the renderer's requests, by phase",
    );
    for (phase, time) in
        [("fetch", figures.fetch_time), ("wait", figures.wait_time), ("page", figures.page_time)]
    {
        times.add(&[("phase", phase)], Value::Count(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    }
    let mut requests = Family::new(
        "flatout_prerender_page_requests",
        Kind::Counter,
        "Requests of rendered pages, by whether they were refused",
    );
    for (refused, count) in
        [("no", figures.requests.saturating_sub(figures.refused)), ("yes", figures.refused)]
    {
        requests.add(&[("refused", refused)], Value::Count(count));
    }
    into.extend(crawler_families());
    into.extend([
        renders,
        times,
        requests,
        one(
            Kind::Gauge,
            "flatout_prerender_pages",
            "Pages that are being rendered",
            Value::Count(figures.active),
        ),
        one(
            Kind::Gauge,
            "flatout_prerender_waiting",
            "Requests that wait for a page",
            Value::Count(figures.waiting),
        ),
        one(
            Kind::Gauge,
            "flatout_prerender_memory_bytes",
            "Memory of pages",
            Value::Count(figures.memory_bytes),
        ),
        one(
            Kind::Counter,
            "flatout_prerender_refreshed_pages",
            "Pages rendered again before they expired",
            Value::Count(figures.refreshed),
        ),
        one(Kind::Counter, "flatout_prerender_browsers", "Browsers started", Value::Count(figures.browsers)),
        one(
            Kind::Counter,
            "flatout_prerender_killed_pages",
            "Pages killed because of their memory",
            Value::Count(figures.killed),
        ),
    ]);
}
