//! Access lists: peers that are allowed or denied, as tables of ranges.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::plan::{Access, Peers, Verdict, number};

/// An access list; a lookup takes time logarithmic in its length.
#[derive(Debug, Default)]
pub(crate) struct AccessList {
    ipv4: Ranges<Verdict>,
    ipv6: Ranges<Verdict>,
    unix: Option<Verdict>,
    is_empty: bool,
}

/// The value for each address: it holds from each start to the next one.
#[derive(Debug)]
pub(crate) struct Ranges<V>(Vec<(u128, Option<V>)>);

impl<V> Default for Ranges<V> {
    fn default() -> Self {
        Ranges(Vec::new())
    }
}

impl AccessList {
    pub(crate) fn new(lines: &[Access]) -> AccessList {
        let of_family = |is_ipv4: bool| {
            let last = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
            Ranges::new(lines.iter().filter_map(|line| match line.peers {
                Peers::All => Some((0, last, line.verdict)),
                Peers::Unix => None,
                Peers::Net(net) if net.address().is_ipv4() == is_ipv4 => {
                    let (first, last) = net.range();
                    Some((first, last, line.verdict))
                }
                Peers::Net(_) => None,
            }))
        };
        AccessList {
            ipv4: of_family(true),
            ipv6: of_family(false),
            unix: lines
                .iter()
                .find(|line| matches!(line.peers, Peers::All | Peers::Unix))
                .map(|line| line.verdict),
            is_empty: lines.is_empty(),
        }
    }

    /// A list that allows these peers and has no verdict for others.
    pub(crate) fn of(peers: &[Peers]) -> AccessList {
        let lines: Vec<Access> =
            peers.iter().map(|&peers| Access { verdict: Verdict::Allow, peers }).collect();
        AccessList::new(&lines)
    }

    /// Whether it has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The verdict for a peer; `None` is a peer on a Unix socket.
    #[inline]
    pub(crate) fn verdict(&self, peer: Option<IpAddr>) -> Option<Verdict> {
        if self.is_empty {
            return None;
        }
        match peer.map(|address| address.to_canonical()) {
            None => self.unix,
            Some(address @ IpAddr::V4(_)) => self.ipv4.at(number(address)),
            Some(address @ IpAddr::V6(_)) => self.ipv6.at(number(address)),
        }
    }

    /// Whether the list names a peer and allows it.
    #[inline]
    pub(crate) fn allows(&self, peer: Option<IpAddr>) -> bool {
        self.verdict(peer) == Some(Verdict::Allow)
    }
}

impl<V: Copy + PartialEq> Ranges<V> {
    /// From lines of which the first match decides: walks over all starts and ends with the set of lines that apply
    /// there.
    pub(crate) fn new(lines: impl Iterator<Item = (u128, u128, V)>) -> Ranges<V> {
        let lines: Vec<(u128, u128, V)> = lines.collect();
        let mut edges: Vec<(u128, usize, bool)> = Vec::with_capacity(lines.len() * 2);
        for (at, &(first, last, _)) in lines.iter().enumerate() {
            edges.push((first, at, true));
            // A line that includes the last address has no end.
            if let Some(behind) = last.checked_add(1) {
                edges.push((behind, at, false));
            }
        }
        edges.sort_unstable();
        let mut holding = BTreeSet::new();
        let mut table: Vec<(u128, Option<V>)> = Vec::new();
        let mut edges = edges.into_iter().peekable();
        while let Some((place, at, begins)) = edges.next() {
            if begins {
                holding.insert(at);
            } else {
                holding.remove(&at);
            }
            if edges.peek().is_some_and(|next| next.0 == place) {
                continue;
            }
            let verdict = holding.first().and_then(|&at| lines.get(at)).map(|line| line.2);
            if table.last().and_then(|last| last.1) != verdict {
                table.push((place, verdict));
            }
        }
        Ranges(table)
    }

    #[inline]
    pub(crate) fn at(&self, place: u128) -> Option<V> {
        let behind = self.0.partition_point(|&(start, _)| start <= place);
        self.0.get(behind.checked_sub(1)?)?.1
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Net;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The first line that matches.
    fn plain(lines: &[Access], peer: Option<IpAddr>) -> Option<Verdict> {
        let fits = |line: &&Access| match (line.peers, peer) {
            (Peers::All, _) | (Peers::Unix, None) => true,
            (Peers::Net(net), Some(address)) => net.contains(address),
            _ => false,
        };
        lines.iter().find(fits).map(|line| line.verdict)
    }

    /// Only a few bits vary, so that networks overlap and addresses match.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[bool; 6]>().prop_map(|bits| {
                let bits = bits.iter().fold(0u32, |sum, &bit| sum << 1 | u32::from(bit));
                IpAddr::from((bits << 26 | bits).to_be_bytes())
            }),
            any::<[bool; 6]>().prop_map(|bits| {
                let bits = bits.iter().fold(0u128, |sum, &bit| sum << 1 | u128::from(bit));
                IpAddr::from((bits << 122 | bits).to_be_bytes())
            }),
            Just(IpAddr::from([255; 4])),
            Just(IpAddr::from([255; 16])),
        ]
    }

    fn net() -> impl Strategy<Value = Net> {
        (address(), 0..=128u8).prop_map(|(address, bits)| {
            let bits = if address.is_ipv4() { bits % 33 } else { bits };
            let cut = |number: u128, width: u32| {
                let free = width - u32::from(bits);
                number.checked_shr(free).and_then(|number| number.checked_shl(free)).unwrap_or(0)
            };
            match address {
                IpAddr::V4(address) => {
                    let cut = cut(u128::from(u32::from(address)), 32) as u32;
                    Net::new(IpAddr::from(cut.to_be_bytes()), bits).unwrap()
                }
                IpAddr::V6(address) => {
                    Net::new(IpAddr::from(cut(u128::from(address), 128).to_be_bytes()), bits).unwrap()
                }
            }
        })
    }

    fn line() -> impl Strategy<Value = Access> {
        let peers = prop_oneof![
            8 => net().prop_map(Peers::Net),
            1 => Just(Peers::All),
            1 => Just(Peers::Unix),
        ];
        (any::<bool>(), peers).prop_map(|(allows, peers)| Access {
            verdict: if allows { Verdict::Allow } else { Verdict::Deny },
            peers,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_first_matching_access_line_decides(
            lines in vec(line(), 0..12),
            peers in vec(prop::option::of(address()), 1..30),
        ) {
            let list = AccessList::new(&lines);
            for peer in peers {
                prop_assert_eq!(list.verdict(peer), plain(&lines, peer), "{:?}", peer);
            }
        }
    }

    #[test]
    fn an_ipv4_address_in_ipv6_is_the_ipv4_one() {
        let list = AccessList::of(&["10.0.0.0/8".parse().unwrap()]);
        assert!(list.allows(Some("::ffff:10.1.2.3".parse().unwrap())));
        assert!(!list.allows(Some("::10.1.2.3".parse().unwrap())) && !list.allows(None));
    }
}
