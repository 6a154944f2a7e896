//! A preview of one page: what a person sees, the HTML that a crawler gets, and what a crawler would miss.
//!
//! ```text
//! command ── document ──> page: picture, HTML, errors, refused requests ── own links, one by one ──> report: one page of HTML
//! ```

mod findings;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use tokio_rustls::TlsConnector;

use crate::page::{Document, PageResult};
use crate::pool::{Pool, RenderFault};
use crate::walls::{Fetched, Fetcher, PageOrigin, PageRequest, RequestTarget};
use findings::findings;
use report::{Sides, report};
use tokio::time::Instant;

/// How long links are followed; further ones are not.
const LINKS_TIME_MAX: Duration = Duration::from_secs(20);

/// The page of a preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewPlan {
    /// The site's own socket.
    pub socket: PathBuf,
    /// The scheme of the page.
    pub is_https: bool,
    /// Host and port of the page.
    pub authority: String,
    /// Its path and query.
    pub target: String,
}

/// Renders a page and reports on it, as one page of HTML. The cache is neither used nor changed.
///
/// # Errors
/// The site does not serve the page, or it was not rendered: why.
pub(crate) async fn preview(
    plan: PreviewPlan,
    pool: Arc<Pool>,
    connector: Option<TlsConnector>,
) -> Result<String, String> {
    let PreviewPlan { socket, is_https, authority, target } = plan;
    let page = PageOrigin { is_https, authority };
    let url = page.url(&target);
    let fetcher = |agent: &str| {
        let agent = HeaderValue::from_str(agent).unwrap_or(HeaderValue::from_static("flatout-prerender"));
        Fetcher::new(socket.clone(), page.clone(), connector.clone(), agent)
    };
    let own = fetcher("flatout-prerender");
    let fetched = request(&own, Method::GET, target).await?;
    if fetched.status != 200 {
        return Err(format!(
            "{url}: its status is {}; crawlers get this response as it is, and nothing is rendered",
            fetched.status
        ));
    }
    let plain = String::from_utf8_lossy(&fetched.body).into_owned();
    let document = Document { url: url.clone(), fetched, is_preview: true };
    let rendered = match pool.render(&document, fetcher).await {
        Ok(PageResult::Rendered(rendered)) => rendered,
        Ok(PageResult::Moved(to)) => {
            return Err(format!("{url}: the page goes to {to}; crawlers get a redirect to there"));
        }
        Err(RenderFault::Page(fault)) => {
            return Err(format!("{url}: not rendered ({}); crawlers get it as it is", fault.label()));
        }
        Err(RenderFault::Overload) => return Err("all pages are in use; try again".to_owned()),
        Err(RenderFault::NoBrowser) => {
            return Err("no browser starts; the log of the server has the reason".to_owned());
        }
    };
    let inspected = rendered.inspected.clone().unwrap_or_default();
    let (mut broken, until) = (Vec::new(), Instant::now() + LINKS_TIME_MAX);
    for link in inspected.own.iter().take_while(|_| Instant::now() < until) {
        match request(&own, Method::HEAD, link.clone()).await {
            Ok(fetched) if fetched.status >= 400 => broken.push((link.clone(), fetched.status.to_string())),
            Ok(_) => {}
            Err(why) => broken.push((link.clone(), why)),
        }
    }
    let found = findings(&inspected, &rendered, &broken);
    Ok(report(&Sides { url: &url, plain: &plain, rendered: &rendered, inspected: &inspected }, &found))
}

async fn request(fetcher: &Fetcher, method: Method, target: String) -> Result<Fetched, String> {
    let mut fields = HeaderMap::new();
    fields.insert(http::header::ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"));
    let request = PageRequest { to: RequestTarget::Own { target }, method, fields, body: Bytes::new() };
    fetcher.fetch(request).await.map_err(|fault| format!("not served: {fault:?}"))
}
