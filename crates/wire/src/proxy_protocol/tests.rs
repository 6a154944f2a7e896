use proptest::prelude::*;

use super::*;

/// A version 2 header with these TLVs after the addresses of `family`.
fn binary(command: u8, family: u8, addresses: &[u8], tlvs: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(((addresses.len() + tlvs.len()) as u16).to_be_bytes());
    bytes.extend_from_slice(addresses);
    bytes.extend_from_slice(tlvs);
    bytes
}

/// 192.0.2.7:4711 to 198.51.100.1:443.
const V4: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 1, 187];

fn source(bytes: &[u8]) -> Result<Option<Option<String>>, ProxyFault> {
    Ok(parse(bytes)?.map(|header| {
        assert_eq!(header.bytes, bytes.len());
        header.source.map(|source| source.to_string())
    }))
}

#[test]
fn lines_are_read_as_specified() {
    for (line, expected) in [
        ("TCP4 192.0.2.7 198.51.100.1 4711 443", Some("192.0.2.7:4711")),
        ("TCP4 255.255.255.255 255.255.255.255 65535 65535", Some("255.255.255.255:65535")),
        ("TCP6 2001:db8::7 ::1 4711 0", Some("[2001:db8::7]:4711")),
        (
            "TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535",
            Some("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
        ),
        ("UNKNOWN", None),
        ("UNKNOWN whatever it \u{1}says", None),
    ] {
        let line = format!("PROXY {line}\r\n");
        assert_eq!(source(line.as_bytes()), Ok(Some(expected.map(str::to_owned))), "{line}");
        for end in 0..line.len() {
            assert_eq!(parse(&line.as_bytes()[..end]), Ok(None), "{line} up to {end}");
        }
    }
}

#[test]
fn targets_are_read_beside_sources() {
    let target = |bytes: &[u8]| parse(bytes).unwrap().unwrap().target.map(|target| target.to_string());
    let mut v6 = [[0u8; 16], [0u8; 16]].concat();
    v6[31] = 9;
    v6.extend([0, 80, 1, 187]);
    for (bytes, expected) in [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n".to_vec(), Some("198.51.100.1:443")),
        (b"PROXY TCP6 ::7 2001:db8::1 4711 443\r\n".to_vec(), Some("[2001:db8::1]:443")),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (binary(0x21, 0x11, &V4, &[]), Some("198.51.100.1:443")),
        (binary(0x21, 0x21, &v6, &[]), Some("[::9]:443")),
        (binary(0x20, 0x11, &V4, &[]), None),
    ] {
        assert_eq!(target(&bytes).as_deref(), expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn lines_that_are_nearly_right_are_refused() {
    for line in [
        "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\n",
        "PROXY  TCP4 192.0.2.7 198.51.100.1 4711 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 \r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 04711 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 +4711 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 4711 \r\n",
        "PROXY TCP4 192.0.2.07 198.51.100.1 4711 443\r\n",
        "PROXY TCP4 192.0.2 198.51.100.1 4711 443\r\n",
        "PROXY TCP4 192.0.2.7 nowhere 4711 443\r\n",
        "PROXY TCP4 ::1 ::1 4711 443\r\n",
        "PROXY TCP6 192.0.2.7 198.51.100.1 4711 443\r\n",
        "PROXY TCP6 fe80::1%1 ::1 4711 443\r\n",
        "PROXY TCP5 192.0.2.7 198.51.100.1 4711 443\r\n",
        "PROXY UDP4 192.0.2.7 198.51.100.1 4711 443\r\n",
        "PROXY tcp4 192.0.2.7 198.51.100.1 4711 443\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY UNKNOWN a\rb\r\n",
        "PROXY \r\n",
    ] {
        assert_eq!(parse(line.as_bytes()), Err(ProxyFault::Text), "{line:?}");
    }
    for other in ["GET / HTTP/1.1\r\n", "proxy TCP4", "PROXYTCP4", "\r\n\r\n\0\r\nQUIX", "\0", "\r\nPROXY "] {
        assert_eq!(parse(other.as_bytes()), Err(ProxyFault::NoHeader), "{other:?}");
    }
    let endless = format!("PROXY UNKNOWN {}", "a".repeat(TEXT_BYTES_MAX));
    assert_eq!(parse(&endless.as_bytes()[..TEXT_BYTES_MAX - 1]), Ok(None));
    assert_eq!(parse(&endless.as_bytes()[..TEXT_BYTES_MAX]), Err(ProxyFault::TextTooLong));
}

#[test]
fn binary_headers_are_read_as_specified() {
    let mut v6 = [0; 36];
    v6[0..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
    v6[15] = 7;
    v6[32..34].copy_from_slice(&4711u16.to_be_bytes());
    for (bytes, expected) in [
        (binary(0x21, 0x11, &V4, &[]), Some("192.0.2.7:4711")),
        (binary(0x21, 0x21, &v6, &[]), Some("[2001:db8::7]:4711")),
        // TLVs of an application, one of them empty.
        (binary(0x21, 0x11, &V4, &[0xe0, 0, 2, 1, 2, 4, 0, 0]), Some("192.0.2.7:4711")),
        (binary(0x21, 0x12, &V4, &[]), None),
        (binary(0x21, 0x31, &[b'a'; 216], &[]), None),
        (binary(0x21, 0, &[], &[]), None),
        (binary(0x21, 0, &[1, 2, 3], &[]), None),
        (binary(0x20, 0, &[], &[]), None),
        (binary(0x20, 0x11, &V4, &[]), None),
        (binary(0x20, 0xff, &[9; 70], &[]), None),
    ] {
        assert_eq!(source(&bytes), Ok(Some(expected.map(str::to_owned))), "{bytes:x?}");
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{bytes:x?} up to {end}");
        }
    }
}

#[test]
fn binary_headers_that_are_nearly_right_are_refused() {
    for (bytes, fault) in [
        (binary(0x11, 0x11, &V4, &[]), ProxyFault::Version),
        (binary(0x31, 0x11, &V4, &[]), ProxyFault::Version),
        (binary(0x22, 0x11, &V4, &[]), ProxyFault::Command),
        (binary(0x21, 0x41, &V4, &[]), ProxyFault::Family),
        (binary(0x21, 0x13, &V4, &[]), ProxyFault::Family),
        (binary(0x21, 0x11, &V4[..11], &[]), ProxyFault::Addresses),
        (binary(0x21, 0x21, &[0; 35], &[]), ProxyFault::Addresses),
        (binary(0x21, 0x31, &[0; 215], &[]), ProxyFault::Addresses),
        (binary(0x21, 0x11, &V4, &[4]), ProxyFault::Tlv),
        (binary(0x21, 0x11, &V4, &[4, 0]), ProxyFault::Tlv),
        (binary(0x21, 0x11, &V4, &[4, 0, 1]), ProxyFault::Tlv),
        (binary(0x21, 0x11, &V4, &[4, 0xff, 0xff, 1]), ProxyFault::Tlv),
        (binary(0x21, 0x11, &V4, &[3, 0, 3, 1, 2, 3]), ProxyFault::Checksum),
        (binary(0x21, 0x11, &V4, &[3, 0, 4, 1, 2, 3, 4]), ProxyFault::Checksum),
    ] {
        assert_eq!(parse(&bytes), Err(fault), "{bytes:x?}");
    }
    // Before the rest has arrived.
    assert_eq!(parse(&binary(0x21, 0, &[0; BINARY_BYTES_MAX], &[])[..16]), Err(ProxyFault::BinaryTooLong));
    assert_eq!(parse(&binary(0x41, 0, &[], &[])[..13]), Err(ProxyFault::Version));
    let largest = binary(0x21, 0, &[0; BINARY_BYTES_MAX - BINARY_HEAD_BYTES], &[]);
    assert_eq!(source(&largest), Ok(Some(None)));
}

#[test]
fn checksums_are_verified() {
    // RFC 3720 appendix B.4.
    assert_eq!(crc32c([&[0; 32], &[], &[]]), 0x8a91_36aa);
    assert_eq!(crc32c([b"1234", b"56789", b""]), 0xe306_9283);
    for tlvs in [&[3, 0, 4, 0, 0, 0, 0][..], &[4, 0, 1, 7, 3, 0, 4, 0, 0, 0, 0, 0xea, 0, 0]] {
        let mut bytes = binary(0x21, 0x11, &V4, tlvs);
        let at = bytes.windows(3).rposition(|window| window == [3, 0, 4]).unwrap() + 3;
        let sum = crc32c([&bytes, &[], &[]]);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(source(&bytes), Ok(Some(Some("192.0.2.7:4711".to_owned()))));
        bytes[19] ^= 1;
        assert_eq!(parse(&bytes), Err(ProxyFault::Checksum));
    }
}

fn written(version: ProxyVersion, source: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    write(version, source.map(|source| source.parse().unwrap()), &mut out);
    out
}

#[test]
fn both_versions_are_written_as_specified() {
    assert_eq!(written(ProxyVersion::V1, Some("192.0.2.7:4711")), b"PROXY TCP4 192.0.2.7 0.0.0.0 4711 0\r\n");
    assert_eq!(written(ProxyVersion::V1, Some("[::1]:80")), b"PROXY TCP6 ::1 :: 80 0\r\n");
    assert_eq!(written(ProxyVersion::V1, None), b"PROXY UNKNOWN\r\n");
    let v4 = written(ProxyVersion::V2, Some("192.0.2.7:4711"));
    assert_eq!(v4[12..], [0x21, 0x11, 0, 12, 192, 0, 2, 7, 0, 0, 0, 0, 0x12, 0x67, 0, 0]);
    let v6 = written(ProxyVersion::V2, Some("[::1]:80"));
    assert_eq!((v6.len(), &v6[12..16], &v6[48..]), (52, &[0x21, 0x21, 0, 36][..], &[0, 80, 0, 0][..]));
    assert_eq!(written(ProxyVersion::V2, None)[12..], [0x20, 0, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn written_headers_can_be_parsed(
        ip: Option<IpAddr>,
        port: u16,
        is_text: bool,
        behind in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let source = ip.map(|ip| SocketAddr::new(ip, port));
        let version = if is_text { ProxyVersion::V1 } else { ProxyVersion::V2 };
        let mut bytes = Vec::new();
        write(version, source, &mut bytes);
        // The proxy's own address is left open.
        let target = source.map(|source| match source {
            SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
        });
        let header = Header { source, target, bytes: bytes.len() };
        bytes.extend(behind);
        prop_assert_eq!(parse(&bytes), Ok(Some(header)));
    }
}
