//! Commands of the operator to the renderer.

use flatout_prerender::{PreviewPlan, Renderer, WarmPlan, requests_by_crawler};

use super::{NO_RENDERER, socket};
use crate::live::{Live, Opened};

/// Crawlers that the status shows.
const CRAWLERS_MAX: usize = 10;

/// A page of a site with a renderer.
struct Page {
    site: String,
    is_https: bool,
    authority: String,
    target: String,
}

impl Page {
    /// Reads the URL of a page.
    ///
    /// # Errors
    /// It is no URL of a site with a renderer.
    fn of(opened: &Opened, url: &str) -> Result<Page, String> {
        let wrong = || {
            format!(
                "got `{url}`, need the URL of a page or of a sitemap, such as https://example.org/sitemap.xml"
            )
        };
        let (is_https, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let site = opened.sites.rendered_site(authority.as_bytes());
        let site = site.ok_or_else(|| format!("`{authority}`: no site with this host has `prerender`"))?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Page { site: site.to_owned(), is_https, authority: authority.to_owned(), target })
    }

    /// Reads a path of the first site with a renderer.
    ///
    /// # Errors
    /// None of the sites has one.
    fn of_path(opened: &Opened, path: &str) -> Result<Page, String> {
        let site = opened.sites.rendered_sites().next().ok_or_else(|| NO_RENDERER.to_owned())?;
        // A site for all hosts, or for a pattern, has a name that is none.
        let is_name = site.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
        let is_its_host = is_name && opened.sites.rendered_site(site.as_bytes()) == Some(site);
        let authority = if is_its_host { site } else { "localhost" }.to_owned();
        Ok(Page { site: site.to_owned(), is_https: false, authority, target: path.to_owned() })
    }
}

fn renderer_of(opened: &Opened) -> Result<&Renderer, String> {
    opened.prerender.as_ref().ok_or_else(|| NO_RENDERER.to_owned())
}

/// Renders a page and reports on it, as one page of HTML. `what` is a URL, or a path of the first site with a renderer.
pub(crate) fn preview(live: &Live, what: &str) -> Result<String, String> {
    let opened = live.opened();
    let renderer = renderer_of(&opened)?;
    let what = what.trim();
    let page = if what.starts_with('/') { Page::of_path(&opened, what)? } else { Page::of(&opened, what)? };
    let Page { site, is_https, authority, target } = page;
    renderer.preview(PreviewPlan { socket: socket("site", &site), is_https, authority, target })
}

/// Renders pages before they are requested. `lines` has the agent, then the URL of a page or of a sitemap in each line; all have the same
/// scheme and host.
pub(crate) fn warm(live: &Live, lines: &str) -> Result<String, String> {
    let opened = live.opened();
    let renderer = renderer_of(&opened)?;
    let mut lines = lines.lines();
    let agent =
        lines.next().filter(|agent| !agent.is_empty()).unwrap_or(flatout_prerender::WARM_AGENT).to_owned();
    let mut plans: Vec<WarmPlan> = Vec::new();
    for line in lines {
        let Page { site, is_https, authority, target } = Page::of(&opened, line)?;
        match plans.iter_mut().find(|plan| plan.is_https == is_https && plan.authority == authority) {
            Some(plan) => plan.targets.push(target),
            None => plans.push(WarmPlan {
                socket: socket("site", &site),
                is_https,
                authority,
                targets: vec![target],
                agent: agent.clone(),
            }),
        }
    }
    let mut coming = 0;
    for plan in plans {
        coming = renderer.warm(plan)?;
    }
    Ok(format!("warming up: {coming} pages and sitemaps to come"))
}

/// What a renderer does, in words.
pub(crate) fn status(live: &Live) -> Result<String, String> {
    let opened = live.opened();
    let figures = renderer_of(&opened)?.figures();
    let outcomes = flatout_prerender::RenderOutcome::ALL.into_iter().zip(figures.outcomes);
    let outcomes: Vec<String> =
        outcomes.map(|(outcome, count)| format!("{} {count}", outcome.label())).collect();
    let rendered = figures.outcomes.iter().take(2).sum::<u64>().max(1);
    let page_ms = figures.page_time.as_millis() / u128::from(rendered);
    let names = requests_by_crawler().into_iter().take(CRAWLERS_MAX);
    let names: Vec<String> =
        names.map(|(crawler, count)| format!("{} {count}", crawler.map_or("other", |it| it.name))).collect();
    let crawlers =
        if names.is_empty() { String::new() } else { format!("\ncrawlers   {}", names.join(", ")) };
    let limits =
        if figures.limits.is_empty() { String::new() } else { format!("; limits: {}", figures.limits) };
    Ok(format!(
        "requests   {}\npages      {} open, {} waiting, {page_ms} ms each, {} MiB, {} killed for their memory\n\
         browsers   {} started{limits}\nfetched    {} requests of pages, and {} refused\nwarm-up    {} done, {} to come, {} refreshed{}{crawlers}",
        outcomes.join(", "),
        figures.active,
        figures.waiting,
        figures.memory_bytes >> 20,
        figures.killed,
        figures.browsers,
        figures.requests.saturating_sub(figures.refused),
        figures.refused,
        figures.warmed,
        figures.warming,
        figures.refreshed,
        if figures.paused > 0 { "; waits for the hours of prerender-quiet" } else { "" },
    ))
}
