//! PROXY protocol headers of both versions. No prefix of an accepted header was refused, later bytes change nothing,
//! and a header written from the result parses to the same result.

use std::net::SocketAddr;

use flatout_wire::proxy_protocol::{BINARY_BYTES_MAX, Header, ProxyVersion, TEXT_BYTES_MAX, parse, write};

pub fn run(input: &[u8]) {
    let whole = parse(input);
    for end in [input.len() / 2, input.len().saturating_sub(1), input.len().min(13)] {
        match (parse(&input[..end]), whole) {
            (Ok(None), _) => {}
            (found, whole) => assert_eq!(found, whole, "at {end}"),
        }
    }
    let header = match whole {
        Ok(Some(header)) => header,
        Ok(None) => return assert!(input.len() < BINARY_BYTES_MAX),
        Err(fault) => return assert!(!fault.reason().is_empty()),
    };
    let bytes_max = if input[0] == b'P' { TEXT_BYTES_MAX } else { BINARY_BYTES_MAX };
    assert!((15..=bytes_max).contains(&header.bytes) && header.bytes <= input.len());
    assert_eq!(parse(&input[..header.bytes]), Ok(Some(header)));
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let mut again = Vec::new();
        write(version, header.source, &mut again);
        // The proxy's own address is left open.
        let target = header.target.map(|target| match target {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
        });
        assert_eq!(parse(&again), Ok(Some(Header { bytes: again.len(), target, ..header })));
    }
}
