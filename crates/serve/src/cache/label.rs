//! The origin of a response, for responses and metrics.

use std::io::Write;

/// The origin of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// From the cache.
    Hit,
    /// From the upstream: nothing was stored.
    Miss,
    /// From the cache, though it is stale.
    Stale,
    /// A stale response while it is being revalidated.
    Updating,
    /// From the cache, after the upstream has confirmed it.
    Revalidated,
    /// From the upstream: the cache does not serve this request.
    Bypass,
    /// From the upstream: the stored response was stale.
    Expired,
}

impl Label {
    /// All, in the order of their numbers.
    pub(super) const ALL: [Label; 7] = [
        Label::Hit,
        Label::Miss,
        Label::Stale,
        Label::Updating,
        Label::Revalidated,
        Label::Bypass,
        Label::Expired,
    ];

    /// Its name, for metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Label::Hit => "hit",
            Label::Miss => "miss",
            Label::Stale => "stale",
            Label::Updating => "updating",
            Label::Revalidated => "revalidated",
            Label::Bypass => "bypass",
            Label::Expired => "expired",
        }
    }

    /// Its line in nginx's style.
    fn line(self) -> &'static [u8] {
        match self {
            Label::Hit => b"X-Cache-Status: HIT\r\n",
            Label::Miss => b"X-Cache-Status: MISS\r\n",
            Label::Stale => b"X-Cache-Status: STALE\r\n",
            Label::Updating => b"X-Cache-Status: UPDATING\r\n",
            Label::Revalidated => b"X-Cache-Status: REVALIDATED\r\n",
            Label::Bypass => b"X-Cache-Status: BYPASS\r\n",
            Label::Expired => b"X-Cache-Status: EXPIRED\r\n",
        }
    }
}

/// The cache status of a response (RFC 9211).
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub(super) label: Label,
    /// Why the request was forwarded.
    pub(super) forwarded: Option<&'static str>,
    /// The upstream's status.
    pub(super) status: Option<u16>,
    /// For how many seconds the stored response is fresh.
    pub(super) ttl: Option<i64>,
    pub(super) is_stored: bool,
    pub(super) is_collapsed: bool,
    pub(super) detail: Option<&'static str>,
}

impl Said {
    pub(super) fn of(label: Label) -> Said {
        Said {
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
    pub(super) fn forwarded(label: Label, reason: &'static str) -> Said {
        Said { forwarded: Some(reason), ..Said::of(label) }
    }

    /// Writes both lines.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
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
        for (is_said, text) in [(self.is_stored, "; stored"), (self.is_collapsed, "; collapsed")] {
            if is_said {
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
    fn both_lines_are_said() {
        let mut out = Vec::new();
        Said { ttl: Some(-3), detail: Some("error"), ..Said::of(Label::Stale) }.write(&mut out);
        Said {
            status: Some(200),
            is_stored: true,
            is_collapsed: true,
            ..Said::forwarded(Label::Miss, "uri-miss")
        }
        .write(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "X-Cache-Status: STALE\r\nCache-Status: flatout; hit; ttl=-3; detail=error\r\n\
             X-Cache-Status: MISS\r\nCache-Status: flatout; fwd=uri-miss; fwd-status=200; stored; collapsed\r\n"
        );
        for (at, label) in Label::ALL.into_iter().enumerate() {
            assert_eq!(label as usize, at);
            assert!(label.line().ends_with(format!(" {}\r\n", label.name().to_uppercase()).as_bytes()));
        }
    }
}
