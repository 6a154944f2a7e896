//! The PROXY protocol: whose connection it is, said before the first request (HAProxy's specification, versions 1 and 2).

use std::io::Write;
use std::net::SocketAddr;

use super::plan::ProxyProtocol;

/// What version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Writes who the client is. Which of our addresses it came to is not known here and left open.
pub(super) fn write(version: ProxyProtocol, client: Option<SocketAddr>, out: &mut Vec<u8>) {
    match version {
        ProxyProtocol::V1 => write_text(client, out),
        ProxyProtocol::V2 => write_binary(client, out),
    }
}

fn write_text(client: Option<SocketAddr>, out: &mut Vec<u8>) {
    // Writing into memory does not fail.
    drop(match client {
        Some(SocketAddr::V4(v4)) => write!(out, "PROXY TCP4 {} 0.0.0.0 {} 0\r\n", v4.ip(), v4.port()),
        Some(SocketAddr::V6(v6)) => write!(out, "PROXY TCP6 {} :: {} 0\r\n", v6.ip(), v6.port()),
        None => write!(out, "PROXY UNKNOWN\r\n"),
    });
}

fn write_binary(client: Option<SocketAddr>, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    match client {
        Some(SocketAddr::V4(v4)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&v4.ip().octets());
            out.extend_from_slice(&[0; 4]);
        }
        Some(SocketAddr::V6(v6)) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&v6.ip().octets());
            out.extend_from_slice(&[0; 16]);
        }
        // LOCAL: nobody's.
        None => return out.extend_from_slice(&[0x20, 0, 0, 0]),
    }
    out.extend_from_slice(&client.map_or(0, |client| client.port()).to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: ProxyProtocol, client: Option<&str>) -> Vec<u8> {
        let mut out = Vec::new();
        write(version, client.map(|client| client.parse().unwrap()), &mut out);
        out
    }

    #[test]
    fn both_versions_are_as_specified() {
        assert_eq!(
            written(ProxyProtocol::V1, Some("192.0.2.7:4711")),
            b"PROXY TCP4 192.0.2.7 0.0.0.0 4711 0\r\n"
        );
        assert_eq!(written(ProxyProtocol::V1, Some("[::1]:80")), b"PROXY TCP6 ::1 :: 80 0\r\n");
        assert_eq!(written(ProxyProtocol::V1, None), b"PROXY UNKNOWN\r\n");
        let v4 = written(ProxyProtocol::V2, Some("192.0.2.7:4711"));
        assert_eq!(v4[12..], [0x21, 0x11, 0, 12, 192, 0, 2, 7, 0, 0, 0, 0, 0x12, 0x67, 0, 0]);
        let v6 = written(ProxyProtocol::V2, Some("[::1]:80"));
        assert_eq!((v6.len(), &v6[12..16], &v6[48..]), (52, &[0x21, 0x21, 0, 36][..], &[0, 80, 0, 0][..]));
        assert_eq!(written(ProxyProtocol::V2, None)[12..], [0x20, 0, 0, 0]);
    }
}
