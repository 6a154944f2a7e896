//! The origin of a response, for responses and metrics.

use std::io::Write;

/// The origin of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheOutcome {
    /// From the cache.
    Hit,
    /// From the upstream: nothing was stored.
    Miss,
    /// From the cache, though it is stale.
    Stale,
    /// A stale response while it is being revalidated because of another request.
    Updating,
    /// From the cache, after the upstream has confirmed it.
    Revalidated,
    /// From the upstream: the cache does not serve this request.
    Bypass,
    /// From the upstream: the stored response was stale.
    Expired,
}

impl CacheOutcome {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [CacheOutcome; 7] = [
        CacheOutcome::Hit,
        CacheOutcome::Miss,
        CacheOutcome::Stale,
        CacheOutcome::Updating,
        CacheOutcome::Revalidated,
        CacheOutcome::Bypass,
        CacheOutcome::Expired,
    ];

    /// Its name, for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CacheOutcome::Hit => "hit",
            CacheOutcome::Miss => "miss",
            CacheOutcome::Stale => "stale",
            CacheOutcome::Updating => "updating",
            CacheOutcome::Revalidated => "revalidated",
            CacheOutcome::Bypass => "bypass",
            CacheOutcome::Expired => "expired",
        }
    }

    /// Its line in nginx's style.
    fn line(self) -> &'static [u8] {
        match self {
            CacheOutcome::Hit => b"X-Cache-Status: HIT\r\n",
            CacheOutcome::Miss => b"X-Cache-Status: MISS\r\n",
            CacheOutcome::Stale => b"X-Cache-Status: STALE\r\n",
            CacheOutcome::Updating => b"X-Cache-Status: UPDATING\r\n",
            CacheOutcome::Revalidated => b"X-Cache-Status: REVALIDATED\r\n",
            CacheOutcome::Bypass => b"X-Cache-Status: BYPASS\r\n",
            CacheOutcome::Expired => b"X-Cache-Status: EXPIRED\r\n",
        }
    }
}

/// The cache status of a response (RFC 9211).
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheStatus {
    pub(crate) label: CacheOutcome,
    /// Why the request was forwarded.
    pub(crate) forwarded: Option<&'static str>,
    /// The upstream's status.
    pub(crate) status: Option<u16>,
    /// For how many seconds the stored response is fresh.
    pub(crate) ttl: Option<i64>,
    pub(crate) is_stored: bool,
    pub(crate) is_collapsed: bool,
    pub(crate) detail: Option<&'static str>,
}

impl CacheStatus {
    pub(crate) fn of(label: CacheOutcome) -> CacheStatus {
        CacheStatus {
            label,
            forwarded: None,
            status: None,
            ttl: None,
            is_stored: false,
            is_collapsed: false,
            detail: None,
        }
    }

    /// The request was forwarded, for this reason.
    pub(crate) fn forwarded(label: CacheOutcome, reason: &'static str) -> CacheStatus {
        CacheStatus { forwarded: Some(reason), ..CacheStatus::of(label) }
    }

    /// Writes both lines.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.label.line());
        match self.forwarded {
            None => out.extend_from_slice(b"Cache-Status: flatout; hit"),
            Some(reason) => {
                out.extend_from_slice(b"Cache-Status: flatout; fwd=");
                out.extend_from_slice(reason.as_bytes());
            }
        }
        if let Some(status) = self.status {
            // Writing to memory does not fail.
            let _ = write!(out, "; fwd-status={status}");
        }
        if let Some(ttl) = self.ttl {
            out.extend_from_slice(b"; ttl=");
            out.extend_from_slice(itoa::Buffer::new().format(ttl).as_bytes());
        }
        for (is_set, text) in [(self.is_stored, "; stored"), (self.is_collapsed, "; collapsed")] {
            if is_set {
                out.extend_from_slice(text.as_bytes());
            }
        }
        if let Some(detail) = self.detail {
            out.extend_from_slice(b"; detail=");
            out.extend_from_slice(detail.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cache_status_fields_are_written() {
        let mut out = Vec::new();
        CacheStatus { ttl: Some(-3), detail: Some("error"), ..CacheStatus::of(CacheOutcome::Stale) }
            .write(&mut out);
        CacheStatus {
            status: Some(200),
            is_stored: true,
            is_collapsed: true,
            ..CacheStatus::forwarded(CacheOutcome::Miss, "uri-miss")
        }
        .write(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "X-Cache-Status: STALE\r\nCache-Status: flatout; hit; ttl=-3; detail=error\r\n\
             X-Cache-Status: MISS\r\nCache-Status: flatout; fwd=uri-miss; fwd-status=200; stored; collapsed\r\n"
        );
        for (at, label) in CacheOutcome::ALL.into_iter().enumerate() {
            assert_eq!(label as usize, at);
            assert!(label.line().ends_with(format!(" {}\r\n", label.name().to_uppercase()).as_bytes()));
        }
    }
}
