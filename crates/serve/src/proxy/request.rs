//! Writes the head of a request for the upstream, from the parsed request; the client's head is never copied.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_wire::field::{Lines, write_line};
use flatout_wire::h1::Length;
use flatout_wire::websocket::{KEY_BYTES, accept_key};
use flatout_wire::{Framing, Head, Method, Version};

use super::plan::{Forward, Host};
use crate::site::{Client, Forwarded, Question};

/// The field that proves that a WebSocket was meant.
const KEY: &str = "Sec-WebSocket-Key";

fn is_key(name: &[u8]) -> bool {
    name.len() == KEY.len() && name.eq_ignore_ascii_case(KEY.as_bytes())
}

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and those that we write ourselves.
fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 10] = [
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "expect",
    ];
    // The length alone excludes most names.
    NAMES.iter().any(|ours| ours.len() == name.len() && name.eq_ignore_ascii_case(ours.as_bytes()))
}

fn is_forwarded(name: &[u8]) -> bool {
    (name.len() == 9 && name.eq_ignore_ascii_case(b"forwarded"))
        || (name.len() > 12
            && name.get(..12).is_some_and(|start| start.eq_ignore_ascii_case(b"x-forwarded-")))
}

/// Whether this field of a trusted sender is rewritten.
fn is_rewritten(name: &[u8], forward: &Forward) -> bool {
    match name.len() {
        9 => forward.forwarded,
        _ => {
            forward.x_forwarded
                && ["for", "proto", "host"]
                    .iter()
                    .any(|ours| name.get(12..).is_some_and(|rest| rest.eq_ignore_ascii_case(ours.as_bytes())))
        }
    }
}

/// Whether `name` is one of the options that `Connection` lists.
pub(super) fn is_nominated(name: &[u8], mut connection: impl Iterator<Item = impl AsRef<[u8]>>) -> bool {
    connection.any(|value| {
        value
            .as_ref()
            .split(|&byte| byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
    })
}

/// The protocol that a client asks to upgrade to, if that can be forwarded.
fn upgrade<'b>(head: &Head<'b>) -> Option<&'b [u8]> {
    let asks = is_nominated(b"upgrade", head.field_all("Connection"));
    (asks && head.framing == Framing::None).then(|| head.field("Upgrade")).flatten()
}

/// The length of a request's body as framed for the upstream; `None` if there is no body and no length is sent.
pub(super) fn body_length(head: &Head<'_>, is_whole: bool, whole_bytes: usize) -> Option<Length> {
    match head.framing {
        // Without the field, some servers refuse these as requests without a length.
        Framing::None if matches!(head.method, Method::Post | Method::Put | Method::Patch) => {
            Some(Length::Known(0))
        }
        Framing::None => None,
        _ if is_whole => Some(Length::Known(whole_bytes as u64)),
        Framing::Length(length) => Some(Length::Known(length)),
        Framing::Chunked => Some(Length::Unknown),
    }
}

/// Writes request line and field lines, without the end of the head. `peer` is the peer of the downstream connection.
/// `Host` is left out if it is to be the server's address, because the server is not known yet. Returns whether the
/// request asks for an upgrade.
pub(super) fn write_head(
    head: &Head<'_>,
    what: &Forwarded<'_>,
    peer: Option<IpAddr>,
    out: &mut Vec<u8>,
) -> bool {
    let Forwarded { forward, client, edits, .. } = what;
    for part in [head.method_name(), b" ", what.target, b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
    match &forward.host {
        Host::Kept => write_line(b"Host", head.authority(), out),
        Host::Upstream => {}
        Host::Set(host) => write_line(b"Host", host.as_bytes(), out),
    }
    let names_options = head.field("Connection").is_some();
    // A WebSocket over HTTP/2 has no key; the one that the upstream needs is ours (RFC 8441 section 5).
    let is_h2 = head.version == Version::Http2;
    let mut lines = Lines::new(head.bytes(), out);
    for field in head.lines() {
        let name = field.name(head.bytes());
        let is_left_out = is_ours(name)
            || (is_forwarded(name) && (!client.is_from_proxy || is_rewritten(name, forward)))
            || (names_options && is_nominated(name, head.field_all("Connection")))
            || (is_h2 && is_key(name))
            || edits.drops(name);
        if !is_left_out {
            lines.write(*field);
        }
    }
    drop(lines);
    let upgrade = if names_options && forward.upgrade { upgrade(head) } else { None };
    if let Some(value) = upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
        write_line(b"Upgrade", value, out);
    } else if head.field("TE").is_some() && is_nominated(b"trailers", head.field_all("TE")) {
        out.extend_from_slice(b"Connection: TE\r\nTE: trailers\r\n");
    }
    if forward.x_forwarded {
        write_x_forwarded(head, client, peer, out);
    }
    if forward.forwarded {
        write_forwarded(head, client, peer, out);
    }
    if client.is_early {
        write_early(head, out);
    }
    if let Some(via) = &forward.via {
        write_line(b"Via", &[b"1.1 ", via.as_bytes()].concat(), out);
    }
    out.extend_from_slice(edits.lines);
    upgrade.is_some()
}

/// Writes a `Sec-WebSocket-Key` for the upstream. Returns the `Sec-WebSocket-Accept` that a WebSocket server
/// responds with.
pub(super) fn write_key(out: &mut Vec<u8>) -> String {
    let random = RandomState::new();
    let halves = [random.hash_one(0), random.hash_one(1)].map(u64::to_be_bytes);
    let key = STANDARD.encode(halves.concat());
    debug_assert_eq!(key.len(), KEY_BYTES);
    write_line(KEY.as_bytes(), key.as_bytes(), out);
    accept_key(key.as_bytes())
}

/// Adds `Early-Data: 1`, unless the client has sent it (RFC 8470, section 5.1).
fn write_early(head: &Head<'_>, out: &mut Vec<u8>) {
    if head.field("Early-Data").is_none() {
        out.extend_from_slice(b"Early-Data: 1\r\n");
    }
}

/// Writes the head of a question about a request, without its end: GET, with the request's own method and target beside it.
pub(super) fn write_question(question: &Question<'_>, out: &mut Vec<u8>) {
    let Question { authority, head, client, .. } = question;
    for part in [b"GET ", question.target, b" HTTP/1.1\r\nHost: ", head.authority(), b"\r\n"] {
        out.extend_from_slice(part);
    }
    let wanted = &authority.request_fields;
    for (name, value) in head.fields() {
        let is_wanted = wanted.is_empty() || wanted.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()));
        // The auth service must not decide by what a client claims about itself.
        if is_wanted && !is_ours(name) && !is_forwarded(name) && !is_about_body(name) {
            write_line(name, value, out);
        }
    }
    write_x_forwarded(head, client, client.address, out);
    if client.is_early {
        write_early(head, out);
    }
    write_line(b"X-Forwarded-Method", head.method_name(), out);
    write_line(b"X-Forwarded-Uri", head.target(), out);
}

fn is_about_body(name: &[u8]) -> bool {
    name.len() > 8 && name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"))
}

/// Sends the client's address, after what a trusted proxy before us has sent.
fn write_x_forwarded(head: &Head<'_>, client: &Client, peer: Option<IpAddr>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    if client.is_from_proxy {
        for value in head.field_all("X-Forwarded-For") {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    match address(client, peer) {
        Some(address) => write_address(address, out),
        None => out.extend_from_slice(b"unknown"),
    }
    out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
    out.extend_from_slice(scheme(client).as_bytes());
    out.extend_from_slice(b"\r\n");
    let before = if client.is_from_proxy { head.field("X-Forwarded-Host") } else { None };
    let host = before.unwrap_or(head.authority());
    if !host.is_empty() {
        write_line(b"X-Forwarded-Host", host, out);
    }
}

/// The same as `Forwarded` (RFC 7239).
fn write_forwarded(head: &Head<'_>, client: &Client, peer: Option<IpAddr>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Forwarded: ");
    for value in head.field_all("Forwarded").filter(|_| client.is_from_proxy) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(b"for=");
    match address(client, peer) {
        Some(address @ IpAddr::V4(_)) => write_address(address, out),
        Some(address @ IpAddr::V6(_)) => {
            out.extend_from_slice(b"\"[");
            write_address(address, out);
            out.extend_from_slice(b"]\"");
        }
        None => out.extend_from_slice(b"unknown"),
    }
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(scheme(client).as_bytes());
    let host = head.authority();
    if !host.is_empty() {
        // A host contains none of the bytes that end a quoted string.
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(host);
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
}

/// The address to append: the connection's peer if a trusted proxy named the client, otherwise the client's.
fn address(client: &Client, peer: Option<IpAddr>) -> Option<IpAddr> {
    if client.is_from_proxy { peer } else { client.address }
}

/// Like `Display`, but without the formatting machinery for IPv4, which costs as much as the rest of the head.
fn write_address(address: IpAddr, out: &mut Vec<u8>) {
    let IpAddr::V4(address) = address else {
        // Writing to memory does not fail.
        return drop(write!(out, "{address}"));
    };
    for (at, octet) in address.octets().into_iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        if octet >= 100 {
            out.push(b'0' + octet / 100);
        }
        if octet >= 10 {
            out.push(b'0' + octet / 10 % 10);
        }
        out.push(b'0' + octet % 10);
    }
}

fn scheme(client: &Client) -> &'static str {
    if client.is_https { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use flatout_engine::Response;
    use flatout_wire::head::{HeadLimits, parse};

    use super::*;
    use crate::site::{Edits, Finish, MadeBy};

    struct Nothing;

    impl Finish for Nothing {
        fn finish(&self, _: &mut Response, _: MadeBy) {}
    }

    fn written(request: &str, forward: &Forward, client: Client) -> String {
        let mut fields = Vec::new();
        let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
        let edits = Edits {
            dropped: &["x-dropped".to_owned()],
            left_out: &[b"x-left-out"],
            lines: b"X-User: 7\r\n",
            ..Edits::default()
        };
        let what = Forwarded {
            forward,
            target: b"/a%2fb?q=1",
            client,
            edits,
            finish: Rc::new(Nothing),
            caching: None,
        };
        let mut out = Vec::new();
        write_head(&head, &what, Some([192, 0, 2, 7].into()), &mut out);
        String::from_utf8(out).unwrap()
    }

    const STRANGER: Client = Client {
        address: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7))),
        is_https: false,
        is_early: false,
        is_from_proxy: false,
    };

    #[test]
    fn hop_by_hop_fields_are_not_forwarded() {
        let request = "GET http://example.org/x HTTP/1.1\r\nHost: other\r\nConnection: keep-alive, X-Secret\r\n\
                       x-secret: 1\r\nKeep-Alive: 5\r\nTE: gzip, trailers\r\nProxy-Authorization: x\r\n\
                       Accept: */*\r\nX-Dropped: 1\r\nX_Left_Out: 1\r\nX-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
                       X-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\n\r\n";
        assert_eq!(
            written(request, &Forward::to(0), STRANGER),
            "GET /a%2fb?q=1 HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: TE\r\nTE: trailers\r\n\
             X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: example.org\r\n\
             X-User: 7\r\n"
        );
    }

    #[test]
    fn addresses_are_written_as_they_are_displayed() {
        for text in ["0.0.0.0", "255.255.255.255", "10.100.9.99", "127.0.0.1", "101.110.200.5", "2001:db8::1"]
        {
            let address: IpAddr = text.parse().unwrap();
            let mut out = Vec::new();
            write_address(address, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), address.to_string());
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed() {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
                       X-Forwarded-Port: 1\r\n\r\n";
        let forward = Forward {
            forwarded: true,
            host: Host::Upstream,
            via: Some("flatout".to_owned()),
            ..Forward::to(0)
        };
        let client = Client {
            address: Some([1, 1, 1, 1].into()),
            is_https: true,
            is_early: false,
            is_from_proxy: true,
        };
        assert_eq!(
            written(request, &forward, client),
            "GET /a%2fb?q=1 HTTP/1.1\r\nX-Forwarded-Port: 1\r\n\
             X-Forwarded-For: 1.1.1.1, 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n\
             Forwarded: for=1.1.1.1, for=192.0.2.7;proto=https;host=\"a\"\r\nVia: 1.1 flatout\r\nX-User: 7\r\n"
        );
    }

    #[test]
    fn early_data_is_forwarded_once() {
        let early = Client { is_early: true, ..STRANGER };
        let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(!written(request, &Forward::to(0), STRANGER).contains("Early-Data"));
        assert_eq!(written(request, &Forward::to(0), early).matches("\r\nEarly-Data: 1\r\n").count(), 1);
        let said = "GET / HTTP/1.1\r\nHost: a\r\nearly-data: 1\r\n\r\n";
        for client in [STRANGER, early] {
            let written = written(said, &Forward::to(0), client).to_lowercase();
            assert_eq!(written.matches("\r\nearly-data: 1\r\n").count(), 1, "{written}");
        }
    }

    #[test]
    fn an_upgrade_is_passed_on_where_it_may() {
        let request = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Key: x\r\n\r\n";
        let passed = "Connection: upgrade\r\nUpgrade: websocket\r\n";
        assert!(written(request, &Forward::to(0), STRANGER).contains(passed));
        let forward = Forward { upgrade: false, ..Forward::to(0) };
        assert!(!written(request, &forward, STRANGER).to_lowercase().contains("upgrade"));
        let with_body = request.replace("Host: a", "Host: a\r\nContent-Length: 3");
        assert!(!written(&with_body, &Forward::to(0), STRANGER).contains("Upgrade: "));
    }
}
