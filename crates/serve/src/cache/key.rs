//! What requests must have in common to get the same response.

use flatout_wire::Head;

use crate::proxy::Host;
use crate::site::{Caching, Forwarded};

/// The key of a request: its URL, and further parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key<'a> {
    /// `http://example.org/a?b`: the URL that purges use.
    pub(super) url: &'a [u8],
    /// The operator's key, or the lines that the site adds to the request; the upstream, and the `Host` that it gets.
    pub(super) rest: &'a [u8],
    /// The operator's key replaces the URL.
    pub(super) is_custom: bool,
    pub(super) hash: u64,
}

/// Writes the URL of a request, as its client sees it. Returns its end.
pub(super) fn write_url(is_https: bool, authority: &[u8], target: &[u8], out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(if is_https { b"https://" } else { b"http://" });
    let at = out.len();
    out.extend_from_slice(authority);
    out.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
    out.extend_from_slice(target);
    out.len()
}

/// Writes the key of a request into `out`: the URL, then the rest. Returns the end of the URL.
///
/// Lines that the site adds and clients cannot choose, such as a user's name, may change the response, so they are
/// part of the key; fields that clients can choose are not forwarded, or are in `Vary`.
pub(super) fn write_key(
    head: &Head<'_>,
    what: &Forwarded<'_>,
    caching: &Caching<'_>,
    upstream: &str,
    out: &mut Vec<u8>,
) -> usize {
    let url_ends = write_url(what.client.is_https, head.authority(), what.target, out);
    match caching.key {
        Some(key) => out.extend_from_slice(key),
        None => out.extend_from_slice(what.edits.lines),
    }
    // No field value contains this byte, so two keys cannot be confused.
    out.push(0);
    out.extend_from_slice(upstream.as_bytes());
    // The URL already contains the client's host. A different `Host` sent to the upstream selects another
    // site there, so it is part of the key.
    match &what.forward.host {
        Host::Kept => {}
        Host::Upstream => out.push(0),
        Host::Set(host) => {
            out.push(0);
            out.extend_from_slice(host.as_bytes());
        }
    }
    url_ends
}

impl<'a> Key<'a> {
    pub(super) fn of(
        bytes: &'a [u8],
        url_ends: usize,
        is_custom: bool,
        hash: impl FnOnce(&[u8]) -> u64,
    ) -> Key<'a> {
        let (url, rest) = bytes.split_at_checked(url_ends).unwrap_or((bytes, b""));
        let hash = hash(if is_custom { rest } else { bytes });
        Key { url, rest, is_custom, hash }
    }
}
