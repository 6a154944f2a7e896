//! One stored response.
//!
//! ```text
//! text: http://example.org/a | rest of the key | \naccept-encoding | gzip\n | ETag: "x"\r\n…    one allocation
//!       url                    rest              vary               selected  lines
//! ```

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use bytes::Bytes;
use flatout_wire::cache::{Policy, is_stored, withheld_by};
use flatout_wire::{Status, date};

use crate::key::Key;

/// Live: it may be served.
const LIVE: u8 = 0;
/// It was marked stale early.
const EXPIRED: u8 = 1;
/// It was evicted from memory: users have to drop it, but it may be on disk.
const EVICTED: u8 = 2;
/// Replaced or purged: a caller that still finds it must look it up again.
const DEAD: u8 = 3;

/// The memory of an entry besides its text and body: the struct with its reference counts (176 bytes with the
/// allocator's), two allocations, and its slot in the table.
pub(crate) const OVERHEAD_BYTES: usize = size_of::<Entry>() + 16 + 3 * 8 + 48;

const _: () = assert!(OVERHEAD_BYTES <= 240);

/// The body of an entry.
pub(crate) enum Content {
    Own(Box<[u8]>),
    /// The body of an earlier entry, which a 304 has updated. That one has its own body.
    Of(Arc<Entry>),
}

const _: () = assert!(size_of::<Content>() == size_of::<Box<[u8]>>());

impl From<Vec<u8>> for Content {
    fn from(body: Vec<u8>) -> Content {
        Content::Own(body.into_boxed_slice())
    }
}

/// A stored response.
pub(crate) struct Entry {
    text: Box<[u8]>,
    body: Content,
    pub(crate) policy: Policy,
    /// The ends of url, rest, vary and selected.
    ends: [u32; 4],
    /// The position of the value of `ETag` in the text.
    etag: (u32, u32),
    /// `Last-Modified`; 0 if there is none.
    modified: u64,
    /// Variants of the same key have the same number.
    pub(crate) family: u64,
    /// When it was last requested, in seconds since 1970.
    used_s: AtomicU32,
    pub(crate) status: Status,
    /// Which of the fields that the engine writes are among the lines: [`DATE`], [`SERVER`]; and [`CUSTOM`].
    marks: u8,
    state: AtomicU8,
}

/// Bits of [`Entry::marks`].
const DATE: u8 = 1;
const SERVER: u8 = 2;
/// The operator's key stands for the URL.
const CUSTOM: u8 = 4;

/// What an entry is made of.
pub(crate) struct Parts<'a> {
    pub(crate) key: Key<'a>,
    /// The names in `Vary`, and the request's values of these fields.
    pub(crate) vary: &'a [u8],
    pub(crate) selected: &'a [u8],
    /// Complete field lines.
    pub(crate) lines: &'a [u8],
    pub(crate) status: Status,
    pub(crate) policy: Policy,
}

impl Entry {
    pub(crate) fn new(parts: &Parts<'_>, body: impl Into<Content>) -> Entry {
        let Parts { key, vary, selected, lines, status, policy } = parts;
        let mut ends = [0; 4];
        let pieces = [key.url, key.rest, vary, selected];
        let mut text =
            Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum::<usize>() + lines.len());
        for (end, piece) in ends.iter_mut().zip(pieces) {
            text.extend_from_slice(piece);
            *end = text.len() as u32;
        }
        let mut entry = Entry {
            text: Box::default(),
            body: body.into(),
            policy: *policy,
            ends,
            etag: (0, 0),
            modified: 0,
            family: 0,
            used_s: AtomicU32::new(seconds(policy.stored_ms)),
            status: *status,
            marks: if key.is_custom { CUSTOM } else { 0 },
            state: AtomicU8::new(LIVE),
        };
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let (name, value) = split_line(line);
            let value_at = text.len() + name.len() + 2;
            match name.len() {
                4 if name.eq_ignore_ascii_case(b"date") => entry.marks |= DATE,
                6 if name.eq_ignore_ascii_case(b"server") => entry.marks |= SERVER,
                4 if name.eq_ignore_ascii_case(b"etag") => {
                    entry.etag = (value_at as u32, (value_at + value.len()) as u32);
                }
                13 if name.eq_ignore_ascii_case(b"last-modified") => {
                    entry.modified = date::parse(value).unwrap_or(0);
                }
                _ => {}
            }
            text.extend_from_slice(line);
        }
        entry.text = text.into_boxed_slice();
        entry
    }

    fn span(&self, from: u32, to: u32) -> &[u8] {
        self.text.get(from as usize..to as usize).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> &[u8] {
        self.span(0, self.ends[0])
    }

    pub(crate) fn rest(&self) -> &[u8] {
        self.span(self.ends[0], self.ends[1])
    }

    /// The names in `Vary`, each after a line feed; empty without such a field.
    pub(crate) fn vary(&self) -> &[u8] {
        self.span(self.ends[1], self.ends[2])
    }

    /// The request's values of these fields.
    pub(crate) fn selected(&self) -> &[u8] {
        self.span(self.ends[2], self.ends[3])
    }

    /// The field lines.
    #[inline]
    pub(crate) fn lines(&self) -> &[u8] {
        self.text.get(self.ends[3] as usize..).unwrap_or_default()
    }

    /// Name and value of each field.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.lines().split_inclusive(|&byte| byte == b'\n').map(split_line)
    }

    pub(crate) fn body(&self) -> &[u8] {
        match &self.body {
            Content::Own(body) => body,
            Content::Of(former) => former.body(),
        }
    }

    /// The entry that owns the body.
    pub(crate) fn owner(self: &Arc<Entry>) -> &Arc<Entry> {
        match &self.body {
            Content::Own(_) => self,
            Content::Of(former) => former,
        }
    }

    /// The same without the reference count.
    pub(crate) fn source(&self) -> &Entry {
        match &self.body {
            Content::Own(_) => self,
            Content::Of(former) => former,
        }
    }

    /// Whether both use the same memory for their bodies.
    pub(crate) fn shares_body(&self, other: &Entry) -> bool {
        std::ptr::eq(self.body(), other.body())
    }

    /// The value of `ETag`, empty if there is none.
    pub(crate) fn etag(&self) -> &[u8] {
        self.span(self.etag.0, self.etag.1)
    }

    /// The time of `Last-Modified`.
    pub(crate) fn modified(&self) -> Option<u64> {
        (self.modified > 0).then_some(self.modified)
    }

    #[inline]
    pub(crate) fn has_date(&self) -> bool {
        self.marks & DATE != 0
    }

    #[inline]
    pub(crate) fn has_server(&self) -> bool {
        self.marks & SERVER != 0
    }

    /// Whether its key is the operator's.
    pub(crate) fn is_custom(&self) -> bool {
        self.marks & CUSTOM != 0
    }

    /// Whether it has this key.
    #[inline]
    pub(crate) fn is_of(&self, key: &Key<'_>) -> bool {
        self.rest() == key.rest && (key.is_custom || self.url() == key.url)
    }

    /// Whether it was neither replaced, purged nor evicted.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) < EVICTED
    }

    /// Whether it was replaced or purged.
    pub(crate) fn is_dead(&self) -> bool {
        self.state.load(Ordering::Acquire) == DEAD
    }

    /// Whether it was marked stale.
    #[inline]
    pub(crate) fn is_expired(&self) -> bool {
        self.state.load(Ordering::Acquire) != LIVE
    }

    /// Whether it was replaced, purged, or marked stale.
    pub(crate) fn is_outdated(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), EXPIRED | DEAD)
    }

    pub(crate) fn kill(&self) {
        self.state.store(DEAD, Ordering::Release);
    }

    pub(crate) fn evict(&self) {
        for state in [LIVE, EXPIRED] {
            // A dead one stays dead.
            let _ = self.state.compare_exchange(state, EVICTED, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    pub(crate) fn expire(&self) {
        // A dead one stays dead.
        let _ = self.state.compare_exchange(LIVE, EXPIRED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Records a request for it. Written at most once a second, because all workers read this.
    #[inline]
    pub(crate) fn touch(&self, now_ms: u64) {
        let now_s = seconds(now_ms);
        if self.used_s.load(Ordering::Relaxed) != now_s {
            self.used_s.store(now_s, Ordering::Relaxed);
        }
    }

    /// When it was last requested, in seconds since 1970.
    pub(crate) fn used_s(&self) -> u32 {
        self.used_s.load(Ordering::Relaxed)
    }

    /// Its size in memory, including the entry that owns the body.
    pub(crate) fn weight(&self) -> u64 {
        let body = match &self.body {
            Content::Own(body) => body.len() as u64,
            Content::Of(former) => former.weight(),
        };
        (OVERHEAD_BYTES + self.text.len()) as u64 + body
    }
}

/// The body of an entry with a separate reference count, so that workers that serve the same entry do not write to
/// the same cache line.
pub(crate) fn body_of(entry: &Arc<Entry>) -> Bytes {
    struct Body(Arc<Entry>);

    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            self.0.body()
        }
    }
    match entry.body().is_empty() {
        true => Bytes::new(),
        false => Bytes::from_owner(Body(entry.clone())),
    }
}

/// The lines of a response to be stored: without those of the connection, and those that it excludes.
pub(crate) fn stored_lines<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    withheld: &[Vec<u8>],
    now: Option<u64>,
) -> Vec<u8> {
    let (mut lines, mut has_date) = (Vec::new(), false);
    for (name, value) in fields {
        if is_stored(name) && !withheld_by(withheld, name) {
            has_date |= name.eq_ignore_ascii_case(b"date");
            write_line(name, value, &mut lines);
        }
    }
    // A response without a date was generated when it was received (RFC 9110 section 6.6.1).
    if let Some(now) = now.filter(|_| !has_date) {
        write_line(b"Date", &date::format(now), &mut lines);
    }
    lines
}

pub(crate) fn write_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Milliseconds since 1970 as seconds, until the year 2106.
#[inline]
pub(crate) fn seconds(unix_ms: u64) -> u32 {
    u32::try_from(unix_ms / 1000).unwrap_or(u32::MAX)
}

/// Name and value of a line that [`write_line`] has written.
fn split_line(line: &[u8]) -> (&[u8], &[u8]) {
    let line = line.strip_suffix(b"\r\n").unwrap_or(line);
    let at = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
    let (name, value) = line.split_at(at);
    (name, value.get(2..).unwrap_or_default())
}
