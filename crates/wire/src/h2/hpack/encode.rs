//! Encodes fields to a field block.

use super::fixed::index_of_name;
use super::huffman;
use super::integer;
use super::kind::FieldKind;
use crate::{Method, Status};

/// The start of the first block of a connection: our encoder has no dynamic table.
pub const NO_TABLE: u8 = 0x20;

/// A literal with an indexed name, not added to the table.
const LITERAL: u8 = 0;
/// A literal that no intermediary may index (RFC 7541 section 7.1.3).
const NEVER_INDEXED: u8 = 0x10;
const LITERAL_PREFIX_BITS: u32 = 4;

/// Writes `:status`.
#[inline]
pub fn encode_status(status: Status, out: &mut Vec<u8>) {
    let index = match status.code() {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        code => {
            let digits = [code / 100, code / 10 % 10, code % 10].map(|digit| b'0' + digit as u8);
            out.extend_from_slice(&[8, 3]);
            return out.extend_from_slice(&digits);
        }
    };
    out.push(0x80 | index);
}

/// Writes `:method`; `name` is its token.
pub fn encode_method(method: Method, name: &[u8], out: &mut Vec<u8>) {
    match method {
        Method::Get => out.push(0x82),
        Method::Post => out.push(0x83),
        _ => {
            out.push(2);
            string(name, out);
        }
    }
}

/// Writes `:scheme`: `https` or `http`.
pub fn encode_scheme(is_secure: bool, out: &mut Vec<u8>) {
    out.push(if is_secure { 0x87 } else { 0x86 });
}

/// Writes `:authority`.
pub fn encode_authority(authority: &[u8], out: &mut Vec<u8>) {
    out.push(1);
    string(authority, out);
}

/// Writes `:path`.
pub fn encode_path(target: &[u8], out: &mut Vec<u8>) {
    match target {
        b"/" => out.push(0x84),
        _ => {
            out.push(4);
            string(target, out);
        }
    }
}

/// Writes a field as a literal, with its name in lower case. The field is not checked.
#[inline]
pub fn encode_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    literal(LITERAL, name, value, out);
}

/// Like [`encode_field`], for a field that no intermediary may index.
pub fn encode_field_never_indexed(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    literal(NEVER_INDEXED, name, value, out);
}

/// Writes HTTP/1 field lines, each ended by CRLF. Those of the connection, and `Content-Length`, are left out;
/// `Set-Cookie` and credentials are never indexed.
pub fn encode_lines(lines: &[u8], out: &mut Vec<u8>) {
    let mut rest = lines;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, behind) = rest.split_at(end + 1);
        rest = behind;
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        encode_line(name, value, out);
    }
}

fn encode_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    match name.len() {
        7 if is("upgrade") => {}
        10 if is("connection") || is("keep-alive") => {}
        14 if is("content-length") => {}
        16 if is("proxy-connection") => {}
        17 if is("transfer-encoding") => {}
        10 if is("set-cookie") => encode_field_never_indexed(name, value, out),
        13 if is("authorization") => encode_field_never_indexed(name, value, out),
        _ => encode_field(name, value, out),
    }
}

#[inline]
fn literal(first: u8, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match index_of_name(name) {
        Some(index) => integer::write(index, LITERAL_PREFIX_BITS, first, out),
        None => {
            debug_assert!(FieldKind::of(&name.to_ascii_lowercase()) != FieldKind::Malformed, "{name:?}");
            out.push(first);
            integer::write(name.len(), 7, 0, out);
            out.extend(name.iter().map(u8::to_ascii_lowercase));
        }
    }
    string(value, out);
}

/// Shorter strings are not Huffman-coded: that would take longer than copying some bytes.
const HUFFMAN_BYTES_MIN: usize = 24;

/// Writes a string, Huffman-coded if it is long and becomes shorter.
#[inline]
fn string(text: &[u8], out: &mut Vec<u8>) {
    if text.len() >= HUFFMAN_BYTES_MIN {
        let bytes = huffman::encoded_bytes(text);
        if bytes < text.len() {
            integer::write(bytes, 7, 0x80, out);
            return huffman::encode(text, out);
        }
    }
    integer::write(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}
