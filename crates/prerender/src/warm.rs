//! Warm-up: pages are requested from the site as a crawler does, one after the other, so that they are in the cache before one comes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri};

use crate::figures::Counters;
use crate::refresh::{Background, WARM_AGENT};
use crate::walls::{Fetcher, PageOrigin, PageRequest, RequestTarget};

/// Pages of one warm-up, and of all that wait.
pub const WARM_PAGES_MAX: usize = 50_000;

/// Pages to render before they are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmPlan {
    /// The site's own socket.
    pub socket: PathBuf,
    /// The scheme of the pages.
    pub is_https: bool,
    /// Host and port of the pages.
    pub authority: String,
    /// Path and query of each page, or of sitemaps, which end with `.xml`.
    pub targets: Vec<String>,
    /// The `User-Agent` of the crawler.
    pub agent: String,
}

/// Requests the pages. At most one is rendered at a time, so crawlers find room.
pub(crate) async fn warm(plan: WarmPlan, background: Arc<Background>, counters: Arc<Counters>) {
    let WarmPlan { socket, is_https, authority, targets, agent } = plan;
    let page = PageOrigin { is_https, authority };
    let agent = HeaderValue::from_str(&agent).unwrap_or(HeaderValue::from_static(WARM_AGENT));
    let fetcher = Fetcher::new(socket, page.clone(), None, agent);
    let mut known: HashSet<String> = targets.iter().cloned().collect();
    let mut queue: Vec<String> = targets.into_iter().rev().collect();
    counters.warming.fetch_add(queue.len() as u64, Ordering::Relaxed);
    while let Some(target) = queue.pop() {
        background.turn(&counters).await;
        let is_sitemap = target.split('?').next().is_some_and(|path| path.ends_with(".xml"));
        let (method, fields, body) = (Method::GET, HeaderMap::new(), Bytes::new());
        let request = PageRequest { to: RequestTarget::Own { target }, method, fields, body };
        let fetched = fetcher.fetch_unmarked(request).await;
        counters.warming.fetch_sub(1, Ordering::Relaxed);
        counters.warmed.fetch_add(1, Ordering::Relaxed);
        if !is_sitemap {
            background.pause().await;
        }
        if let (true, Ok(fetched)) = (is_sitemap, fetched) {
            for found in locations(&String::from_utf8_lossy(&fetched.body), &page) {
                if known.len() < WARM_PAGES_MAX && known.insert(found.clone()) {
                    counters.warming.fetch_add(1, Ordering::Relaxed);
                    queue.push(found);
                }
            }
        }
    }
}

/// The targets of a sitemap that belong to this site (<https://www.sitemaps.org/protocol.html>).
fn locations(sitemap: &str, page: &PageOrigin) -> Vec<String> {
    let inside = sitemap.split("<loc>").skip(1).filter_map(|rest| rest.split_once("</loc>"));
    let urls = inside.map(|(url, _)| url.trim().replace("&amp;", "&"));
    let targets = urls.filter_map(|url| {
        let url: Uri = url.parse().ok()?;
        let target = url.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        page.has(&url).then_some(target)
    });
    targets.take(WARM_PAGES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_site_are_read_from_its_sitemap() {
        let page = PageOrigin { is_https: true, authority: "a.test".to_owned() };
        let sitemap = "<?xml version='1.0'?><urlset><url><loc> https://a.test/x?y=1&amp;z=2 </loc></url>\
            <url><loc>http://a.test/plain</loc></url><url><loc>https://b.test/</loc></url><url><loc>https://a.test</loc></url>\
            <url><loc>nonsense</loc></url><loc>https://a.test/open";
        assert_eq!(locations(sitemap, &page), ["/x?y=1&z=2", "/"]);
    }
}
