//! Writes a response from an entry: complete, a range, or a 304.

use bytes::Bytes;
use flatout_engine::{Body, Response};
use flatout_wire::condition::{Decision, evaluate, range_applies};
use flatout_wire::range::{Ranges, parse};
use flatout_wire::{Head, Status, date};

use crate::entry::{Entry, write_line};
use crate::policy::RequestConditions;
use crate::status::CacheStatus;

/// Writes a response from this entry. `cache_status` is `None` if the route does not report the cache status.
#[inline]
pub(crate) fn write(
    entry: &Entry,
    body: Bytes,
    head: &Head<'_>,
    conditions: RequestConditions,
    now_ms: u64,
    cache_status: Option<&CacheStatus>,
    response: &mut Response,
) {
    let age = entry.policy.age(now_ms);
    if (conditions.has_conditions || conditions.has_range) && entry.status == Status::OK {
        write_wished(entry, body, head, conditions, response);
        return write_more(age, cache_status, response);
    }
    response.set_status(entry.status);
    response.encoded_head(entry.lines(), entry.has_date(), entry.has_server());
    write_more(age, cache_status, response);
    set_body(body, response);
}

#[inline]
pub(crate) fn write_more(age: u32, cache_status: Option<&CacheStatus>, response: &mut Response) {
    response.write_lines(|lines| write_age(age, cache_status, lines));
}

/// Writes the lines that a cache adds.
pub(crate) fn write_age(age: u32, cache_status: Option<&CacheStatus>, lines: &mut Vec<u8>) {
    write_line(b"Age", itoa::Buffer::new().format(age).as_bytes(), lines);
    if let Some(cache_status) = cache_status {
        cache_status.write(lines);
    }
}

/// Writes a response from an entry for an unconditional request; `lines` are what [`write`] would write.
#[inline]
pub(crate) fn write_encoded(entry: &Entry, lines: &[u8], body: Bytes, response: &mut Response) {
    response.set_status(entry.status);
    response.encoded_head(lines, entry.has_date(), entry.has_server());
    set_body(body, response);
}

#[inline]
fn set_body(body: Bytes, response: &mut Response) {
    if !body.is_empty() {
        response.set_body(Body::Shared(body));
    }
}

/// For requests with conditions and ranges.
#[inline(never)]
fn write_wished(
    entry: &Entry,
    body: Bytes,
    head: &Head<'_>,
    conditions: RequestConditions,
    response: &mut Response,
) {
    let (etag, modified) = (entry.etag(), entry.modified());
    if conditions.has_conditions && is_not_modified(entry, head) {
        return write_not_modified(entry, response);
    }
    let length = body.len() as u64;
    let asked = head.field("range").filter(|_| conditions.has_range && range_applies(head, etag, modified));
    // For several ranges everything is sent, which is allowed, and such requests are rare.
    let ranges = asked.map_or(Ranges::Whole, |value| parse(value, length, 1));
    let (status, body, content_range) = match ranges {
        Ranges::Some(ranges) => match ranges.first() {
            Some(range) => {
                let content_range = format!("bytes {}-{}/{length}", range.start, range.end.saturating_sub(1));
                let part = range.start as usize..range.end as usize;
                (Status::PARTIAL_CONTENT, body.slice(part), Some(content_range))
            }
            None => (entry.status, body, None),
        },
        Ranges::Unsatisfiable => {
            (Status::RANGE_NOT_SATISFIABLE, Bytes::new(), Some(format!("bytes */{length}")))
        }
        Ranges::Whole => (entry.status, body, None),
    };
    response.set_status(status);
    response.encoded_head(entry.lines(), entry.has_date(), entry.has_server());
    if let Some(value) = content_range {
        response.header("Content-Range", value);
    }
    set_body(body, response);
}

/// A 304 with the relevant lines of an entry.
pub(crate) fn write_not_modified(entry: &Entry, response: &mut Response) {
    response.set_status(Status::NOT_MODIFIED);
    for (name, value) in entry.fields() {
        if !is_about_body(name) {
            response.parsed_field(name, value);
        }
    }
}

/// Whether the client has this response already. Without `Last-Modified`, the response's date is used (RFC 9111
/// section 4.3.2).
pub(crate) fn is_not_modified(entry: &Entry, head: &Head<'_>) -> bool {
    let date = || entry.fields().find(|(name, _)| name.eq_ignore_ascii_case(b"date"));
    let modified = entry.modified().or_else(|| date::parse(date()?.1));
    evaluate(head, entry.etag(), modified) == Decision::NotModified
}

/// Fields about the body, which a 304 does not have (RFC 9110 section 15.4.5).
fn is_about_body(name: &[u8]) -> bool {
    let begins = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"));
    begins && !name.eq_ignore_ascii_case(b"content-location")
}

/// Adds the cache status to a response that was not stored.
pub(crate) fn add_cache_status(cache_status: Option<&CacheStatus>, response: &mut Response) {
    if let Some(cache_status) = cache_status {
        response.write_lines(|lines| cache_status.write(lines));
    }
}

/// An error response of the cache itself.
pub(crate) fn refuse(status: Status, cache_status: Option<&CacheStatus>, response: &mut Response) {
    response.reset();
    response.set_status(status).header("Content-Type", "text/plain; charset=utf-8");
    add_cache_status(cache_status, response);
    let body = response.buffer();
    body.extend_from_slice(status.reason().as_bytes());
    body.push(b'\n');
}
