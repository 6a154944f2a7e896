//! Writes queries to an auth service about a request.

use flatout_gateway::{AuthQuery, Edits, is_alike};
use flatout_wire::field::write_line;

use super::fields::{has_underscore, is_about_body, is_forwarded, is_nominated, is_ours};
use super::forwarded::{Sender, scheme, write_x_forwarded};
use super::head::{EARLY, is_early};

/// Writes the head of a query about a request, without its end: GET, with the request's own method and target beside it, in the fields
/// of Traefik and Caddy, and in those that services expect that nginx asks.
pub(crate) fn write_auth_query(query: &AuthQuery<'_>, out: &mut Vec<u8>) {
    let AuthQuery { request_fields: wanted, head, client, .. } = query;
    for part in [b"GET ", query.target, b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
    if !head.authority().is_empty() {
        write_line(b"Host", head.authority(), out);
    }
    let names_options = head.field("Connection").is_some();
    for (name, value) in head.fields() {
        let is_wanted = match wanted.is_empty() {
            true => !has_underscore(name),
            false => wanted.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes())),
        };
        // The auth service must not decide by what a client claims about itself or about its request.
        let is_claim = is_forwarded(name) || is_claim(name) || (is_address(name) && !client.is_from_proxy);
        let is_left_out = is_ours(name)
            || is_claim
            || is_about_body(name)
            || (names_options && is_nominated(name, head.field_all("Connection")));
        if is_wanted && !is_left_out {
            write_line(name, value, out);
        }
    }
    let edits = Edits::default();
    write_x_forwarded(&Sender { head, client, edits: &edits, peer: client.address }, out);
    if is_early(head, client) {
        out.extend_from_slice(EARLY);
    }
    write_line(b"X-Forwarded-Method", head.method_name(), out);
    write_line(b"X-Forwarded-Uri", head.target(), out);
    write_line(b"X-Original-Method", head.method_name(), out);
    if !head.authority().is_empty() {
        write_line(b"X-Original-URL", &url(query), out);
    }
}

/// The URL of the request.
fn url(query: &AuthQuery<'_>) -> Vec<u8> {
    let AuthQuery { head, client, .. } = query;
    let mut url = [scheme(client).as_bytes(), b"://", head.authority()].concat();
    head.write_origin_form(&mut url);
    url
}

/// Fields that tell an auth service which request it is asked about; the true ones are ours.
fn is_claim(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] =
        [b"x-rewrite-url", b"x-http-method", b"x-http-method-override", b"x-method-override"];
    const ORIGINAL: &[u8] = b"x-original-";
    name.get(..ORIGINAL.len()).is_some_and(|start| is_alike(start, ORIGINAL))
        || NAMES.iter().any(|claim| is_alike(name, claim))
}

/// The client's address, as some proxies send it.
fn is_address(name: &[u8]) -> bool {
    [&b"x-real-ip"[..], b"x-client-ip", b"true-client-ip"].iter().any(|it| is_alike(name, it))
}
