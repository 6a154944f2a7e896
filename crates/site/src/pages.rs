//! Custom pages: for errors, and for a route under maintenance.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;

use bytes::Bytes;
use flatout_engine::{Body, Response};
use flatout_wire::Status;

use super::access::AccessList;
use super::fault::{Fault, Place};
use super::plan::{self, PageSource};
use super::reroute::CompiledReroute;
use flatout_gateway::ResponseOrigin;

/// The maximum size of a page, which is kept in memory.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// A page in memory.
#[derive(Debug, Clone)]
struct CompiledPage {
    content_type: String,
    body: Bytes,
}

/// Pages that replace responses with some statuses.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorPages(Vec<CompiledErrorPage>);

#[derive(Debug, Clone)]
struct CompiledErrorPage {
    statuses: Vec<RangeInclusive<u16>>,
    page: ErrorPageSource,
    status: Option<Status>,
    of_upstreams: bool,
}

#[derive(Debug, Clone)]
enum ErrorPageSource {
    Page(CompiledPage),
    /// Another route, and whether the error's status is kept.
    Route(CompiledReroute, bool),
}

/// A route under maintenance.
#[derive(Debug)]
pub(crate) struct CompiledMaintenance {
    page: CompiledPage,
    retry_after: Option<String>,
    pub(crate) except: AccessList,
}

impl CompiledPage {
    fn new(page: &plan::Page, place: Place) -> Result<CompiledPage, Fault> {
        if !flatout_wire::field::is_field_value(page.content_type.as_bytes()) {
            return Err(place.fault(format!("`{}` is not a valid Content-Type", page.content_type)));
        }
        let body = match &page.source {
            PageSource::Text(text) => text.clone().into_bytes(),
            PageSource::File(path) => read(path).map_err(|error| {
                place.fault_of_file(path, format!("the page {}: {error}", path.display()))
            })?,
            PageSource::Route { .. } => return Err(place.fault("this page cannot come from a route")),
        };
        Ok(CompiledPage { content_type: page.content_type.clone(), body: body.into() })
    }

    /// `keeps_location`: a redirect still leads where it does.
    fn write(&self, keeps_location: bool, response: &mut Response) {
        const OF_REPLACED: [&str; 7] = [
            "content-type",
            "content-encoding",
            "content-range",
            "etag",
            "last-modified",
            "accept-ranges",
            "location",
        ];
        for name in OF_REPLACED {
            let is_kept = keeps_location && name == "location";
            if !is_kept && response.field(name).is_some() {
                response.remove_header(name);
            }
        }
        response.header("Content-Type", &self.content_type).set_body(Body::Shared(self.body.clone()));
    }
}

fn read(path: &std::path::Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(PAGE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PAGE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {PAGE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

impl ErrorPages {
    /// # Errors
    /// A page cannot be read, or a status is not an error status.
    pub(crate) fn new(
        pages: &[plan::ErrorPage],
        reroute: impl Fn(&plan::Reroute) -> Result<CompiledReroute, Fault>,
        place: Place,
    ) -> Result<ErrorPages, Fault> {
        let page = |page: &plan::ErrorPage| {
            if let Some(range) = page.statuses.iter().find(|range| *range.start() < 300 || *range.end() > 599)
            {
                return Err(
                    place.fault(format!("an error page for {range:?}: need statuses from 300 to 599"))
                );
            }
            let status = match page.status {
                Some(code @ 200..=599) => Status::from_code(code),
                Some(code) => {
                    return Err(place
                        .fault(format!("an error page with status {code}: need a status from 200 to 599")));
                }
                None => None,
            };
            Ok(CompiledErrorPage {
                statuses: page.statuses.clone(),
                page: match &page.page.source {
                    PageSource::Route { to, keeps_status } => {
                        ErrorPageSource::Route(reroute(to)?, *keeps_status)
                    }
                    _ => ErrorPageSource::Page(CompiledPage::new(&page.page, place)?),
                },
                status,
                of_upstreams: page.of_upstreams,
            })
        };
        Ok(ErrorPages(pages.iter().map(page).collect::<Result<_, Fault>>()?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first page for a response.
    fn find(&self, code: u16, by: ResponseOrigin) -> Option<&CompiledErrorPage> {
        self.0.iter().find(|page| {
            (by == ResponseOrigin::Here || page.of_upstreams)
                && page.statuses.iter().any(|range| range.contains(&code))
        })
    }

    /// Replaces a response by its page, if it has one that is in memory.
    pub(crate) fn apply(&self, response: &mut Response, by: ResponseOrigin) {
        if let Some(found) = self.find(response.status().code(), by)
            && let ErrorPageSource::Page(page) = &found.page
        {
            let status = found.status.unwrap_or(response.status());
            page.write(by == ResponseOrigin::Here || (300..400).contains(&status.code()), response);
            response.set_status(status);
        }
    }

    /// The route whose response replaces one with this status, and whether the status is kept.
    pub(crate) fn route(&self, status: Status, by: ResponseOrigin) -> Option<(&CompiledReroute, bool)> {
        match self.find(status.code(), by) {
            Some(CompiledErrorPage { page: ErrorPageSource::Route(to, is_kept), .. }) => Some((to, *is_kept)),
            _ => None,
        }
    }

    /// Whether a response with this status is replaced by a page.
    pub(crate) fn has_page(&self, status: Status, by: ResponseOrigin) -> bool {
        self.find(status.code(), by).is_some()
    }

    /// Whether any page comes from a route.
    pub(crate) fn has_routes(&self) -> bool {
        self.0.iter().any(|page| matches!(page.page, ErrorPageSource::Route(..)))
    }

    pub(crate) fn uses_captures(&self) -> bool {
        let uses = |page: &CompiledErrorPage| match &page.page {
            ErrorPageSource::Route(to, _) => to.uses_captures(),
            ErrorPageSource::Page(_) => false,
        };
        self.0.iter().any(uses)
    }
}

impl CompiledMaintenance {
    /// # Errors
    /// A page cannot be read.
    pub(crate) fn new(plan: &plan::Maintenance, place: Place) -> Result<CompiledMaintenance, Fault> {
        Ok(CompiledMaintenance {
            page: CompiledPage::new(&plan.page, place)?,
            retry_after: plan.retry_after.map(|time| time.as_secs().max(1).to_string()),
            except: AccessList::of(&plan.except),
        })
    }

    pub(crate) fn write(&self, response: &mut Response) {
        response.set_status(Status::SERVICE_UNAVAILABLE);
        if let Some(time) = &self.retry_after {
            response.header("Retry-After", time);
        }
        response.encoded_fields(b"Cache-Control: no-store\r\n");
        self.page.write(true, response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn none(_: &plan::Reroute) -> Result<CompiledReroute, Fault> {
        Err(Place::Plan.fault("no routes"))
    }

    fn compiled(pages: &[plan::ErrorPage]) -> Result<ErrorPages, Fault> {
        ErrorPages::new(pages, none, Place::Plan)
    }

    fn page(source: PageSource) -> plan::Page {
        plan::Page { content_type: "text/html".to_owned(), source }
    }

    fn error_page(statuses: RangeInclusive<u16>, text: &str, of_upstreams: bool) -> plan::ErrorPage {
        let page = page(PageSource::Text(text.to_owned()));
        plan::ErrorPage { statuses: vec![statuses], page, status: None, of_upstreams }
    }

    #[test]
    fn the_first_matching_error_page_is_used() {
        let mut last = error_page(500..=599, "any", true);
        last.status = Some(200);
        let pages = [error_page(404..=404, "missing", false), error_page(502..=502, "bad", false), last];
        let pages = compiled(&pages).unwrap();
        for (code, by, expected) in [
            (404, ResponseOrigin::Here, (404, "missing")),
            (404, ResponseOrigin::Upstream, (404, "own")),
            (502, ResponseOrigin::Here, (502, "bad")),
            (502, ResponseOrigin::Upstream, (200, "any")),
            (503, ResponseOrigin::Here, (200, "any")),
            (200, ResponseOrigin::Here, (200, "own")),
        ] {
            let mut response = Response::with_status(Status::from_code(code).unwrap());
            response.header("Content-Type", "text/plain").header("ETag", "\"1\"");
            response.buffer().extend_from_slice(b"own");
            pages.apply(&mut response, by);
            let body = String::from_utf8_lossy(response.body_bytes().unwrap()).into_owned();
            assert_eq!((response.status().code(), body.as_str()), expected, "{code} {by:?}");
            assert_eq!(response.field("etag").is_none(), body != "own");
        }
    }

    #[test]
    fn pages_of_redirects_lead_where_these_do() {
        let mut text = error_page(302..=302, "moved", true);
        for (by, status, expected) in [
            (ResponseOrigin::Here, None, true),
            (ResponseOrigin::Upstream, None, true),
            (ResponseOrigin::Upstream, Some(404), false),
        ] {
            text.status = status;
            let mut response = Response::with_status(Status::FOUND);
            response.header("Location", "/there");
            compiled(std::slice::from_ref(&text)).unwrap().apply(&mut response, by);
            assert_eq!(response.body_bytes(), Some(&b"moved"[..]));
            assert_eq!(response.field("location").is_some(), expected, "{by:?} {status:?}");
        }
    }

    #[test]
    fn invalid_pages_are_refused() {
        let missing = page(PageSource::File(PathBuf::from("/nowhere/at-all.html")));
        let missing =
            plan::ErrorPage { statuses: vec![404..=404], page: missing, status: None, of_upstreams: false };
        let fault = ErrorPages::new(&[missing], none, Place::Route(0, 0)).unwrap_err();
        assert!(
            fault.to_string().starts_with("site 1, route 1: the page /nowhere/at-all.html: No such file"),
            "{fault}"
        );
        assert!(compiled(&[error_page(200..=404, "", false)]).is_err());
        let mut split = error_page(404..=404, "", false);
        split.page.content_type = "a\r\nb: c".to_owned();
        assert!(compiled(&[split]).is_err());
        let endless = page(PageSource::File(PathBuf::from("/dev/zero")));
        let endless = plan::Maintenance { page: endless, retry_after: None, except: Vec::new() };
        assert!(CompiledMaintenance::new(&endless, Place::Plan).unwrap_err().reason.contains("larger than"));
    }
}
