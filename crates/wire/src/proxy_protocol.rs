//! The PROXY protocol, versions 1 and 2: announces a connection's client before its first byte.
//!
//! ```text
//! version 1   PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n
//! version 2   signature (12) · version and command · family and transport · length (2) · addresses · TLVs
//! ```
//!
//! A header that is not exactly as specified is a [`ProxyFault`], and its connection has to be closed: the sender of the
//! following bytes is unknown.
//!
//! # Source
//! HAProxy's `doc/proxy-protocol.txt`, revision of 2020/03/05; RFC 9260 appendix A for CRC32c.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the longest header of version 1, including its line end.
pub const TEXT_BYTES_MAX: usize = 107;

/// Bytes of the longest accepted header of version 2. The addresses take at most 216, the rest are TLVs. These do not
/// include client certificates, so real headers are far shorter.
pub const BINARY_BYTES_MAX: usize = 4096;

/// The start of a version 2 header.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The start of a version 1 header.
const TEXT: &[u8; 6] = b"PROXY ";

/// Bytes of a version 2 header before its addresses.
const BINARY_HEAD_BYTES: usize = 16;

/// The TLV with the checksum of the header (`PP2_TYPE_CRC32C`).
const CHECKSUM: u8 = 0x03;

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// A parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The client; `None` if the proxy speaks for itself (`LOCAL`), or does not know (`UNKNOWN`, `UNSPEC`, or a
    /// family without address and port): then it is the connection's actual peer.
    pub source: Option<SocketAddr>,
    /// The address to which the client has connected; there is one if there is a source.
    pub target: Option<SocketAddr>,
    /// Its length: the connection's own protocol follows.
    pub bytes: usize,
}

/// Why bytes are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFault {
    /// They start like neither version.
    NoHeader,
    /// A line of version 1 that does not end in time.
    TextTooLong,
    /// A line of version 1 that is not as specified.
    Text,
    /// A version other than 2 after the signature.
    Version,
    /// A command that is neither `LOCAL` nor `PROXY`.
    Command,
    /// An address family or a transport that does not exist.
    Family,
    /// A header of version 2 of more than [`BINARY_BYTES_MAX`] bytes.
    BinaryTooLong,
    /// Fewer bytes than the addresses of its family need.
    Addresses,
    /// A TLV that ends after the header.
    Tlv,
    /// The checksum does not match.
    Checksum,
}

impl ProxyFault {
    /// What is wrong, as text.
    pub fn reason(self) -> &'static str {
        match self {
            ProxyFault::NoHeader => "the connection does not begin with a PROXY header",
            ProxyFault::TextTooLong => "the PROXY line has no end within 107 bytes",
            ProxyFault::Text => "the PROXY line is malformed",
            ProxyFault::Version => "the PROXY header is of an unknown version",
            ProxyFault::Command => "the PROXY header has an unknown command",
            ProxyFault::Family => "the PROXY header has an unknown address family or transport",
            ProxyFault::BinaryTooLong => "the PROXY header has more than 4096 bytes",
            ProxyFault::Addresses => "the PROXY header is too short for its addresses",
            ProxyFault::Tlv => "a TLV of the PROXY header is too long",
            ProxyFault::Checksum => "the checksum of the PROXY header is wrong",
        }
    }
}

/// Parses the header at the start of a connection's bytes. `None` asks for more: never more than [`BINARY_BYTES_MAX`]
/// in all.
///
/// # Errors
/// A fault that no further byte could fix.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, ProxyFault> {
    if begins_alike(bytes, TEXT) {
        return if bytes.len() < TEXT.len() { Ok(None) } else { parse_text(bytes) };
    }
    if begins_alike(bytes, SIGNATURE) {
        return if bytes.len() < SIGNATURE.len() { Ok(None) } else { parse_binary(bytes) };
    }
    Err(ProxyFault::NoHeader)
}

/// Writes a header that announces `source` as the client. The proxy's own address is left open.
pub fn write(version: ProxyVersion, source: Option<SocketAddr>, out: &mut Vec<u8>) {
    match version {
        ProxyVersion::V1 => write_text(source, out),
        ProxyVersion::V2 => write_binary(source, out),
    }
}

/// Whether one is a prefix of the other.
fn begins_alike(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(one, other)| one == other)
}

fn parse_text(bytes: &[u8]) -> Result<Option<Header>, ProxyFault> {
    let seen = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() < TEXT_BYTES_MAX { Ok(None) } else { Err(ProxyFault::TextTooLong) };
    };
    let line = seen.get(TEXT.len()..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(ProxyFault::Text)?;
    let header = |source, target| Ok(Some(Header { source, target, bytes: end + 1 }));
    // The rest of the line is ignored.
    if let Some(rest) = line.strip_prefix(b"UNKNOWN") {
        let is_word = rest.first().is_none_or(|&byte| byte == b' ');
        return if is_word && !rest.contains(&b'\r') { header(None, None) } else { Err(ProxyFault::Text) };
    }
    let line = std::str::from_utf8(line).map_err(|_| ProxyFault::Text)?;
    let mut words = line.split(' ');
    let mut word = || words.next().ok_or(ProxyFault::Text);
    let (family, source, target) = (word()?, word()?, word()?);
    let (source_port, target_port) = (port(word()?)?, port(word()?)?);
    if words.next().is_some() {
        return Err(ProxyFault::Text);
    }
    let (source, target) = match family {
        "TCP4" => (ip::<Ipv4Addr>(source)?, ip::<Ipv4Addr>(target)?),
        "TCP6" => (ip::<Ipv6Addr>(source)?, ip::<Ipv6Addr>(target)?),
        _ => return Err(ProxyFault::Text),
    };
    header(Some(SocketAddr::new(source, source_port)), Some(SocketAddr::new(target, target_port)))
}

/// An address of this family; std rejects leading zeros.
fn ip<A: std::str::FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, ProxyFault> {
    text.parse::<A>().map(Into::into).map_err(|_| ProxyFault::Text)
}

/// A port, without a sign and without leading zeros.
fn port(text: &str) -> Result<u16, ProxyFault> {
    let is_plain = text == "0" || (text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain).ok_or(ProxyFault::Text)
}

fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, ProxyFault> {
    let (Some(&version), Some(&family)) = (bytes.get(12), bytes.get(13)) else {
        // The available part is checked, so that an invalid connection is closed as early as possible.
        return bytes.get(12).map_or(Ok(None), |&version| command(version).map(|_| None));
    };
    let is_local = command(version)?;
    let (family, transport) = (family >> 4, family & 0xf);
    if !is_local && (family > 3 || transport > 2) {
        return Err(ProxyFault::Family);
    }
    let Some(&[high, low]) = bytes.get(14..BINARY_HEAD_BYTES) else { return Ok(None) };
    let length = BINARY_HEAD_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if length > BINARY_BYTES_MAX {
        return Err(ProxyFault::BinaryTooLong);
    }
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    // A sender that speaks for itself may have put anything there.
    if is_local {
        return Ok(Some(Header { source: None, target: None, bytes: length }));
    }
    let (ends, addresses_bytes) = addresses(family, transport, header)?;
    check_tlvs(header, BINARY_HEAD_BYTES + addresses_bytes)?;
    let (source, target) = ends.unzip();
    Ok(Some(Header { source, target, bytes: length }))
}

/// Whether the command is `LOCAL`.
fn command(byte: u8) -> Result<bool, ProxyFault> {
    match (byte >> 4, byte & 0xf) {
        (2, 0) => Ok(true),
        (2, 1) => Ok(false),
        (2, _) => Err(ProxyFault::Command),
        _ => Err(ProxyFault::Version),
    }
}

/// Source and target, if they have addresses and ports that a connection can have, and the length of the addresses.
fn addresses(
    family: u8,
    transport: u8,
    header: &[u8],
) -> Result<(Option<(SocketAddr, SocketAddr)>, usize), ProxyFault> {
    let rest = header.get(BINARY_HEAD_BYTES..).unwrap_or_default();
    let is_stream = transport == 1;
    let address = |ip: IpAddr, port: [u8; 2]| SocketAddr::new(ip, u16::from_be_bytes(port));
    match family {
        1 => {
            let (block, _) = rest.split_first_chunk::<12>().ok_or(ProxyFault::Addresses)?;
            let &[a, b, c, d, e, f, g, h, high, low, target_high, target_low] = block;
            let source = address(Ipv4Addr::new(a, b, c, d).into(), [high, low]);
            let target = address(Ipv4Addr::new(e, f, g, h).into(), [target_high, target_low]);
            Ok((is_stream.then_some((source, target)), block.len()))
        }
        2 => {
            let (block, _) = rest.split_first_chunk::<36>().ok_or(ProxyFault::Addresses)?;
            let (source, rest) = block.split_first_chunk::<16>().ok_or(ProxyFault::Addresses)?;
            let (target, ports) = rest.split_first_chunk::<16>().ok_or(ProxyFault::Addresses)?;
            let &[high, low, target_high, target_low] = ports else { return Err(ProxyFault::Addresses) };
            let source = address(Ipv6Addr::from(*source).into(), [high, low]);
            let target = address(Ipv6Addr::from(*target).into(), [target_high, target_low]);
            Ok((is_stream.then_some((source, target)), block.len()))
        }
        3 if rest.len() < 216 => Err(ProxyFault::Addresses),
        3 => Ok((None, 216)),
        // Unspecified: the length of the addresses is unknown, so TLVs cannot be found.
        _ => Ok((None, rest.len())),
    }
}

/// Walks over the TLVs from `at` on. All are skipped, except the checksum.
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), ProxyFault> {
    while at < header.len() {
        let Some(&[kind, high, low]) = header.get(at..at + 3) else { return Err(ProxyFault::Tlv) };
        let end = at + 3 + usize::from(u16::from_be_bytes([high, low]));
        let value = header.get(at + 3..end).ok_or(ProxyFault::Tlv)?;
        if kind == CHECKSUM {
            let value: [u8; 4] = value.try_into().map_err(|_| ProxyFault::Checksum)?;
            let before = header.get(..at + 3).unwrap_or_default();
            let behind = header.get(end..).unwrap_or_default();
            if crc32c([before, &[0; 4], behind]) != u32::from_be_bytes(value) {
                return Err(ProxyFault::Checksum);
            }
        }
        at = end;
    }
    Ok(())
}

/// CRC32c of the concatenated pieces. Bit by bit: it is computed at most once per connection, and rarely even then.
fn crc32c(pieces: [&[u8]; 3]) -> u32 {
    /// Castagnoli's polynomial, with its bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let byte = |crc: u32, byte: &u8| {
        let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
        (0..8).fold(crc ^ u32::from(*byte), step)
    };
    !pieces.into_iter().flatten().fold(u32::MAX, byte)
}

fn write_text(source: Option<SocketAddr>, out: &mut Vec<u8>) {
    // Writing into memory cannot fail.
    drop(match source {
        Some(SocketAddr::V4(v4)) => write!(out, "PROXY TCP4 {} 0.0.0.0 {} 0\r\n", v4.ip(), v4.port()),
        Some(SocketAddr::V6(v6)) => write!(out, "PROXY TCP6 {} :: {} 0\r\n", v6.ip(), v6.port()),
        None => write!(out, "PROXY UNKNOWN\r\n"),
    });
}

fn write_binary(source: Option<SocketAddr>, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    match source {
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
        // LOCAL: no client.
        None => return out.extend_from_slice(&[0x20, 0, 0, 0]),
    }
    out.extend_from_slice(&source.map_or(0, |source| source.port()).to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

#[cfg(test)]
mod tests;
