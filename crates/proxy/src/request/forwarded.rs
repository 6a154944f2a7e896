//! Writes who has sent a request: `X-Forwarded-*` and `Forwarded`.

use std::io::Write;
use std::net::IpAddr;

use flatout_gateway::{Client, Edits};
use flatout_wire::Head;
use flatout_wire::field::write_line;

/// The fields that say who has sent a request.
pub(crate) struct Sender<'a> {
    pub(crate) head: &'a Head<'a>,
    pub(crate) client: &'a Client,
    pub(crate) edits: &'a Edits<'a>,
    /// The peer of the downstream connection.
    pub(crate) peer: Option<IpAddr>,
}

impl Sender<'_> {
    /// Whether we append to a trusted proxy's value of this field, named in lower case; otherwise we replace it.
    fn adds_to(&self, name: &str) -> bool {
        self.client.is_from_proxy && !self.edits.drops(name.as_bytes())
    }

    /// Writes the values of this field to which ours is appended. Returns the address to append.
    fn write_earlier(&self, name: &'static str, out: &mut Vec<u8>) -> Option<IpAddr> {
        if !self.adds_to(name) {
            return self.client.address;
        }
        for value in self.head.field_all(name) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
        self.peer
    }
}

/// Sends the client's address, after what a trusted proxy before us has sent.
pub(crate) fn write_x_forwarded(sender: &Sender<'_>, out: &mut Vec<u8>) {
    let Sender { head, client, edits, .. } = sender;
    out.extend_from_slice(b"X-Forwarded-For: ");
    match sender.write_earlier("x-forwarded-for", out) {
        Some(address) => write_address(address, out),
        None => out.extend_from_slice(b"unknown"),
    }
    out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
    out.extend_from_slice(scheme(client).as_bytes());
    out.extend_from_slice(b"\r\n");
    let before = head.field("X-Forwarded-Host").filter(|_| sender.adds_to("x-forwarded-host"));
    let host = before.unwrap_or(edits.authority(head));
    if !host.is_empty() {
        write_line(b"X-Forwarded-Host", host, out);
    }
}

/// The same as `Forwarded` (RFC 7239).
pub(crate) fn write_forwarded(sender: &Sender<'_>, out: &mut Vec<u8>) {
    let Sender { head, client, edits, .. } = sender;
    out.extend_from_slice(b"Forwarded: ");
    let address = sender.write_earlier("forwarded", out);
    out.extend_from_slice(b"for=");
    match address {
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

pub(super) fn scheme(client: &Client) -> &'static str {
    if client.is_https { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
