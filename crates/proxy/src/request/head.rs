//! Writes the head of a request for the upstream, from the parsed request; the client's head is never copied.

use std::net::IpAddr;

use flatout_gateway::{Client, Forwarded, Host};
use flatout_wire::field::{Lines, write_line};
use flatout_wire::h1::Length;
use flatout_wire::{Framing, Head, Method, Version};

use super::fields::{has_underscore, is_forwarded, is_nominated, is_ours, is_rewritten};
use super::forwarded::{Sender, write_forwarded, write_x_forwarded};
use super::upgrade::{UPGRADE, is_key, upgrade};

/// The length of a request's body as framed for the upstream; `None` if there is no body and no length is sent.
pub(crate) fn body_length(
    head: &Head<'_>,
    method: Method,
    is_whole: bool,
    whole_bytes: usize,
) -> Option<Length> {
    match head.framing {
        // Without the field, some servers refuse these as requests without a length.
        Framing::None if matches!(method, Method::Post | Method::Put | Method::Patch) => {
            Some(Length::Known(0))
        }
        Framing::None => None,
        _ if is_whole => Some(Length::Known(whole_bytes as u64)),
        Framing::Length(length) => Some(Length::Known(length)),
        Framing::Chunked => Some(Length::Unknown),
    }
}

/// Writes request line and field lines, without the end of the head. `peer` is the peer of the downstream connection.
/// `Host` is left out if it is to be the server's address ([`names_server`]), because the server is not known yet. Returns whether the
/// request asks for an upgrade.
pub(crate) fn write_head(
    head: &Head<'_>,
    what: &Forwarded<'_>,
    peer: Option<IpAddr>,
    out: &mut Vec<u8>,
) -> bool {
    let Forwarded { forward, client, edits, .. } = what;
    let method = edits.method.unwrap_or(head.method_name());
    for part in [method, b" ", what.target, b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
    match &forward.host {
        _ if names_server(&forward.host, head) => {}
        Host::Kept | Host::Upstream => write_line(b"Host", edits.authority(head), out),
        Host::Set(host) => write_line(b"Host", host.as_bytes(), out),
    }
    let names_options = !edits.drops_all && head.field("Connection").is_some();
    // A WebSocket over HTTP/2 has no key; the one that the upstream needs is ours (RFC 8441 section 5).
    let is_h2 = head.version == Version::Http2;
    let mut lines = Lines::new(head.bytes(), out);
    for field in head.lines() {
        let name = field.name(head.bytes());
        let is_left_out = is_ours(name)
            || (is_forwarded(name) && (!client.is_from_proxy || is_rewritten(name, forward)))
            || (names_options && is_nominated(name, head.field_all("Connection")))
            || (is_h2 && is_key(name))
            || (!forward.underscores && has_underscore(name))
            || edits.drops(name);
        if !is_left_out {
            lines.write(*field);
        }
    }
    drop(lines);
    let upgrade = if names_options { upgrade(head, what) } else { None };
    if let Some(protocols) = &upgrade {
        for part in [b"Connection: upgrade\r\n", UPGRADE, protocols, b"\r\n"] {
            out.extend_from_slice(part);
        }
    } else if !edits.drops_all
        && head.field("TE").is_some()
        && is_nominated(b"trailers", head.field_all("TE"))
    {
        out.extend_from_slice(b"Connection: TE\r\nTE: trailers\r\n");
    }
    let sender = Sender { head, client, edits, peer };
    if forward.x_forwarded {
        write_x_forwarded(&sender, out);
    }
    if forward.forwarded {
        write_forwarded(&sender, out);
    }
    if is_early(head, client) && (edits.drops_all || !edits.drops(b"early-data")) {
        out.extend_from_slice(EARLY);
    }
    if let Some(via) = &forward.via {
        write_line(b"Via", &[b"1.1 ", via.as_bytes()].concat(), out);
    }
    out.extend_from_slice(edits.lines);
    upgrade.is_some()
}

/// Whether the upstream gets its server's address as `Host`: also if the client, of HTTP/1.0, has sent none.
pub(crate) fn names_server(host: &Host, head: &Head<'_>) -> bool {
    match host {
        Host::Kept => head.authority().is_empty(),
        Host::Upstream => true,
        Host::Set(_) => false,
    }
}

pub(crate) const EARLY: &[u8] = b"Early-Data: 1\r\n";

/// Whether the request has come as early data, here or at a trusted proxy before us (RFC 8470, section 5.1). What
/// others say is not forwarded, nor is a claim that it has not.
pub(crate) fn is_early(head: &Head<'_>, client: &Client) -> bool {
    client.is_early || (client.is_from_proxy && head.field_all("Early-Data").any(|value| value == b"1"))
}
