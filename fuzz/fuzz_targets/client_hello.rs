//! The name in a ClientHello. No prefix of an accepted one was refused or had another name, and what follows changes nothing.
//!
//! The first byte of the input chooses where it is cut.

use flatout_tls::{HELLO_BYTES_MAX, Hello, read_hello};

/// The longest DNS name.
const NAME_BYTES_MAX: usize = 253;

pub fn run(input: &[u8]) {
    let Some((&seed, bytes)) = input.split_first() else { return };
    let whole = read_hello(bytes);
    for end in [bytes.len() / 2, bytes.len().saturating_sub(1), usize::from(seed) % (bytes.len() + 1), bytes.len().min(5)] {
        match read_hello(&bytes[..end]) {
            Ok(Hello::Incomplete) => {}
            found => assert_eq!(found, whole, "at {end}"),
        }
    }
    match &whole {
        Ok(Hello::Incomplete) => return assert!(bytes.len() < HELLO_BYTES_MAX),
        Ok(Hello::Complete(Some(name))) => {
            assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
        }
        Ok(Hello::Complete(None)) => {}
        Err(fault) => assert!(!fault.reason().is_empty()),
    }
    assert_eq!(read_hello(&[bytes, b"\x14more"].concat()), whole);
}
