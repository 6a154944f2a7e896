//! Peers: addresses and networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// All, including those on Unix sockets.
    All,
    /// Those on Unix sockets.
    Unix,
    /// Those whose address is in a network.
    Net(Net),
}

/// A network: an address and its prefix length. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is treated as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Net {
    address: IpAddr,
    bits: u8,
}

/// Why a text is not a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadNet {
    /// Not an IP address.
    Address,
    /// The prefix length is not a number, or longer than the address.
    Bits,
    /// Host bits are set: `10.1.2.3/8`.
    HostBits,
}

impl Net {
    /// The network of an address and a prefix length.
    ///
    /// # Errors
    /// The prefix is longer than the address, or host bits are set.
    pub fn new(address: IpAddr, bits: u8) -> Result<Net, BadNet> {
        let (address, bits) = match (address, address.to_canonical()) {
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if bits >= 96 => (canonical, bits - 96),
            (address, _) => (address, bits),
        };
        if bits > width(address) {
            return Err(BadNet::Bits);
        }
        let net = Net { address, bits };
        let (first, _) = net.range();
        if first != number(address) { Err(BadNet::HostBits) } else { Ok(net) }
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The prefix length.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let (first, last) = self.range();
        address.is_ipv4() == self.address.is_ipv4() && (first..=last).contains(&number(address))
    }

    /// Its first and last address, as numbers of their address family.
    pub(crate) fn range(&self) -> (u128, u128) {
        let free_bits = width(self.address) - self.bits.min(width(self.address));
        let free = 1u128.checked_shl(u32::from(free_bits)).map_or(u128::MAX, |end| end - 1);
        let first = number(self.address) & !free;
        (first, first | free)
    }
}

/// An address as a number of its address family.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Net {
    type Err = BadNet;

    /// `10.0.0.0/8`, `2001:db8::/32`, or an address, which is a network of one address.
    fn from_str(text: &str) -> Result<Net, BadNet> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadNet::Address)?;
        let bits = match bits {
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().map_err(|_| BadNet::Bits)?
            }
            Some(_) => return Err(BadNet::Bits),
            None => width(address),
        };
        Net::new(address, bits)
    }
}

impl FromStr for Peers {
    type Err = BadNet;

    /// `all`, `unix`, or a [`Net`].
    fn from_str(text: &str) -> Result<Peers, BadNet> {
        match text {
            "all" => Ok(Peers::All),
            "unix" | "unix:" => Ok(Peers::Unix),
            net => net.parse().map(Peers::Net),
        }
    }
}

impl fmt::Display for BadNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadNet::Address => "expected an IP address or a network such as 10.0.0.0/8",
            BadNet::Bits => "expected a prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6",
            BadNet::HostBits => "the address has bits set after the prefix",
        })
    }
}

impl std::error::Error for BadNet {}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        for (text, expected) in [
            ("10.0.0.0/8", Ok("10.0.0.0/8")),
            ("192.0.2.1", Ok("192.0.2.1/32")),
            ("0.0.0.0/0", Ok("0.0.0.0/0")),
            ("::/0", Ok("::/0")),
            ("2001:db8::/32", Ok("2001:db8::/32")),
            ("::ffff:10.0.0.0/104", Ok("10.0.0.0/8")),
            ("10.1.2.3/8", Err(BadNet::HostBits)),
            ("10.0.0.0/33", Err(BadNet::Bits)),
            ("::/129", Err(BadNet::Bits)),
            ("10.0.0.0/+8", Err(BadNet::Bits)),
            ("10.0.0.0/", Err(BadNet::Bits)),
            ("10.0.0.0/8/8", Err(BadNet::Bits)),
            ("10.0.0/8", Err(BadNet::Address)),
            ("010.0.0.1", Err(BadNet::Address)),
            ("", Err(BadNet::Address)),
        ] {
            let read = text.parse::<Net>().map(|net| net.to_string());
            assert_eq!(read.as_deref().map_err(|bad| *bad), expected, "{text}");
        }
    }
}
