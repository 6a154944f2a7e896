//! Requests that bypass the cache: how their responses are marked, and what these invalidate.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{ExchangeKey, Reply, Request, Response};
use flatout_wire::Method;

use crate::entry::Entry;
use crate::key::Key;
use crate::policy::left_out_always;
use crate::respond::add_cache_status;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::Store;
use crate::tally::note_outcome;
use crate::worker::CacheWorker;
use flatout_gateway::{Finish, Forwarded, Forwarding, Redirection, ResponseOrigin};

/// The effect of a response on stored entries.
pub(crate) enum StoreEffect {
    Nothing,
    /// The entries of this key, and those named by the response, are invalidated.
    Invalidate(InvalidatedKey),
    /// A response to HEAD: this entry is marked stale if it differs.
    Compare(Arc<Entry>),
}

/// The key of an unsafe request.
pub(crate) struct InvalidatedKey {
    url: Vec<u8>,
    rest: Vec<u8>,
    is_custom: bool,
}

impl StoreEffect {
    /// The effect of a request by its method (RFC 9111 section 4.4): a method not known to be safe is unsafe.
    pub(crate) fn of_method(method: Method, key: &Key<'_>) -> StoreEffect {
        match method {
            Method::Get | Method::Head | Method::Options | Method::Trace => StoreEffect::Nothing,
            _ => StoreEffect::Invalidate(InvalidatedKey {
                url: key.url.to_vec(),
                rest: key.rest.to_vec(),
                is_custom: key.is_custom,
            }),
        }
    }
}

/// A route's rules, extended by the cache.
pub(crate) struct CacheFinish {
    pub(crate) inner: Rc<dyn Finish>,
    pub(crate) label: CacheOutcome,
    pub(crate) cache_status: Option<CacheStatus>,
    pub(crate) store: Arc<Store>,
    pub(crate) after: StoreEffect,
}

impl CacheWorker {
    /// Forwards a request without using the cache, except for the `Cache-Status` field and invalidation.
    pub(crate) fn pass(
        &self,
        request: Request<'_>,
        mut forwarded: Forwarded<'_>,
        cache_status: CacheStatus,
        after: StoreEffect,
        response: &mut Response,
    ) -> Reply {
        let says = forwarded.caching.is_some_and(|caching| caching.rules.says_status);
        forwarded.edits.handled = left_out_always();
        self.counters.count(cache_status.label);
        forwarded.finish = Rc::new(CacheFinish {
            inner: forwarded.finish,
            label: cache_status.label,
            cache_status: says.then_some(cache_status),
            store: self.store.clone(),
            after,
        });
        self.proxy_worker.forward(request, forwarded, response)
    }
}

impl Finish for CacheFinish {
    fn finish(&self, response: &mut Response, by: ResponseOrigin) {
        let code = response.status().code();
        if by == ResponseOrigin::Upstream {
            match &self.after {
                StoreEffect::Nothing => {}
                StoreEffect::Invalidate(invalid) if (200..400).contains(&code) => {
                    invalid.invalidate(response, &self.store);
                }
                StoreEffect::Compare(entry) if code == 200 && !is_same(entry, response) => {
                    self.store.expire_everywhere(entry);
                }
                StoreEffect::Invalidate(_) | StoreEffect::Compare(_) => {}
            }
            if response.field("x-cache-status").is_some() {
                response.remove_header("x-cache-status");
            }
        }
        note_outcome(self.label, response);
        let status = (by == ResponseOrigin::Upstream).then_some(code);
        add_cache_status(
            self.cache_status.map(|cache_status| CacheStatus { status, ..cache_status }).as_ref(),
            response,
        );
        self.inner.finish(response, by);
    }

    fn redirect(&self, held: Rc<dyn Finish>, exchange: ExchangeKey, response: &mut Response) -> Redirection {
        let code = response.status().code();
        let redirection = self.inner.redirect(held, exchange, response);
        if redirection == Redirection::Taken
            && let StoreEffect::Invalidate(invalid) = &self.after
            && (200..400).contains(&code)
        {
            invalid.invalidate(response, &self.store);
        }
        redirection
    }
}

/// Whether the head of a response to HEAD matches the stored entry (RFC 9111 section 4.3.5).
fn is_same(entry: &Entry, response: &Response) -> bool {
    let mut fields = response.fields();
    let is_alike = fields.all(|(name, value)| {
        let matters = name.eq_ignore_ascii_case(b"etag") || name.eq_ignore_ascii_case(b"last-modified");
        !matters || entry.fields().any(|(this, known)| this.eq_ignore_ascii_case(name) && known == value)
    });
    is_alike && response.declared_length().is_none_or(|length| length == entry.body().len() as u64)
}

impl InvalidatedKey {
    fn invalidate(&self, response: &Response, store: &Store) {
        self.invalidate_url(&self.url, store);
        if self.is_custom {
            // The key of another URL is known only from a request for it.
            return;
        }
        for name in ["location", "content-location"] {
            if let Some(url) = response.field(name).and_then(|value| self.same_origin(value)) {
                self.invalidate_url(&url, store);
            }
        }
    }

    fn invalidate_url(&self, url: &[u8], store: &Store) {
        let bytes = [url, &self.rest].concat();
        store.invalidate(&Key::of(&bytes, url.len(), self.is_custom, |bytes| store.hash(bytes)));
    }

    /// A reference as a URL, if it has the request's origin: a response must not invalidate entries of other origins.
    fn same_origin(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let authority_at = self.url.windows(3).position(|bytes| bytes == b"://")? + 3;
        let path_at = authority_at + self.url.get(authority_at..)?.iter().position(|&byte| byte == b'/')?;
        let (origin, path) = self.url.split_at_checked(path_at)?;
        let reference = reference.split(|&byte| byte == b'#').next().unwrap_or_default();
        let is_absolute =
            reference.get(..origin.len()).is_some_and(|start| start.eq_ignore_ascii_case(origin));
        match reference {
            [] | [b'/', b'/', ..] => None,
            [b'/', ..] => Some([origin, reference].concat()),
            _ if is_absolute => {
                let rest = reference.get(origin.len()..).unwrap_or_default();
                match rest.first() {
                    None => Some([origin, b"/"].concat()),
                    Some(b'/' | b'?') => Some([origin, rest].concat()),
                    // A port, or a longer name.
                    Some(_) => None,
                }
            }
            _ if reference.windows(3).any(|bytes| bytes == b"://") => None,
            _ => {
                let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
                let folder = path.iter().rposition(|&byte| byte == b'/')? + 1;
                Some([origin, path.get(..folder)?, reference].concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_of_the_same_origin_or_nothing() {
        let invalid =
            InvalidatedKey { url: b"http://a:8/b/c?d".to_vec(), rest: Vec::new(), is_custom: false };
        for (reference, expected) in [
            ("/x?y", Some("http://a:8/x?y")),
            ("x", Some("http://a:8/b/x")),
            ("http://A:8/x#y", Some("http://a:8/x")),
            ("http://a:8", Some("http://a:8/")),
            ("http://a:80/x", None),
            ("http://a:8.evil/x", None),
            ("https://a:8/x", None),
            ("http://b/x", None),
            ("//b/x", None),
            ("", None),
        ] {
            let got = invalid.same_origin(reference.as_bytes());
            assert_eq!(got.map(|url| String::from_utf8(url).unwrap()).as_deref(), expected, "{reference}");
        }
    }

    #[test]
    fn all_but_safe_methods_invalidate() {
        let key = Key { url: b"", rest: b"", is_custom: false, hash: 0 };
        for (method, invalidates) in [
            (Method::Post, true),
            (Method::Delete, true),
            (Method::Other, true),
            (Method::Get, false),
            (Method::Options, false),
        ] {
            let after = StoreEffect::of_method(method, &key);
            assert_eq!(matches!(after, StoreEffect::Invalidate(_)), invalidates, "{method:?}");
        }
    }
}
