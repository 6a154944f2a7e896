//! The route that renders the pages of another one for crawlers: it has the same paths and rules, and comes before it.

use std::ops::Range;
use std::time::Duration;

use flatout_config::Mistake;
use flatout_prerender::CrawlerKind;
use flatout_proxy::Forward;
use flatout_server::prerender;
use flatout_site::plan::{
    Action, Cached, Condition, FieldChange, FieldRule, Route, RouteEntry, Rules, Template, When, WhenBlock,
};

use super::options::ServeOptions;
use super::site::Reader;

/// The part of a page's time, and its least, in which it is rendered again with `prerender-refresh`.
const REFRESH_SHARE: u32 = 10;
const REFRESH_TIME_MIN: Duration = Duration::from_secs(60);

/// Which crawlers have to be who they claim to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VerifiedCrawlers {
    None,
    /// Those whose operators publish names.
    Verifiable,
    All,
}

/// Who gets rendered pages, and for how long they are stored.
#[derive(Debug, Clone)]
pub(super) struct PrerenderOptions {
    pub(super) is_on: bool,
    pub(super) kinds: Vec<CrawlerKind>,
    /// In place of these kinds.
    pub(super) when: Option<Condition>,
    pub(super) verified: VerifiedCrawlers,
    pub(super) time: Duration,
    pub(super) stale: Duration,
}

impl Default for PrerenderOptions {
    fn default() -> PrerenderOptions {
        PrerenderOptions {
            is_on: false,
            kinds: CrawlerKind::ALL.to_vec(),
            when: None,
            verified: VerifiedCrawlers::None,
            time: Duration::from_secs(24 * 3600),
            stale: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// A route, and before it the one that renders its pages for crawlers, if it has one.
pub(super) fn rendered(
    reader: Reader<'_>,
    mut route: Route,
    at: &Range<usize>,
    options: &ServeOptions,
    site: &str,
) -> Result<Vec<Route>, Mistake> {
    let rendering = options.rendering(&mut route, site);
    let rendering = rendering.map_err(|message| reader.tree.mistake(at, message))?;
    Ok(rendering.into_iter().chain([route]).collect())
}

impl ServeOptions {
    /// The route for crawlers, if `route` has one. `route` then says that its pages differ by `User-Agent`.
    ///
    /// # Errors
    /// The route has rules that a page of a cache must not evade.
    fn rendering(&self, route: &mut Route, site: &str) -> Result<Option<Route>, String> {
        let renders = matches!(route.action, Action::Files(_) | Action::Proxy(_) | Action::Reroute(_));
        let is_public = matches!(route.entry, RouteEntry::Paths | RouteEntry::BeforePaths);
        if !self.prerender.is_on
            || !renders
            || !is_public
            || self.prerender.kinds.is_empty() && self.prerender.when.is_none()
        {
            return Ok(None);
        }
        if route.rules.has_authentication() {
            let message = "prerender: a route with basic-auth or forward-auth has no pages for everybody; add `prerender off` to it";
            return Err(message.to_owned());
        }
        let upstream = self.renderer_of(site);
        let forward = Forward { upgrade: Vec::new(), ..Forward::to(upstream) };
        let mut rendering = Route::new(route.path.clone(), Action::Proxy(forward));
        rendering.name = format!("{} for crawlers", route.name);
        rendering.methods.clone_from(&route.methods);
        rendering.entry = route.entry;
        rendering.paths = route.paths;
        rendering.when.clone_from(&route.when);
        rendering.when.push(self.internal("wants_page"));
        rendering.when.push(self.prerender.when.clone().unwrap_or_else(|| self.of_kinds()));
        match self.prerender.verified {
            VerifiedCrawlers::None => {}
            VerifiedCrawlers::Verifiable => {
                rendering
                    .when
                    .push(self.internal("crawler.verification in ['', 'verified', 'unverifiable']"));
            }
            VerifiedCrawlers::All => rendering.when.push(self.internal("crawler.verification == 'verified'")),
        }
        rendering.rules = self.rules_of_rendering(&route.rules);
        route.rules.when.push(WhenBlock {
            conditions: vec![self.internal("header['accept'].contains('text/html')")],
            rules: Rules { response_fields: vec![add("Vary", "User-Agent")], ..Rules::default() },
        });
        Ok(Some(rendering))
    }

    /// The rules of the route for crawlers. The page itself passes the rules for responses of its own route.
    fn rules_of_rendering(&self, rules: &Rules) -> Rules {
        let PrerenderOptions { time, stale, .. } = self.prerender;
        let mut rules = rules.clone();
        rules.error_pages.clear();
        rules.locations.clear();
        rules.cookies.clear();
        rules.expires = None;
        let mut cached = Cached::default();
        cached.rules.ignores_requests = true;
        cached.is_rendered = true;
        rules.cache = Some(cached);
        // Pages that are refreshed become stale while they may still be used: nobody gets an expired one meanwhile.
        let early = if self.renderer.refresh > 0 {
            (time / REFRESH_SHARE).max(REFRESH_TIME_MIN).min(time / 2)
        } else {
            Duration::ZERO
        };
        let (fresh, stale) = (time - early, stale + early);
        let lifetime = format!("max-age={}, stale-while-revalidate={}", fresh.as_secs(), stale.as_secs());
        rules.request_fields.push(set("X-Prerender-Cache", &lifetime));
        rules.response_fields.push(FieldRule {
            change: FieldChange::Remove,
            name: "Flatout-Cache-Control".to_owned(),
            when: When::Always,
        });
        rules.response_fields.push(add("Vary", "User-Agent"));
        rules
    }

    /// Requests of crawlers of the chosen kinds.
    fn of_kinds(&self) -> Condition {
        let kinds: Vec<String> =
            self.prerender.kinds.iter().map(|kind| format!("'{}'", kind.name())).collect();
        self.internal(&format!("crawler.kind in [{}]", kinds.join(", ")))
    }

    /// A condition that is written here.
    fn internal(&self, text: &str) -> Condition {
        match self.condition(text) {
            Ok(condition) => condition,
            Err(fault) => unreachable!("`{text}`: {}", fault.reason),
        }
    }

    /// The index of the upstream that renders the pages of a site.
    fn renderer_of(&self, site: &str) -> usize {
        let upstream = prerender::upstream(site, &self.renderer);
        let mut shared = self.shared.borrow_mut();
        if let Some(index) = shared.upstreams.iter().position(|known| known.name == upstream.name) {
            return index;
        }
        // Its name has a blank, so no file can have it.
        shared.known.push(upstream.name.clone());
        shared.upstreams.push(upstream);
        shared.rendered.push(site.to_owned());
        shared.upstreams.len() - 1
    }
}

fn set(name: &str, value: &str) -> FieldRule {
    FieldRule { change: FieldChange::Set(Template::text(value)), name: name.to_owned(), when: When::Always }
}

fn add(name: &str, value: &str) -> FieldRule {
    FieldRule { change: FieldChange::Add(Template::text(value)), name: name.to_owned(), when: When::Always }
}
