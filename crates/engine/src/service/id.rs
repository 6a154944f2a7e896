//! The id of a request: the client's `X-Request-Id`, or 32 hexadecimal digits made from the request's number. Numbers are
//! counted for every request; the id is only made where something shows it.

use std::hash::{BuildHasher, RandomState};
#[cfg(feature = "simulation")]
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::LazyLock;

#[cfg(feature = "simulation")]
use flatout_lane::clock::simulated;
use flatout_wire::Head;

/// Bytes of a client's id that is accepted.
const ID_BYTES_MAX: usize = 128;

/// The number of a request without a connection.
pub(crate) const NO_NUMBER: u64 = 0;

/// The key of this process: ids do not reveal how many requests there were, and cannot be predicted.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The first number of a worker: far from those of other workers.
pub(crate) fn first_number() -> u64 {
    #[cfg(feature = "simulation")]
    if simulated::is_set() {
        return simulated::next_number() << 32;
    }
    RandomState::new().hash_one(0u8)
}

/// Two random numbers that belong to the request of this number, the same at each call. Those of the number 0 are new each time.
pub fn request_random(number: u64) -> [u64; 2] {
    #[cfg(feature = "simulation")]
    if simulated::is_set() {
        let number = if number == NO_NUMBER { simulated::next_number() } else { number };
        return [0, 1]
            .map(|half: u8| BuildHasherDefault::<DefaultHasher>::default().hash_one((number, half)));
    }
    let hash = |key: &RandomState| [0, 1].map(|half: u8| key.hash_one((number, half)));
    if number == NO_NUMBER { hash(&RandomState::new()) } else { hash(&KEY) }
}

/// The client's own id, if it is short and harmless in logs, pages and header fields: at most 128 of letters, digits and
/// `-_.:/+=@~`.
pub fn sent_request_id<'h>(head: &Head<'h>) -> Option<&'h [u8]> {
    head.field("x-request-id").filter(|id| is_request_id(id))
}

pub(crate) fn is_request_id(id: &[u8]) -> bool {
    let is_of_id = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(is_of_id)
}

/// Appends the id of a request. Cost: two hashes of 9 bytes, unless the client has sent one.
pub fn write_request_id(sent: Option<&[u8]>, number: u64, out: &mut Vec<u8>) {
    match sent {
        Some(id) => out.extend_from_slice(id),
        None => request_random(number).into_iter().for_each(|half| write_hex(half, out)),
    }
}

fn write_hex(number: u64, out: &mut Vec<u8>) {
    for at in (0..16).rev() {
        let digit = (number >> (4 * at)) as u8 & 15;
        out.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sent: Option<&[u8]>, number: u64) -> String {
        let mut out = Vec::new();
        write_request_id(sent, number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_id_belongs_to_its_number() {
        assert_eq!(id(None, 7), id(None, 7));
        assert_ne!(id(None, 7), id(None, 8));
        assert_ne!(id(None, NO_NUMBER), id(None, NO_NUMBER));
        assert!(id(None, 7).len() == 32 && id(None, 7).bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(id(Some(b"a-1"), 7), "a-1");
        let mut out = Vec::new();
        write_hex(0x0123_4567_89ab_cdef, &mut out);
        assert_eq!(out, b"0123456789abcdef");
    }

    #[test]
    fn ids_of_clients_are_short_and_harmless() {
        for (id, expected) in
            [(&b"a-1_x.Y"[..], true), (b"", false), (b"a b", false), (b"<b>", false), (b"a\"", false)]
        {
            assert_eq!(is_request_id(id), expected);
        }
        assert!(is_request_id(&[b'a'; ID_BYTES_MAX]) && !is_request_id(&[b'a'; ID_BYTES_MAX + 1]));
    }
}
