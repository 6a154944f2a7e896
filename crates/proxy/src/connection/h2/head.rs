//! The head of a request in HTTP/2.

use flatout_wire::Method;
use flatout_wire::h1::Length;
use flatout_wire::h2::hpack::{
    encode_authority, encode_field, encode_lines, encode_method, encode_path, encode_scheme,
};

/// Encodes the fields of a request whose head was written for HTTP/1: the request line, `Host` if present, other
/// lines. `host` replaces `Host`.
pub(crate) fn encode_head(
    head: &[u8],
    host: Option<&str>,
    length: Option<Length>,
    is_https: bool,
    block: &mut Vec<u8>,
) {
    let (line, lines) = split_line(head);
    let (method, rest) = split_at(line, b' ');
    let (target, _) = split_at(rest, b' ');
    encode_method(Method::from_token(method), method, block);
    encode_scheme(is_https, block);
    let (first, behind) = split_line(lines);
    let own = first.strip_prefix(b"Host: ");
    if let Some(authority) = host.map(str::as_bytes).or(own).filter(|authority| !authority.is_empty()) {
        encode_authority(authority, block);
    }
    encode_path(target, block);
    encode_lines(if own.is_some() { behind } else { lines }, block);
    if let Some(Length::Known(bytes) | Length::Declared(bytes)) = length {
        encode_field(b"content-length", itoa::Buffer::new().format(bytes).as_bytes(), block);
    }
}

/// A line without its CRLF, and the rest.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let (line, rest) = split_at(text, b'\n');
    (line.strip_suffix(b"\r").unwrap_or(line), rest)
}

fn split_at(text: &[u8], byte: u8) -> (&[u8], &[u8]) {
    let at = text.iter().position(|&this| this == byte).unwrap_or(text.len());
    (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use flatout_wire::h2::{Asking, Connection, Event, Limits, Room};

    use super::*;

    /// The head as a server decodes it.
    fn read(head: &str, host: Option<&str>, length: Option<Length>) -> String {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let mut client = Connection::client(Limits::default(), &mut there);
        let mut server = Connection::server(Limits::default(), &mut back);
        let asking = Asking { is_whole: length.is_none(), ..Asking::default() };
        client
            .ask(asking, |block| encode_head(head.as_bytes(), host, length, false, block), &mut there)
            .unwrap();
        let (mut room, mut rest) = (Room::default(), &there[..]);
        loop {
            let (used, event) = server.receive(rest, &mut room, &mut back).unwrap();
            match event {
                Event::Request { head, .. } => return String::from_utf8(head.bytes().to_vec()).unwrap(),
                Event::NeedMore => panic!("no request"),
                _ => rest = &rest[used..],
            }
        }
    }

    #[test]
    fn heads_keep_their_fields() {
        let head = "POST /a%2fb?q HTTP/1.1\r\nHost: a.example\r\nX-Name: v\r\nConnection: TE\r\nTE: trailers\r\n\
                    Connection: upgrade\r\nUpgrade: websocket\r\ngrpc-timeout: 1S\r\n";
        let rest = "x-name: v\r\nte: trailers\r\ngrpc-timeout: 1S\r\n";
        let expected = format!("POST /a%2fb?q HTTP/2.0\r\nhost: a.example\r\n{rest}\r\n");
        assert_eq!(read(head, None, None), expected);
        let expected = format!("POST /a%2fb?q HTTP/2.0\r\nhost: b:1\r\n{rest}content-length: 7\r\n\r\n");
        let without = head.replace("Host: a.example\r\n", "");
        assert_eq!(read(&without, Some("b:1"), Some(Length::Known(7))), expected);
        assert_eq!(
            read(&without, Some("b:1"), Some(Length::Unknown)),
            expected.replace("content-length: 7\r\n", "")
        );
    }
}
