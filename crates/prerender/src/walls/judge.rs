//! Decides about each request of a page.

use http::Uri;

use super::fetch::RequestTarget;
use crate::origins::{AllowedOrigin, origin_of};

/// The origin of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageOrigin {
    pub(crate) is_https: bool,
    /// Host and port, as the crawler sent them in `Host`.
    pub(crate) authority: String,
}

impl PageOrigin {
    /// The URL of a target on it.
    pub(crate) fn url(&self, target: &str) -> String {
        format!("{}://{}{target}", if self.is_https { "https" } else { "http" }, self.authority)
    }

    /// Whether a URL belongs to it.
    pub(crate) fn has(&self, url: &Uri) -> bool {
        let own = self.url("/").parse().ok().and_then(|own: Uri| origin_of(&own));
        own.is_some() && origin_of(url) == own
    }
}

/// A request of a page, as DevTools describes it.
pub(crate) struct PausedRequest<'a> {
    pub(crate) url: &'a str,
    pub(crate) method: &'a str,
    /// DevTools' `Network.ResourceType`.
    pub(crate) kind: &'a str,
    /// Pictures are fetched too, for a preview.
    pub(crate) shows_pictures: bool,
}

/// What is done about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It is fetched.
    Fetch(RequestTarget),
    /// It gets one transparent pixel. A refusal would make pages replace the picture with one for errors.
    Picture,
    /// It fails in the page, for this reason.
    Refuse(&'static str),
}

/// Decides about a request. The browser has followed no redirect by itself: each one comes here as a request of its own.
pub(crate) fn judge(request: &PausedRequest<'_>, page: &PageOrigin, allow: &[AllowedOrigin]) -> Ruling {
    if !matches!(request.method, "GET" | "HEAD" | "POST" | "OPTIONS") {
        return Ruling::Refuse("method");
    }
    let Ok(url) = request.url.parse::<Uri>() else { return Ruling::Refuse("url") };
    if origin_of(&url).is_none() {
        return Ruling::Refuse("scheme");
    }
    match request.kind {
        "Image" if !request.shows_pictures => return Ruling::Picture,
        "Image" => {}
        "Document" | "Stylesheet" | "Script" | "XHR" | "Fetch" | "Other" | "Preflight" => {}
        // Fonts, media, event streams, beacons, manifests, reports: nothing of a page's text depends on them.
        _ => return Ruling::Refuse("kind"),
    }
    let is_own = page.has(&url);
    if request.kind == "Document" && !is_own {
        // A frame of another origin is no part of this page.
        return Ruling::Refuse("frame");
    }
    let target = url.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    match is_own {
        true => Ruling::Fetch(RequestTarget::Own { target }),
        false if allow.iter().any(|origin| origin.has(&url)) => {
            let (is_https, host, port) = origin_of(&url).unwrap_or_default();
            Ruling::Fetch(RequestTarget::Allowed { is_https, host, port, target })
        }
        false if request.kind == "Image" => Ruling::Picture,
        false => Ruling::Refuse("origin"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruling(kind: &str, url: &str) -> Ruling {
        let page = PageOrigin { is_https: true, authority: "shop.test".to_owned() };
        let allow = ["https://api.shop.test".parse().unwrap()];
        judge(&PausedRequest { url, method: "GET", kind, shows_pictures: false }, &page, &allow)
    }

    #[test]
    fn only_own_and_allowed_origins_are_fetched() {
        let own = |target: &str| Ruling::Fetch(RequestTarget::Own { target: target.to_owned() });
        assert_eq!(ruling("Script", "https://shop.test/app.js?v=1"), own("/app.js?v=1"));
        assert_eq!(ruling("Document", "https://SHOP.test:443"), own("/"));
        let (host, target) = ("api.shop.test".to_owned(), "/v1".to_owned());
        let allowed = RequestTarget::Allowed { is_https: true, host, port: 443, target };
        assert_eq!(ruling("Fetch", "https://api.shop.test/v1"), Ruling::Fetch(allowed));
        for (kind, url, reason) in [
            ("Fetch", "https://other.test/", "origin"),
            ("Fetch", "http://shop.test/", "origin"),
            ("Fetch", "https://shop.test:8443/", "origin"),
            ("Fetch", "https://shop.test.evil.test/", "origin"),
            ("Fetch", "http://127.0.0.1/", "origin"),
            ("Fetch", "http://[::1]:6379/", "origin"),
            ("Fetch", "http://169.254.169.254/latest/meta-data/", "origin"),
            ("Fetch", "http://10.0.0.1/", "origin"),
            ("Fetch", "http://2130706433/", "origin"),
            ("Fetch", "http://0x7f.1/", "origin"),
            ("Fetch", "http://localhost/", "origin"),
            ("Fetch", "http://metadata.google.internal/", "origin"),
            ("Document", "https://api.shop.test/", "frame"),
            ("Document", "https://other.test/", "frame"),
            ("Fetch", "https://a@shop.test/", "scheme"),
            ("Fetch", "file:///etc/passwd", "scheme"),
            ("Document", "file:///etc/passwd", "scheme"),
            ("Fetch", "chrome://version", "scheme"),
            ("Fetch", "ftp://shop.test/", "scheme"),
            ("Fetch", "gopher://127.0.0.1:6379/_x", "scheme"),
            ("Font", "https://shop.test/a.woff2", "kind"),
            ("Media", "https://shop.test/a.mp4", "kind"),
            ("EventSource", "https://shop.test/events", "kind"),
            ("WebSocket", "https://shop.test/socket", "kind"),
            ("Ping", "https://shop.test/ping", "kind"),
        ] {
            let found = ruling(kind, url);
            let is_expected = matches!(&found, Ruling::Refuse(found) if *found == reason || (reason == "scheme" && *found == "url"));
            assert!(is_expected, "{kind} {url}: {found:?}");
        }
        assert_eq!(ruling("Image", "https://other.test/a.png"), Ruling::Picture);
        assert!(matches!(ruling("Image", "file:///etc/passwd"), Ruling::Refuse(_)));
    }

    #[test]
    fn methods_that_change_things_are_refused() {
        let page = PageOrigin { is_https: false, authority: "a.test:8080".to_owned() };
        for (method, is_refused) in
            [("GET", false), ("POST", false), ("DELETE", true), ("PUT", true), ("PATCH", true)]
        {
            let request =
                PausedRequest { url: "http://a.test:8080/x", method, kind: "Fetch", shows_pictures: false };
            assert_eq!(judge(&request, &page, &[]) == Ruling::Refuse("method"), is_refused, "{method}");
        }
    }
}
