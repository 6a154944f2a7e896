//! The keys of a map, each kind with its own lookup.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use flatout_expression::Regex;
use foldhash::fast::RandomState;

use super::super::access::Ranges;
use super::super::fault::Place;
use super::super::pattern;
use super::super::plan::{MapKey, Net, number};

/// Regular expressions of one map: they are tried in order.
const REGEXES_MAX: usize = 256;

/// Ranges of numbers of one map: they are tried in order.
const NUMBERS_MAX: usize = 1024;

/// The whole of all shares, in millionths.
const WHOLE: u32 = 1_000_000;

/// Keys of all kinds, and the position of each among all.
#[derive(Debug, Default)]
pub(super) struct Keys {
    exact: HashMap<Box<[u8]>, usize, RandomState>,
    /// By their end, which begins with a dot; and by their start, which ends with one.
    ends: HashMap<Box<[u8]>, usize, RandomState>,
    starts: HashMap<Box<[u8]>, usize, RandomState>,
    ipv4: Ranges<usize>,
    ipv6: Ranges<usize>,
    has_networks: bool,
    numbers: Vec<(RangeInclusive<i64>, usize)>,
    /// The hash below which a share ends.
    shares: Vec<(u32, usize)>,
    regexes: Vec<(Regex, usize)>,
}

impl Keys {
    /// # Errors
    /// Two equal keys, too many of a kind, shares above 100%, or an invalid expression.
    pub(super) fn new<'k>(all: impl Iterator<Item = &'k MapKey>) -> Result<Keys, String> {
        let mut keys = Keys::default();
        let (mut networks, mut shared) = (Vec::new(), 0);
        let twice = |text: &str| Err(format!("the key `{text}` occurs twice"));
        for (at, key) in all.enumerate() {
            match key {
                MapKey::Exact(text) => {
                    if keys.exact.insert(text.to_ascii_lowercase().into_bytes().into(), at).is_some() {
                        return twice(text);
                    }
                }
                MapKey::EndsWith(end) => {
                    if keys.ends.insert(end.as_bytes().into(), at).is_some() {
                        return twice(&format!("*{end}"));
                    }
                }
                MapKey::StartsWith(start) => {
                    if keys.starts.insert(start.as_bytes().into(), at).is_some() {
                        return twice(&format!("{start}*"));
                    }
                }
                MapKey::Net(net) => networks.push((*net, at)),
                MapKey::Numbers(range) => keys.numbers.push((range.clone(), at)),
                MapKey::Share(share) => {
                    shared += share;
                    if shared > WHOLE {
                        return Err("the shares are more than 100%".to_owned());
                    }
                    let end = u64::from(shared) * u64::from(u32::MAX) / u64::from(WHOLE);
                    keys.shares.push((u32::try_from(end).unwrap_or(u32::MAX), at));
                }
                MapKey::Regex { pattern, ignore_case } => {
                    let expression = pattern::expression(pattern, *ignore_case, Place::Plan);
                    keys.regexes.push((expression.map_err(|fault| fault.reason)?, at));
                }
            }
        }
        if keys.regexes.len() > REGEXES_MAX || keys.numbers.len() > NUMBERS_MAX {
            return Err(format!(
                "got {} regular expressions and {} ranges of numbers, allowed {REGEXES_MAX} and {NUMBERS_MAX}",
                keys.regexes.len(),
                keys.numbers.len()
            ));
        }
        keys.has_networks = !networks.is_empty();
        (keys.ipv4, keys.ipv6) = (ranges(&mut networks, true), ranges(&mut networks, false));
        Ok(keys)
    }

    /// The position of the key for a text, and its expression, if it is one.
    pub(super) fn find(&self, text: &[u8]) -> Option<(usize, Option<&Regex>)> {
        if let Some(at) = self.exact_or_wildcard(text) {
            return Some((at, None));
        }
        if self.has_networks || !self.numbers.is_empty() {
            let text = std::str::from_utf8(text).unwrap_or_default();
            let at = text.parse().ok().and_then(|address| self.network(address)).or_else(|| {
                let value: i64 = text.parse().ok()?;
                self.numbers.iter().find(|(range, _)| range.contains(&value)).map(|(_, at)| *at)
            });
            if let Some(at) = at {
                return Some((at, None));
            }
        }
        if !self.shares.is_empty() {
            let hash = murmur(text);
            // The last share of a whole ends behind the largest hash.
            let found = self.shares.iter().find(|(end, _)| hash < *end || *end == u32::MAX);
            if let Some((_, at)) = found {
                return Some((*at, None));
            }
        }
        let found = self.regexes.iter().find(|(expression, _)| expression.is_match(text));
        found.map(|(expression, at)| (*at, Some(expression)))
    }

    /// The most steps of a lookup.
    pub(super) fn steps(&self) -> usize {
        3 + self.numbers.len() + self.shares.len() + self.regexes.len()
    }

    fn exact_or_wildcard(&self, text: &[u8]) -> Option<usize> {
        if self.exact.is_empty() && self.ends.is_empty() && self.starts.is_empty() {
            return None;
        }
        let lower = match text.iter().any(u8::is_ascii_uppercase) {
            true => std::borrow::Cow::Owned(text.to_ascii_lowercase()),
            false => std::borrow::Cow::Borrowed(text),
        };
        if let Some(at) = self.exact.get(&*lower) {
            return Some(*at);
        }
        let dots = || lower.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        if !self.ends.is_empty() {
            let found = dots().filter(|at| *at > 0).find_map(|at| self.ends.get(lower.get(at..)?));
            if let Some(at) = found {
                return Some(*at);
            }
        }
        if self.starts.is_empty() {
            return None;
        }
        let mut longest = None;
        for at in dots() {
            longest = lower.get(..=at).and_then(|start| self.starts.get(start)).or(longest);
        }
        longest.copied()
    }

    /// The position of the smallest network that has an address.
    pub(super) fn network(&self, address: IpAddr) -> Option<usize> {
        match address.to_canonical() {
            address @ IpAddr::V4(_) => self.ipv4.at(number(address)),
            address @ IpAddr::V6(_) => self.ipv6.at(number(address)),
        }
    }
}

/// A table in which the smallest network decides.
fn ranges(networks: &mut [(Net, usize)], is_ipv4: bool) -> Ranges<usize> {
    networks.sort_by_key(|(net, at)| (std::cmp::Reverse(net.bits()), *at));
    let these = networks.iter().filter(|(net, _)| net.address().is_ipv4() == is_ipv4);
    Ranges::new(these.map(|(net, at)| {
        let (first, last) = net.range();
        (first, last, *at)
    }))
}

/// MurmurHash2, with which nginx splits clients: the same clients get the same share.
fn murmur(text: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let (words, rest) = text.as_chunks::<4>();
    for word in words {
        let mut value = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        value ^= value >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ value.wrapping_mul(FACTOR);
    }
    for (at, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(FACTOR);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_nginx() {
        for text in ["", "a", "ab", "abc", "abcd", "192.0.2.17", "2001:db8::1:2:3"] {
            assert_eq!(murmur(text.as_bytes()), reference(text.as_bytes()), "{text}");
        }
    }

    /// As it is written in `ngx_murmurhash.c`.
    fn reference(text: &[u8]) -> u32 {
        let (mut hash, mut at, mut len) = (text.len() as u32, 0, text.len());
        while len >= 4 {
            let mut k = u32::from(text[at])
                | u32::from(text[at + 1]) << 8
                | u32::from(text[at + 2]) << 16
                | u32::from(text[at + 3]) << 24;
            k = k.wrapping_mul(0x5bd1e995);
            k ^= k >> 24;
            k = k.wrapping_mul(0x5bd1e995);
            hash = hash.wrapping_mul(0x5bd1e995);
            hash ^= k;
            (at, len) = (at + 4, len - 4);
        }
        if len == 3 {
            hash ^= u32::from(text[at + 2]) << 16;
        }
        if len >= 2 {
            hash ^= u32::from(text[at + 1]) << 8;
        }
        if len >= 1 {
            hash ^= u32::from(text[at]);
            hash = hash.wrapping_mul(0x5bd1e995);
        }
        hash ^= hash >> 13;
        hash = hash.wrapping_mul(0x5bd1e995);
        hash ^ hash >> 15
    }
}
