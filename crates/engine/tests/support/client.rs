//! Client helpers for the tests of several crates.

use std::io::Read;

/// Reads until the server closes.
pub(crate) fn rest(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let start = &bytes[..bytes.len().min(300)];
        panic!("{error} after {} bytes: {:?}", bytes.len(), String::from_utf8_lossy(start));
    }
    String::from_utf8(bytes).unwrap()
}

/// Reads up to and including `end`.
pub(crate) fn read_until(stream: &mut impl Read, end: &str) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(end.as_bytes()) {
        if let Err(error) = stream.read_exact(&mut byte) {
            panic!("{error} after {:?}", String::from_utf8_lossy(&bytes));
        }
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n")
}

pub(crate) fn last(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
}

pub(crate) fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}
