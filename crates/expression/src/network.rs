//! Networks of addresses.

use std::net::IpAddr;

/// A network: addresses with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    first: u128,
    last: u128,
    is_ipv4: bool,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl Network {
    /// `10.0.0.0/8`, `2001:db8::/32`, or one address; `None` for anything else, also for bits behind the prefix.
    pub(crate) fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let free = width - bits.filter(|bits| *bits <= width).or(bits.is_none().then_some(width))?;
        let hosts = if free == 128 { u128::MAX } else { (1 << free) - 1 };
        let first = number(address);
        (first & hosts == 0).then_some(Network { first, last: first | hosts, is_ipv4: address.is_ipv4() })
    }

    /// Whether an address is in it. An IPv4 address in IPv6 is the IPv4 one.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let place = number(address);
        address.is_ipv4() == self.is_ipv4 && self.first <= place && place <= self.last
    }
}
