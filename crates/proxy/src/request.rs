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

use flatout_gateway::{AuthQuery, Client, Edits, Forwarded, is_alike};
use flatout_gateway::{Forward, Host};

/// The field that proves that a WebSocket was meant.
const KEY: &str = "Sec-WebSocket-Key";

fn is_key(name: &[u8]) -> bool {
    name.len() == KEY.len() && name.eq_ignore_ascii_case(KEY.as_bytes())
}

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and those that we write ourselves.
fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 12] = [
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "http2-settings",
        "expect",
        "early-data",
    ];
    // The length alone excludes most names.
    NAMES.iter().any(|ours| ours.len() == name.len() && name.eq_ignore_ascii_case(ours.as_bytes()))
}

fn is_forwarded(name: &[u8]) -> bool {
    (name.len() == 9 && name.eq_ignore_ascii_case(b"forwarded"))
        || (name.len() > 12 && name.get(..12).is_some_and(|start| is_alike(start, b"x-forwarded-")))
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

/// Whether `connection`, the value of a `Connection` field, names a field of this request that would otherwise be forwarded.
pub fn withholds(connection: &[u8], head: &Head<'_>) -> bool {
    connection.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).any(|option| {
        let is_usual = option.eq_ignore_ascii_case(b"close") || is_ours(option);
        !is_usual && head.fields().any(|(name, _)| name.eq_ignore_ascii_case(option))
    })
}

/// The protocols that a client asks to upgrade to and that may be forwarded, as a value of `Upgrade`. Never with a body: it
/// would be unclear where it ends. Never for a response that may be stored, because it could go to another client.
fn upgrade(head: &Head<'_>, what: &Forwarded<'_>) -> Option<Vec<u8>> {
    let allowed = &what.forward.upgrade;
    let asks = is_nominated(b"upgrade", head.field_all("Connection"));
    if !asks || allowed.is_empty() || head.framing != Framing::None || what.caching.is_some() {
        return None;
    }
    let asked = head.field_all("Upgrade").flat_map(|value| value.split(|&byte| byte == b','));
    let is_allowed = |protocol: &&[u8]| allowed.iter().any(|it| protocol.eq_ignore_ascii_case(it.as_bytes()));
    let protocols: Vec<&[u8]> = asked.map(<[u8]>::trim_ascii).filter(is_allowed).collect();
    (!protocols.is_empty()).then(|| protocols.join(&b", "[..]))
}

/// Whether an upstream that switches protocols has chosen some that the request, whose written head this is, asked for.
pub(super) fn was_asked<'a>(written: &[u8], chosen: impl Iterator<Item = &'a [u8]>) -> bool {
    // The client's own field is never forwarded, and no rule can write one.
    let line = written.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(UPGRADE));
    let asked = || line.unwrap_or_default().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let mut chosen =
        chosen.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii).peekable();
    chosen.peek().is_some() && chosen.all(|this| asked().any(|asked| this.eq_ignore_ascii_case(asked)))
}

/// The beginning of the line in which we ask for an upgrade.
const UPGRADE: &[u8] = b"Upgrade: ";

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
/// `Host` is left out if it is to be the server's address ([`names_server`]), because the server is not known yet. Returns whether the
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
        _ if names_server(&forward.host, head) => {}
        Host::Kept | Host::Upstream => write_line(b"Host", edits.authority(head), out),
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
    } else if head.field("TE").is_some() && is_nominated(b"trailers", head.field_all("TE")) {
        out.extend_from_slice(b"Connection: TE\r\nTE: trailers\r\n");
    }
    if forward.x_forwarded {
        write_x_forwarded(head, client, edits, peer, out);
    }
    if forward.forwarded {
        write_forwarded(head, client, edits, peer, out);
    }
    if is_early(head, client) && !edits.drops(b"early-data") {
        out.extend_from_slice(EARLY);
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

/// Whether the upstream gets its server's address as `Host`: also if the client, of HTTP/1.0, has sent none.
pub(super) fn names_server(host: &Host, head: &Head<'_>) -> bool {
    match host {
        Host::Kept => head.authority().is_empty(),
        Host::Upstream => true,
        Host::Set(_) => false,
    }
}

/// Applications behind CGI, WSGI and the like cannot tell `X_User` from `X-User`.
fn has_underscore(name: &[u8]) -> bool {
    name.contains(&b'_')
}

const EARLY: &[u8] = b"Early-Data: 1\r\n";

/// Whether the request has come as early data, here or at a trusted proxy before us (RFC 8470, section 5.1). What
/// others say is not forwarded, nor is a claim that it has not.
fn is_early(head: &Head<'_>, client: &Client) -> bool {
    client.is_early || (client.is_from_proxy && head.field_all("Early-Data").any(|value| value == b"1"))
}

/// The trailer fields that may follow a request: those of the route that no rule has removed or set, that are not ours,
/// and that the client has not kept for its connection.
pub(super) fn passed_trailers(head: &Head<'_>, what: &Forwarded<'_>) -> Vec<String> {
    let is_set = |name: &[u8]| {
        let lines = what.edits.lines.split(|&byte| byte == b'\n');
        let mut names = lines.filter_map(|line| line.split(|&byte| byte == b':').next());
        names.any(|set| is_alike(name, &set.to_ascii_lowercase()))
    };
    let is_passed = |name: &&String| {
        let name = name.as_bytes();
        may_be_trailer(name)
            && !what.edits.drops(name)
            && !is_set(name)
            && !is_nominated(name, head.field_all("Connection"))
    };
    what.forward.request_trailers.iter().filter(is_passed).cloned().collect()
}

/// Whether a field may follow the body of a request: it does not frame or route the request, nor say who sends it, how it
/// is to be handled or what its body is (RFC 9110 section 6.5.1).
pub fn may_be_trailer(name: &[u8]) -> bool {
    const NEVER: [&str; 8] = [
        "cookie",
        "range",
        "max-forwards",
        "pragma",
        "via",
        "x-real-ip",
        "x-http-method-override",
        "trailer",
    ];
    let is_never = NEVER.iter().any(|never| is_alike(name, never.as_bytes()));
    let is_condition = name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"if-"));
    !is_never
        && !is_condition
        && !is_ours(name)
        && !is_forwarded(name)
        && !is_about_body(name)
        && !super::response::is_never_trailer(name)
}

/// The lines of the trailer fields of a request that are passed on.
pub(super) fn request_trailers(trailers: &[(Vec<u8>, Vec<u8>)], passed: &[String]) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in trailers {
        if passed.iter().any(|passed| name.eq_ignore_ascii_case(passed.as_bytes())) {
            write_line(name, value, &mut lines);
        }
    }
    lines
}

/// Writes the head of a query about a request, without its end: GET, with the request's own method and target beside it.
pub(super) fn write_auth_query(query: &AuthQuery<'_>, out: &mut Vec<u8>) {
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
    write_x_forwarded(head, client, &Edits::default(), client.address, out);
    if is_early(head, client) {
        out.extend_from_slice(EARLY);
    }
    write_line(b"X-Forwarded-Method", head.method_name(), out);
    write_line(b"X-Forwarded-Uri", head.target(), out);
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

fn is_about_body(name: &[u8]) -> bool {
    name.len() > 8 && name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"))
}

/// Whether we append to a trusted proxy's value of this field; otherwise we replace it.
fn adds_to(name: &[u8], client: &Client, edits: &Edits<'_>) -> bool {
    client.is_from_proxy && !edits.drops(name)
}

/// Sends the client's address, after what a trusted proxy before us has sent.
fn write_x_forwarded(
    head: &Head<'_>,
    client: &Client,
    edits: &Edits<'_>,
    peer: Option<IpAddr>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    let adds = adds_to(b"x-forwarded-for", client, edits);
    for value in head.field_all("X-Forwarded-For").filter(|_| adds) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    match if adds { peer } else { client.address } {
        Some(address) => write_address(address, out),
        None => out.extend_from_slice(b"unknown"),
    }
    out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
    out.extend_from_slice(scheme(client).as_bytes());
    out.extend_from_slice(b"\r\n");
    let before = head.field("X-Forwarded-Host").filter(|_| adds_to(b"x-forwarded-host", client, edits));
    let host = before.unwrap_or(edits.authority(head));
    if !host.is_empty() {
        write_line(b"X-Forwarded-Host", host, out);
    }
}

/// The same as `Forwarded` (RFC 7239).
fn write_forwarded(
    head: &Head<'_>,
    client: &Client,
    edits: &Edits<'_>,
    peer: Option<IpAddr>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"Forwarded: ");
    let adds = adds_to(b"forwarded", client, edits);
    for value in head.field_all("Forwarded").filter(|_| adds) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(b"for=");
    match if adds { peer } else { client.address } {
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
    let host = edits.authority(head);
    if !host.is_empty() {
        // A host contains none of the bytes that end a quoted string.
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(host);
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
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
    use flatout_gateway::{Finish, ResponseOrigin};

    struct Nothing;

    impl Finish for Nothing {
        fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
    }

    fn written(request: &str, forward: &Forward, client: Client) -> String {
        written_without(&[b"x-left-out"], request, forward, client)
    }

    fn written_without(left_out: &[&[u8]], request: &str, forward: &Forward, client: Client) -> String {
        let mut fields = Vec::new();
        let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
        let edits = Edits {
            dropped: &["x-dropped".to_owned()],
            left_out,
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
                       X-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\nX_Forwarded_Proto: https\r\n\r\n";
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
    fn dropped_fields_of_a_trusted_proxy_are_replaced() {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Host: b\r\n\
                       Forwarded: for=1.1.1.1;host=b\r\n\r\n";
        let forward = Forward { forwarded: true, ..Forward::to(0) };
        let client = Client { address: Some([1, 1, 1, 1].into()), is_from_proxy: true, ..STRANGER };
        let left_out: &[&[u8]] = &[b"x-forwarded-host", b"forwarded"];
        assert_eq!(
            written_without(left_out, request, &forward, client),
            "GET /a%2fb?q=1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1, 192.0.2.7\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a\r\nForwarded: for=1.1.1.1;proto=http;host=\"a\"\r\nX-User: 7\r\n"
        );
        let written = written_without(&[b"x-forwarded-for"], request, &Forward::to(0), client);
        assert!(written.contains("\r\nX-Forwarded-For: 1.1.1.1\r\n"), "{written}");
    }

    #[test]
    fn early_data_is_forwarded_once() {
        let early = Client { is_early: true, ..STRANGER };
        let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(!written(request, &Forward::to(0), STRANGER).contains("Early-Data"));
        assert_eq!(written(request, &Forward::to(0), early).matches("\r\nEarly-Data: 1\r\n").count(), 1);
        let trusted = Client { is_from_proxy: true, ..STRANGER };
        for (said, client, times) in [
            ("early-data: 1\r\n", STRANGER, 0),
            ("early-data: 1\r\nConnection: early-data\r\n", trusted, 1),
            ("early-data: 1\r\n", early, 1),
            ("early-data: 1\r\n", trusted, 1),
            ("early-data: 0\r\n", STRANGER, 0),
            ("early-data: 0\r\n", trusted, 0),
            ("Early-Data: 0\r\n", early, 1),
            ("Early-Data: 0\r\n", Client { is_early: true, ..trusted }, 1),
            ("Early-Data: 0\r\nConnection: Early-Data\r\n", early, 1),
        ] {
            let said = format!("GET / HTTP/1.1\r\nHost: a\r\n{said}\r\n");
            let written = written(&said, &Forward::to(0), client).to_lowercase();
            assert_eq!(written.matches("\r\nearly-data: 1\r\n").count(), times, "{said}{written}");
            assert_eq!(written.matches("early-data").count(), times, "{said}{written}");
        }
    }

    #[test]
    fn fields_with_underscores_are_dropped_unless_the_route_forwards_them() {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nX_User: 1\r\n_: 2\r\nX-A: 3\r\n\r\n";
        let without = written(request, &Forward::to(0), STRANGER);
        assert!(!without.contains('_') && without.contains("X-A: 3\r\n"), "{without}");
        let with = written(request, &Forward { underscores: true, ..Forward::to(0) }, STRANGER);
        assert!(with.contains("X_User: 1\r\n_: 2\r\n"), "{with}");
    }

    #[test]
    fn a_request_without_a_host_gets_the_servers_own() {
        let request = "GET / HTTP/1.0\r\nX-A: 1\r\n\r\n";
        let written = written(request, &Forward::to(0), STRANGER);
        assert!(
            !written.to_lowercase().contains("host"),
            "it is written when the server is known: {written}"
        );
    }

    #[test]
    fn an_auth_service_gets_no_claims_of_the_client() {
        let request = "GET /a?b HTTP/1.1\r\nHost: a\r\nX-Original-URL: /open\r\nX-Original-Method: GET\r\n\
                       x_original_uri: /open\r\nX-Rewrite-URL: /open\r\nX-Forwarded-Uri: /open\r\n\
                       X-Forwarded-Method: GET\r\nX-HTTP-Method-Override: GET\r\nX-Real-IP: 127.0.0.1\r\n\
                       Connection: Upgrade, X-Hop, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nX-Hop: 1\r\n\
                       Cookie: c\r\n\r\n";
        let mut fields = Vec::new();
        let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
        for request_fields in
            [vec![], vec!["x-original-url".to_owned(), "Cookie".to_owned(), "upgrade".to_owned()]]
        {
            let query = AuthQuery {
                upstream: 0,
                request_fields: &request_fields,
                response_fields: &[],
                target: b"/auth",
                head: &head,
                client: STRANGER,
            };
            let mut out = Vec::new();
            write_auth_query(&query, &mut out);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                "GET /auth HTTP/1.1\r\nHost: a\r\nCookie: c\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n\
                 X-Forwarded-Host: a\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /a?b\r\n"
            );
        }
    }

    #[test]
    fn only_listed_protocols_are_forwarded() {
        let both = Forward { upgrade: vec!["websocket".to_owned(), "echo".to_owned()], ..Forward::to(0) };
        let off = Forward { upgrade: Vec::new(), ..Forward::to(0) };
        for (fields, forward, forwarded) in [
            ("Connection: Upgrade\r\nUpgrade: websocket", Forward::to(0), Some("websocket")),
            ("Connection: Upgrade\r\nUpgrade: WebSocket", Forward::to(0), Some("WebSocket")),
            ("Connection: Upgrade\r\nUpgrade: h2c, websocket", Forward::to(0), Some("websocket")),
            ("Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket", Forward::to(0), Some("websocket")),
            ("Connection: upgrade\r\nUpgrade: echo,h2c,websocket", both.clone(), Some("echo, websocket")),
            ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA", both.clone(), None),
            ("Upgrade: h2c\r\nHTTP2-Settings: AA", both.clone(), None),
            ("Connection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1", both.clone(), None),
            ("Connection: Upgrade\r\nUpgrade: websocketx", both, None),
            ("Connection: Upgrade\r\nUpgrade: websocket", off, None),
            ("Connection: close\r\nUpgrade: websocket", Forward::to(0), None),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3", Forward::to(0), None),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked", Forward::to(0), None),
        ] {
            let request = format!("GET /ws HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
            let written = written(&request, &forward, STRANGER);
            let lower = written.to_lowercase();
            assert!(!lower.contains("http2-settings"), "{written}");
            match forwarded {
                Some(protocols) => {
                    let lines = format!("Connection: upgrade\r\nUpgrade: {protocols}\r\n");
                    assert!(written.contains(&lines), "{fields}: {written}");
                    assert!(was_asked(written.as_bytes(), [&b"websocket"[..]].into_iter()), "{written}");
                }
                None => {
                    assert!(!lower.contains("upgrade"), "{fields}: {written}");
                    assert!(!was_asked(written.as_bytes(), [&b"websocket"[..]].into_iter()), "{written}");
                }
            }
            assert!(!was_asked(written.as_bytes(), [&b"h2c"[..]].into_iter()), "{written}");
            assert!(!was_asked(written.as_bytes(), [&b"websocket, h2c"[..]].into_iter()), "{written}");
            assert!(!was_asked(written.as_bytes(), std::iter::empty()), "{written}");
        }
    }

    #[test]
    fn named_trailers_pass_unless_a_rule_is_about_them() {
        let names = [
            "x-sum",
            "x-dropped",
            "x-left-out",
            "x-user",
            "x_user",
            "x-kept",
            "x-forwarded-for",
            "host",
            "cookie",
        ];
        let forward = Forward { request_trailers: names.map(str::to_owned).to_vec(), ..Forward::to(0) };
        let mut fields = Vec::new();
        let request = "POST / HTTP/1.1\r\nHost: a\r\nConnection: X-Kept\r\n\r\n";
        let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
        let (dropped, set) = (["x-dropped".to_owned()], b"X-Other: 1\r\nX-User: ann\r\n");
        let edits = Edits { dropped: &dropped, left_out: &[b"x-left-out"], lines: set, ..Edits::default() };
        let what = Forwarded {
            forward: &forward,
            target: b"/",
            client: STRANGER,
            edits,
            finish: Rc::new(Nothing),
            caching: None,
        };
        let passed = passed_trailers(&head, &what);
        // The application may read `x_user` as `x-user`.
        assert_eq!(passed, ["x-sum"]);
        let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let trailers =
            [field("X-Sum", "6"), field("X-User", "root"), field("X-Dropped", "1"), field("Host", "b")];
        assert_eq!(request_trailers(&trailers, &passed), b"X-Sum: 6\r\n");
        assert_eq!(request_trailers(&trailers, &[]), b"");
    }

    #[test]
    fn fields_that_frame_route_or_describe_a_request_are_no_trailers() {
        for name in [
            "host",
            "Content-Length",
            "transfer-encoding",
            "content-type",
            "Connection",
            "te",
            "trailer",
            "expect",
            "authorization",
            "cookie",
            "x-forwarded-for",
            "X_Forwarded_Host",
            "forwarded",
            "x-real-ip",
            "early-data",
            "if-match",
            "range",
            "upgrade",
            "via",
            "cache-control",
        ] {
            assert!(!may_be_trailer(name.as_bytes()), "{name}");
        }
        assert!(may_be_trailer(b"x-checksum") && may_be_trailer(b"grpc-status"));
    }
}
